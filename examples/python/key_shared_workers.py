"""Several workers share one queue, and yet each device's messages are handled in their order, one at a time.

The queue is declared with `x-subscription-mode: key_shared`. Messages with the same key go to the same worker as
long as one of them is not acknowledged; other keys go to other workers. The key is the header `x-key`, over MQTT
the user property of that name; without it, it is the routing key or topic. Here a device publishes to two topics,
so it names itself as the key.

The same among MQTT subscribers: they subscribe to `$share/workers/reading/#`, and the group has its mode from
    anabranch policy set workers --applies-to groups --pattern '^workers$' --mode key_shared

Needs paho-mqtt 2 and pika 1. Run a node with `anabranch serve --dev`, then this file. ANABRANCH_MQTT
(host:port) and ANABRANCH_AMQP (URI) name another node.
"""

import os
import threading
import time
from collections import defaultdict

import paho.mqtt.client as mqtt
import pika
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

MQTT = os.environ.get("ANABRANCH_MQTT", "127.0.0.1:1883")
AMQP = os.environ.get("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f")
QUEUE = "example-work-py"
WORKERS = ["worker-1", "worker-2", "worker-3"]
DEVICES = ["pump-1", "pump-2", "pump-3", "pump-4", "pump-5", "pump-6"]
READINGS = 5
WAIT_S = 30


class Ledger:
    """What the workers did, written down as they do it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.busy = {}
        self.order = defaultdict(list)
        self.served = defaultdict(set)
        self.left = len(DEVICES) * READINGS
        self.done = threading.Event()

    def begin(self, worker, device, number):
        with self.lock:
            other = self.busy.setdefault(device, worker)
            if other != worker:
                raise RuntimeError(f"{device} is at {other} and {worker} at once")
            self.order[device].append(number)
            self.served[worker].add(device)

    def end(self, device):
        with self.lock:
            del self.busy[device]
            self.left -= 1
            if self.left == 0:
                self.done.set()


def work(name, ledger, ready):
    """One worker: takes up to four messages at a time, until all work is done."""
    connection = pika.BlockingConnection(pika.URLParameters(AMQP))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=4)

    def on_message(_channel, method, properties, body):
        device = properties.headers["x-key"]
        ledger.begin(name, device, int(body))
        time.sleep(0.01)  # the work
        ledger.end(device)
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume(QUEUE, on_message)
    ready.wait(WAIT_S)
    while not ledger.done.is_set():
        connection.process_data_events(time_limit=0.1)
    connection.close()


def publish_readings():
    """Publishes all devices' readings, as one gateway for them all; a device's in their order."""
    host, port = MQTT.rsplit(":", 1)
    gateway = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2,
        client_id="example-gateway-py",
        protocol=mqtt.MQTTv5,
    )
    gateway.connect(host, int(port))
    gateway.loop_start()
    for number in range(1, READINGS + 1):
        kind = "temp" if number % 2 else "flow"
        for device in DEVICES:
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = ("x-key", device)
            topic = f"reading/{device}/{kind}"
            sent = gateway.publish(topic, str(number), qos=1, properties=properties)
    sent.wait_for_publish(WAIT_S)
    gateway.disconnect()
    gateway.loop_stop()
    print(f"devices: {len(DEVICES)} published {READINGS} readings each")


def main():
    application = pika.BlockingConnection(pika.URLParameters(AMQP))
    channel = application.channel()
    mode = {"x-subscription-mode": "key_shared"}
    channel.queue_declare(QUEUE, durable=True, arguments=mode)
    channel.queue_bind(QUEUE, "amq.topic", routing_key="reading.#")

    ledger, ready = Ledger(), threading.Barrier(len(WORKERS) + 1)
    workers = [
        threading.Thread(target=work, args=(name, ledger, ready), daemon=True)
        for name in WORKERS
    ]
    for worker in workers:
        worker.start()
    # All consume before the first message is there, so each gets its share of the keys.
    ready.wait(WAIT_S)
    publish_readings()
    all_done = ledger.done.wait(WAIT_S)

    for worker in workers:
        worker.join(WAIT_S)
    channel.queue_delete(QUEUE)
    application.close()
    if not all_done:
        raise TimeoutError(f"{ledger.left} readings were not handled")
    for name in WORKERS:
        print(f"{name}: served {', '.join(sorted(ledger.served[name])) or 'nobody'}")
    for device in DEVICES:
        order = " ".join(map(str, ledger.order[device]))
        print(f"{device}: {order}, one worker at a time")


if __name__ == "__main__":
    main()
