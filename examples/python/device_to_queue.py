"""A device publishes its readings over MQTT; an application takes them from a durable queue over AMQP.

The queue is bound to `amq.topic`, the exchange that MQTT publishes go to: nothing else connects the two.
The topic `plant/7/temp` is the routing key `plant.7.temp`.

Needs paho-mqtt 2 and pika 1. Run a node with `anabranch serve --dev`, then this file. ANABRANCH_MQTT
(host:port) and ANABRANCH_AMQP (URI) name another node.
"""

import os

import paho.mqtt.client as mqtt
import pika
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

MQTT = os.environ.get("ANABRANCH_MQTT", "127.0.0.1:1883")
AMQP = os.environ.get("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f")
QUEUE = "example-readings-py"
READINGS = ["21.4", "21.6", "21.9"]
WAIT_S = 30


def publish_readings():
    """Publishes all readings with QoS 1 and waits until each is safe: a PUBACK comes after the sync."""
    host, port = MQTT.rsplit(":", 1)
    device = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2,
        client_id="example-sensor-7-py",
        protocol=mqtt.MQTTv5,
    )
    device.connect(host, int(port))
    device.loop_start()
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "text/plain"
    for reading in READINGS:
        sent = device.publish("plant/7/temp", reading, qos=1, properties=properties)
        sent.wait_for_publish(WAIT_S)
        if not sent.is_published():
            raise TimeoutError(f"{reading} was not acknowledged")
        print(f"device: {reading} on plant/7/temp is acknowledged")
    device.disconnect()
    device.loop_stop()


def main():
    application = pika.BlockingConnection(pika.URLParameters(AMQP))
    channel = application.channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.queue_bind(QUEUE, "amq.topic", routing_key="plant.*.temp")
    print(f"application: queue {QUEUE} takes plant.*.temp")

    # Nobody consumes yet: the queue keeps what the device says.
    publish_readings()

    deliveries = channel.consume(QUEUE, inactivity_timeout=WAIT_S)
    for _ in READINGS:
        method, properties, body = next(deliveries)
        if method is None:
            raise TimeoutError("a reading did not arrive")
        print(
            f"application: {body.decode()} on {method.routing_key} ({properties.content_type})"
        )
        channel.basic_ack(method.delivery_tag)
    channel.cancel()
    channel.queue_delete(QUEUE)
    application.close()


if __name__ == "__main__":
    main()
