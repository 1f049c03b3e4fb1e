"""One published message reaches several queues and several MQTT subscribers.

An exchange of type fanout leads to every queue bound to it. It is bound to `amq.topic` too, the exchange of all
MQTT subscriptions: so devices that subscribe to `alarm/#` get what is published with the routing key
`alarm.plant-7`. A shard stores it once, however many take it.

Needs paho-mqtt 2 and pika 1. Run a node with `anabranch serve --dev`, then this file. ANABRANCH_MQTT
(host:port) and ANABRANCH_AMQP (URI) name another node.
"""

import os
import queue

import paho.mqtt.client as mqtt
import pika

MQTT = os.environ.get("ANABRANCH_MQTT", "127.0.0.1:1883")
AMQP = os.environ.get("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f")
EXCHANGE = "example-alarms-py"
QUEUES = ["example-alarms-log-py", "example-alarms-mail-py"]
DEVICES = ["example-siren-py", "example-display-py"]
WAIT_S = 30


def start_device(name, alarms):
    """Connects a device that puts what it hears into `alarms`, and returns it when it listens."""
    host, port = MQTT.rsplit(":", 1)
    subscribed = queue.Queue()
    device = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5
    )
    device.on_connect = lambda client, *_: client.subscribe("alarm/#", qos=1)
    device.on_subscribe = lambda *_: subscribed.put(True)
    device.on_message = lambda _client, _userdata, message: alarms.put(message)
    device.connect(host, int(port))
    device.loop_start()
    subscribed.get(timeout=WAIT_S)
    return device


def main():
    application = pika.BlockingConnection(pika.URLParameters(AMQP))
    channel = application.channel()
    channel.exchange_declare(EXCHANGE, exchange_type="fanout", durable=True)
    channel.exchange_bind(destination="amq.topic", source=EXCHANGE)
    for name in QUEUES:
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, EXCHANGE)
    alarms = {name: queue.Queue() for name in DEVICES}
    devices = [start_device(name, alarms[name]) for name in DEVICES]

    channel.confirm_delivery()
    channel.basic_publish(
        EXCHANGE,
        routing_key="alarm.plant-7",
        body="pressure is high",
        properties=pika.BasicProperties(content_type="text/plain", delivery_mode=2),
    )
    print("application: published one alarm")

    for name in QUEUES:
        method, _, body = next(channel.consume(name, inactivity_timeout=WAIT_S))
        if method is None:
            raise TimeoutError(f"{name} got nothing")
        print(f"queue {name}: {body.decode()} ({method.routing_key})")
        channel.basic_ack(method.delivery_tag)
        channel.cancel()
    for name in DEVICES:
        alarm = alarms[name].get(timeout=WAIT_S)
        print(f"device {name}: {alarm.payload.decode()} ({alarm.topic})")

    for device in devices:
        device.disconnect()
        device.loop_stop()
    for name in QUEUES:
        channel.queue_delete(name)
    channel.exchange_delete(EXCHANGE)
    application.close()


if __name__ == "__main__":
    main()
