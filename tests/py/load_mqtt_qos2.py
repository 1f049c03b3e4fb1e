"""Publishes numbered QoS 2 messages with paho over a lasting session, through any number of broken lines.

Arguments: host port name topic window version. Each body is "<name> <number>"; every number whose
PUBCOMP came is written to stdout as it comes. When the line breaks it connects again, as often as it
takes, and goes on with what was under way. When stdin ends it sends nothing new, and leaves with 0 once
all is complete, writing "sent <count>" last.
"""

import sys
import threading
import time

import paho.mqtt.client as mqtt


class Client(mqtt.Client):
    """paho's client, but for what it forgets when it tries more than once to connect again.

    At the first attempt it notes that a message only waits for its PUBREL to be sent again; at the next
    it takes the same note for one that was never answered, and publishes the message a second time.
    """

    def _messages_reconnect_reset_out(self):
        with self._out_message_mutex:
            for message in self._out_messages.values():
                if message.state == mqtt.mqtt_ms_resend_pubrel:
                    message.state = mqtt.mqtt_ms_wait_for_pubcomp
        super()._messages_reconnect_reset_out()


host, port, name, topic, window, version = sys.argv[1:7]
free = threading.Semaphore(int(window))
stopping = threading.Event()
lock = threading.Lock()
numbers = {}
early = set()


def complete(number):
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()
    free.release()


def on_publish(_client, _userdata, mid, _reason, _properties):
    # paho may report the answer before publish() has returned the packet id.
    with lock:
        number = numbers.pop(mid, None)
        if number is None:
            early.add(mid)
            return
    complete(number)


def on_connect(_client, _userdata, flags, reason, _properties):
    print(f"connected: {reason}, present: {flags.session_present}", file=sys.stderr)


def wait_for_the_end():
    sys.stdin.read()
    stopping.set()


threading.Thread(target=wait_for_the_end, daemon=True).start()
five = version == "5"
client = Client(
    mqtt.CallbackAPIVersion.VERSION2,
    client_id=name,
    protocol=mqtt.MQTTv5 if five else mqtt.MQTTv311,
    **({} if five else {"clean_session": False}),
)
client.max_inflight_messages_set(int(window))
client.reconnect_delay_set(1, 1)
client.on_publish = on_publish
client.on_connect = on_connect
options = {}
if five:
    lasting = mqtt.Properties(mqtt.PacketTypes.CONNECT)
    lasting.SessionExpiryInterval = 3600
    options = {"clean_start": False, "properties": lasting}
client.connect(host, int(port), keepalive=30, **options)
client.loop_start()
number = 0
while not stopping.is_set():
    if not free.acquire(timeout=0.1):
        continue
    number += 1
    info = client.publish(topic, f"{name} {number}", qos=2)
    with lock:
        answered = info.mid in early
        early.discard(info.mid)
        if not answered:
            numbers[info.mid] = number
    if answered:
        complete(number)
deadline = time.monotonic() + 60
for _ in range(int(window)):
    if not free.acquire(timeout=max(0, deadline - time.monotonic())):
        sys.exit(f"not complete: {numbers}")
client.disconnect()
client.loop_stop()
print(f"sent {number}")
