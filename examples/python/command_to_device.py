"""An application sends a command over AMQP; a device gets it over MQTT.

The application publishes to the exchange `amq.topic`, where every MQTT subscription is bound. The routing
key `command.pump-7.start` is the topic `command/pump-7/start`.

Needs paho-mqtt 2 and pika 1. Run a node with `anabranch serve --dev`, then this file. ANABRANCH_MQTT
(host:port) and ANABRANCH_AMQP (URI) name another node.
"""

import os
import queue

import paho.mqtt.client as mqtt
import pika

MQTT = os.environ.get("ANABRANCH_MQTT", "127.0.0.1:1883")
AMQP = os.environ.get("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f")
WAIT_S = 30


def send_command():
    """Publishes one command; `mandatory` raises an exception when nobody listens."""
    application = pika.BlockingConnection(pika.URLParameters(AMQP))
    channel = application.channel()
    channel.confirm_delivery()
    channel.basic_publish(
        "amq.topic",
        routing_key="command.pump-7.start",
        body=b'{"rpm": 1200}',
        properties=pika.BasicProperties(
            content_type="application/json",
            delivery_mode=2,
            headers={"priority": "high"},
        ),
        mandatory=True,
    )
    print("application: the command has a taker")
    application.close()


def main():
    host, port = MQTT.rsplit(":", 1)
    subscribed, commands = queue.Queue(), queue.Queue()
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

    send_command()

    command = commands.get(timeout=WAIT_S)
    print(f"device: {command.payload.decode()} on {command.topic}")
    print(f"device: content type {command.properties.ContentType}")
    print(f"device: user properties {command.properties.UserProperty}")
    device.disconnect()
    device.loop_stop()


if __name__ == "__main__":
    main()
