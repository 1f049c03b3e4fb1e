"""Receives QoS 2 messages with paho over a lasting session, through any number of broken lines.

Arguments: host port name filter version. "ready" is written to stdout when the filter is granted; after
that each body as it comes. When the line breaks it connects again, as often as it takes, until stdin ends.
"""

import sys

import paho.mqtt.client as mqtt

host, port, name, topic_filter, version = sys.argv[1:6]


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def on_connect(connected, _userdata, flags, reason, _properties):
    print(f"connected: {reason}, present: {flags.session_present}", file=sys.stderr)
    if not flags.session_present:
        connected.subscribe(topic_filter, qos=2)


five = version == "5"
client = mqtt.Client(
    mqtt.CallbackAPIVersion.VERSION2,
    client_id=name,
    protocol=mqtt.MQTTv5 if five else mqtt.MQTTv311,
    **({} if five else {"clean_session": False}),
)
client.reconnect_delay_set(1, 1)
client.on_connect = on_connect
client.on_subscribe = lambda _client, _userdata, _mid, _reasons, _properties: say("ready")
client.on_message = lambda _client, _userdata, message: say(message.payload.decode())
options = {}
if five:
    lasting = mqtt.Properties(mqtt.PacketTypes.CONNECT)
    lasting.SessionExpiryInterval = 3600
    options = {"clean_start": False, "properties": lasting}
client.connect(host, int(port), keepalive=30, **options)
client.loop_start()
sys.stdin.read()
client.disconnect()
client.loop_stop()
