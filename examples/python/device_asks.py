"""A device asks over MQTT; an application answers over AMQP; the device has the answer.

The device asks as MQTT 5 says: with a Response Topic that it subscribes to, and Correlation Data. The application
takes questions from a queue bound to `amq.topic`. It finds where to answer in `reply_to`, as `mqtt:<topic>`, and
in the header `x-mqtt-response-topic`; it answers by publishing to `amq.topic` with that topic as routing key.

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
QUEUE = "example-questions-py"
ANSWERS = "settings/meter-7/answers"
SETTINGS = {"interval": "60 s"}
WAIT_S = 30


def routing_key(topic):
    """A topic's levels are a routing key's words. (A `.` within a level would be written `%2E`.)"""
    return topic.replace("/", ".")


def answer_one_question(channel):
    """Takes a question from the queue and answers where it says."""
    deliveries = channel.consume(QUEUE, inactivity_timeout=WAIT_S)
    method, question, body = next(deliveries)
    if method is None:
        raise TimeoutError("no question arrived")
    print(f"application: {body.decode()} on {method.routing_key}")
    print(f"application: reply to {question.reply_to}")
    topic = question.headers["x-mqtt-response-topic"]
    channel.basic_publish(
        "amq.topic",
        routing_key=routing_key(topic),
        body=SETTINGS[body.decode()],
        properties=pika.BasicProperties(
            content_type="text/plain", correlation_id=question.correlation_id
        ),
    )
    channel.basic_ack(method.delivery_tag)
    channel.cancel()


def main():
    application = pika.BlockingConnection(pika.URLParameters(AMQP))
    channel = application.channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, "amq.topic", routing_key="settings.get")

    host, port = MQTT.rsplit(":", 1)
    subscribed, answers = queue.Queue(), queue.Queue()
    device = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2,
        client_id="example-meter-7-py",
        protocol=mqtt.MQTTv5,
    )
    device.on_connect = lambda client, *_: client.subscribe(ANSWERS, qos=1)
    device.on_subscribe = lambda *_: subscribed.put(True)
    device.on_message = lambda _client, _userdata, message: answers.put(message)
    device.connect(host, int(port))
    device.loop_start()
    # First listen to answers, then ask.
    subscribed.get(timeout=WAIT_S)
    asks = Properties(PacketTypes.PUBLISH)
    asks.ResponseTopic = ANSWERS
    asks.CorrelationData = b"question-1"
    device.publish("settings/get", "interval", qos=1, properties=asks)
    print("device: asks for its interval")

    answer_one_question(channel)

    answer = answers.get(timeout=WAIT_S)
    answered = answer.properties.CorrelationData.decode()
    print(f"device: {answer.payload.decode()} answers {answered}")
    device.disconnect()
    device.loop_stop()
    channel.queue_delete(QUEUE)
    application.close()


if __name__ == "__main__":
    main()
