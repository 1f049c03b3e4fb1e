"""Publishes numbered QoS 1 messages with paho until the connection is gone.

Arguments: host port name topic window version bytes. Each body is "<name> <number>", with blanks up to
so many bytes; every number whose PUBACK came is written to stdout as it comes. Leaves with 0 when the
broker went away, with 1 when it refused a message.
"""

import sys
import threading

import paho.mqtt.client as mqtt

host, port, name, topic, window, version, size = sys.argv[1:8]
VERSIONS = {"3.1.1": mqtt.MQTTv311, "5": mqtt.MQTTv5}
free = threading.Semaphore(int(window))
gone = threading.Event()
connected = threading.Event()
lock = threading.Lock()
numbers = {}
early = set()
refused = []


def confirm(number):
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()
    free.release()


def on_publish(_client, _userdata, mid, reason, _properties):
    if reason.is_failure:
        refused.append(f"refused: {reason} ({reason.value:#x})")
        gone.set()
        return
    # paho may report the answer before publish() has returned the packet id.
    with lock:
        number = numbers.pop(mid, None)
        if number is None:
            early.add(mid)
            return
    confirm(number)


def on_connect(_client, _userdata, _flags, reason, _properties):
    if reason.is_failure:
        sys.exit(f"refused: {reason}")
    connected.set()


def on_disconnect(_client, _userdata, flags, reason, _properties):
    print(f"gone: {reason}, by server: {flags.is_disconnect_packet_from_server}", file=sys.stderr)
    gone.set()


client = mqtt.Client(
    mqtt.CallbackAPIVersion.VERSION2,
    client_id=name,
    protocol=VERSIONS[version],
    reconnect_on_failure=False,
)
client.max_inflight_messages_set(int(window))
client.on_publish = on_publish
client.on_connect = on_connect
client.on_disconnect = on_disconnect
client.connect(host, int(port), keepalive=30)
client.loop_start()
if not connected.wait(20):
    sys.exit("no CONNACK")
number = 0
while not gone.is_set():
    if not free.acquire(timeout=0.1):
        continue
    number += 1
    info = client.publish(topic, f"{name} {number}".ljust(int(size)), qos=1)
    with lock:
        answered = info.mid in early
        early.discard(info.mid)
        if not answered:
            numbers[info.mid] = number
    if answered:
        confirm(number)
print(f"sent {number}", file=sys.stderr)
if refused:
    sys.exit(refused[0])
