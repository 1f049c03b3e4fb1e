"""An application sends a command over AMQP; a device gets it over MQTT; its answer comes back over AMQP.

The application publishes to the exchange `amq.topic`, where every MQTT subscription is bound: the routing key
`command.pump-7.start` is the topic `command/pump-7/start`. `reply_to` and `correlation_id` arrive as MQTT 5's
Response Topic (`$amqp/<vhost>/q/<queue>`, which stands for the application's queue) and Correlation Data. So a
device answers as to any other request, and knows nothing of AMQP.

Needs paho-mqtt 2 and pika 1. Run a node with `anabranch serve --dev`, then this file. ANABRANCH_MQTT
(host:port) and ANABRANCH_AMQP (URI) name another node.
"""

import os
import queue

import paho.mqtt.client as mqtt
import pika
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

MQTT = os.environ.get("ANABRANCH_MQTT", "127.0.0.1:1883")
AMQP = os.environ.get("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f")
WAIT_S = 30


def start_device(commands):
    """Connects the device, which puts what it is told into `commands`, and returns it when it listens."""
    host, port = MQTT.rsplit(":", 1)
    subscribed = queue.Queue()
    device = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2,
        client_id="example-pump-7-py",
        protocol=mqtt.MQTTv5,
    )
    device.on_connect = lambda client, *_: client.subscribe("command/pump-7/#", qos=1)
    device.on_subscribe = lambda *_: subscribed.put(True)
    device.on_message = lambda _client, _userdata, message: commands.put(message)
    device.connect(host, int(port))
    device.loop_start()
    # Whatever is published from here on reaches the device.
    subscribed.get(timeout=WAIT_S)
    print("device: listens to command/pump-7/#")
    return device


def obey(device, command):
    """Does what the command says and answers where it asks for the answer."""
    print(f"device: {command.payload.decode()} on {command.topic}")
    print(f"device: content type {command.properties.ContentType}")
    print(f"device: user properties {command.properties.UserProperty}")
    answer = Properties(PacketTypes.PUBLISH)
    answer.ContentType = "application/json"
    answer.CorrelationData = command.properties.CorrelationData
    topic = command.properties.ResponseTopic
    device.publish(topic, b'{"running": true}', qos=1, properties=answer)


def main():
    commands = queue.Queue()
    device = start_device(commands)

    application = pika.BlockingConnection(pika.URLParameters(AMQP))
    channel = application.channel()
    # The server finds a name for the queue of answers, and it goes with the connection.
    answers = channel.queue_declare("", exclusive=True).method.queue
    channel.confirm_delivery()
    # `mandatory` raises an exception when nobody listens.
    channel.basic_publish(
        "amq.topic",
        routing_key="command.pump-7.start",
        body=b'{"rpm": 1200}',
        properties=pika.BasicProperties(
            content_type="application/json",
            delivery_mode=2,
            headers={"priority": "high"},
            reply_to=answers,
            correlation_id="start-1",
        ),
        mandatory=True,
    )
    print("application: the command has a taker")

    obey(device, commands.get(timeout=WAIT_S))

    _, answer, body = next(
        channel.consume(answers, auto_ack=True, inactivity_timeout=WAIT_S)
    )
    if answer is None:
        raise TimeoutError("no answer arrived")
    print(f"application: {body.decode()} answers {answer.correlation_id}")
    application.close()
    device.disconnect()
    device.loop_stop()


if __name__ == "__main__":
    main()
