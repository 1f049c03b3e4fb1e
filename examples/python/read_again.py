"""What a device publishes is kept in a stream; an application reads all of it, a device from where it likes.

The stream is bound to `amq.topic` like a queue, but keeps what was read: each reader has a place of its own. Here
the application asks for `x-stream-offset` `first`, the device subscribes to `$stream/<name>` from offset 1 on.

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
STREAM = "example-history-py"
READINGS = ["21.4", "21.6", "21.9"]
WAIT_S = 30


def connected(client_id):
    host, port = MQTT.rsplit(":", 1)
    device = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5
    )
    device.connect(host, int(port))
    device.loop_start()
    return device


def ended(device):
    device.disconnect()
    device.loop_stop()


def publish_readings():
    """Publishes all readings with QoS 1 and waits until each is safe."""
    device = connected("example-sensor-8-py")
    for reading in READINGS:
        sent = device.publish("plant/8/temp", reading, qos=1)
        sent.wait_for_publish(WAIT_S)
        if not sent.is_published():
            raise TimeoutError(f"{reading} was not acknowledged")
    print(f"device: all {len(READINGS)} are acknowledged")
    ended(device)


def read_all(channel):
    """The application: from the first message on. A prefetch count and acknowledgements are needed; they
    only say how much may be on the way."""
    channel.basic_qos(prefetch_count=10)
    first = {"x-stream-offset": "first"}
    deliveries = channel.consume(STREAM, arguments=first, inactivity_timeout=WAIT_S)
    for _ in READINGS:
        method, properties, body = next(deliveries)
        if method is None:
            raise TimeoutError("a reading did not arrive")
        print(f"application: {body.decode()} is offset {properties.headers['x-stream-offset']}")
        channel.basic_ack(method.delivery_tag)
    channel.cancel()


def read_from(offset):
    """A device: from an offset on. Each message tells where it was, so that the device can go on behind it."""
    device = connected("example-reader-8-py")
    inbox = queue.Queue()
    device.on_message = lambda _client, _data, message: inbox.put(message)
    start = Properties(PacketTypes.SUBSCRIBE)
    start.UserProperty = ("offset", str(offset))
    device.subscribe(f"$stream/{STREAM}", qos=1, properties=start)
    for _ in READINGS[offset:]:
        message = inbox.get(timeout=WAIT_S)
        told = dict(message.properties.UserProperty)
        reading = message.payload.decode()
        print(f"device: {reading} is offset {told['x-stream-offset']} on {message.topic}")
    ended(device)


def main():
    application = pika.BlockingConnection(pika.URLParameters(AMQP))
    channel = application.channel()
    kept = {"x-queue-type": "stream", "x-max-age": "7D"}
    channel.queue_declare(STREAM, durable=True, arguments=kept)
    channel.queue_bind(STREAM, "amq.topic", routing_key="plant.*.temp")

    publish_readings()
    read_all(channel)
    read_from(1)

    channel.queue_delete(STREAM)
    application.close()


if __name__ == "__main__":
    main()
