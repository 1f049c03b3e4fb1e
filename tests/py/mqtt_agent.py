"""paho-mqtt, driven line by line (see agent.py): MQTT 3.1.1 and 5.0."""

import socket
import threading
import time

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from agent import from_bytes, serve, to_bytes

VERSIONS = {"3.1": mqtt.MQTTv31, "3.1.1": mqtt.MQTTv311, "5": mqtt.MQTTv5}

# JSON name -> paho's attribute, for PUBLISH.
PUBLISH_PROPERTIES = {
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "expiry_s": "MessageExpiryInterval",
    "payload_format": "PayloadFormatIndicator",
    "alias": "TopicAlias",
}


def properties_in(described, packet=PacketTypes.PUBLISH):
    """paho's Properties of a PUBLISH, or of a will, from the test's JSON, or None."""
    if not described:
        return None
    properties = Properties(packet)
    for name, attribute in PUBLISH_PROPERTIES.items():
        if name in described:
            setattr(properties, attribute, described[name])
    if "correlation" in described:
        properties.CorrelationData = to_bytes(described["correlation"])
    if "user" in described:
        properties.UserProperty = [tuple(pair) for pair in described["user"]]
    if "delay_s" in described:
        properties.WillDelayInterval = described["delay_s"]
    return properties


def properties_out(properties):
    """The test's JSON from paho's Properties of a received PUBLISH."""
    described = {}
    if properties is None:
        return described
    for name, attribute in PUBLISH_PROPERTIES.items():
        if hasattr(properties, attribute):
            described[name] = getattr(properties, attribute)
    if hasattr(properties, "CorrelationData"):
        described["correlation"] = from_bytes(properties.CorrelationData)
    if hasattr(properties, "UserProperty"):
        described["user"] = [list(pair) for pair in properties.UserProperty]
    if hasattr(properties, "SubscriptionIdentifier"):
        described["subscriptions"] = list(properties.SubscriptionIdentifier)
    return described


class Client(mqtt.Client):
    """paho's client, whose line breaks at a packet that the test names.

    `lose` is the packet's name: one that came is not looked at (`pubrec`, `pubcomp`, `pubrel` of the
    broker), one that would go is not sent (`send_pubrec`, `send_pubrel`, `send_pubcomp`); the connection
    is cut instead, once.
    """

    lose = None

    def cut(self):
        self.lose = None
        self.socket().shutdown(socket.SHUT_RDWR)
        return mqtt.MQTT_ERR_SUCCESS

    def _handle_pubrec(self):
        return self.cut() if self.lose == "pubrec" else super()._handle_pubrec()

    def _handle_pubackcomp(self, cmd):
        return self.cut() if self.lose == cmd.lower() else super()._handle_pubackcomp(cmd)

    def _handle_pubrel(self):
        return self.cut() if self.lose == "pubrel" else super()._handle_pubrel()

    def _send_pubrec(self, mid):
        return self.cut() if self.lose == "send_pubrec" else super()._send_pubrec(mid)

    def _send_pubrel(self, mid):
        return self.cut() if self.lose == "send_pubrel" else super()._send_pubrel(mid)

    def _send_pubcomp(self, mid):
        return self.cut() if self.lose == "send_pubcomp" else super()._send_pubcomp(mid)


class Agent:
    """One client at a time; callbacks run on paho's thread and wake the waiting operation."""

    def __init__(self):
        self.changed = threading.Condition()
        self.client = None
        self.reset()

    def reset(self):
        self.connected = None
        self.closed = None
        self.messages = []
        self.answers = {}

    def wait(self, condition, within_ms):
        """True as soon as `condition()` holds, False when the time is over."""
        with self.changed:
            return self.changed.wait_for(condition, within_ms / 1000)

    def note(self, change):
        with self.changed:
            change()
            self.changed.notify_all()

    def do_connect(
        self,
        host,
        port,
        client_id="",
        user=None,
        password=None,
        version="5",
        clean=True,
        expiry_s=None,
        keep_alive_s=30,
        receive_maximum=None,
        manual_ack=False,
        transport="tcp",
        path="/mqtt",
        tls=None,
        will=None,
        packet_max=None,
        aliases_max=None,
        within_ms=10_000,
    ):
        """`transport` is "tcp" or "websockets"; `tls` names `ca`, and `certificate` and `key` if any."""
        self.reset()
        protocol = VERSIONS[version]
        arguments = {} if version == "5" else {"clean_session": clean}
        client = Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=protocol,
            reconnect_on_failure=False,
            manual_ack=manual_ack,
            transport=transport,
            **arguments,
        )
        if transport == "websockets":
            client.ws_set_options(path=path)
        if tls is not None:
            client.tls_set(tls["ca"], tls.get("certificate"), tls.get("key"))
        if user is not None:
            client.username_pw_set(user, password)
        if will is not None:
            about = properties_in(will.get("properties"), PacketTypes.WILLMESSAGE)
            client.will_set(
                will["topic"],
                to_bytes(will.get("body", "")),
                will.get("qos", 0),
                will.get("retain", False),
                about,
            )
        client.on_connect = lambda c, u, flags, reason, p: self.note(
            lambda: setattr(self, "connected", (reason.value, flags.session_present))
        )
        client.on_disconnect = lambda c, u, flags, reason, p: self.note(
            lambda: setattr(
                self,
                "closed",
                {"reason": reason.value, "by_server": flags.is_disconnect_packet_from_server},
            )
        )
        client.on_message = lambda c, u, message: self.note(
            lambda: self.messages.append(
                {
                    "topic": message.topic,
                    "body": from_bytes(message.payload),
                    "qos": message.qos,
                    "retain": bool(message.retain),
                    "dup": bool(message.dup),
                    "mid": message.mid,
                    "properties": properties_out(message.properties),
                }
            )
        )
        client.on_publish = lambda c, u, mid, reason, p: self.note(
            lambda: self.answers.__setitem__(("publish", mid), [reason.value])
        )
        client.on_subscribe = lambda c, u, mid, reasons, p: self.note(
            lambda: self.answers.__setitem__(("subscribe", mid), [r.value for r in reasons])
        )
        client.on_unsubscribe = lambda c, u, mid, reasons, p: self.note(
            lambda: self.answers.__setitem__(("unsubscribe", mid), [r.value for r in reasons])
        )
        properties = None
        arguments = {}
        if version == "5":
            properties = Properties(PacketTypes.CONNECT)
            if expiry_s is not None:
                properties.SessionExpiryInterval = expiry_s
            if receive_maximum is not None:
                properties.ReceiveMaximum = receive_maximum
            if packet_max is not None:
                properties.MaximumPacketSize = packet_max
            if aliases_max is not None:
                properties.TopicAliasMaximum = aliases_max
            arguments = {"clean_start": clean, "properties": properties}
        try:
            client.connect(host, port, keepalive=keep_alive_s, **arguments)
        except (OSError, mqtt.WebsocketConnectionError) as error:
            if tls is None and transport == "tcp":
                raise
            return {"refused": f"{type(error).__name__}: {error}"}
        client.loop_start()
        self.client = client
        return self.accepted(within_ms)

    def accepted(self, within_ms):
        if not self.wait(lambda: self.connected or self.closed, within_ms):
            raise TimeoutError("neither CONNACK nor a close")
        if self.connected is None:
            return {"closed": self.closed}
        reason, present = self.connected
        return {"reason": reason, "session_present": present}

    def do_reconnect(self, within_ms=10_000):
        """The same client again: what it has not finished, it goes on with."""
        self.client.loop_stop()
        self.connected = self.closed = None
        self.client.reconnect()
        self.client.loop_start()
        return self.accepted(within_ms)

    def do_lose(self, packet):
        self.client.lose = packet

    def do_cut(self, within_ms=10_000):
        """Ends the connection without DISCONNECT."""
        self.client.cut()
        self.wait(lambda: self.closed, within_ms)
        return {"lost": self.closed}

    def answer(self, kind, mid, within_ms):
        """The reasons that came back for packet `mid`, or the close that came instead."""
        key = (kind, mid)
        if not self.wait(lambda: key in self.answers or self.closed, within_ms):
            raise TimeoutError(f"no answer to {kind} {mid}")
        if key not in self.answers:
            return {"closed": self.closed}
        return {"reasons": self.answers.pop(key)}

    def do_subscribe(
        self,
        filters,
        no_local=False,
        as_published=False,
        handling=0,
        identifier=None,
        user=None,
        within_ms=10_000,
    ):
        about = None
        if self.client.protocol == mqtt.MQTTv5:
            wanted = [(f, SubscribeOptions(q, no_local, as_published, handling)) for f, q in filters]
            about = Properties(PacketTypes.SUBSCRIBE)
            if identifier is not None:
                about.SubscriptionIdentifier = identifier
            if user is not None:
                about.UserProperty = [tuple(pair) for pair in user]
        else:
            wanted = [(f, q) for f, q in filters]
        _, mid = self.client.subscribe(wanted, properties=about)
        return self.answer("subscribe", mid, within_ms)

    def do_unsubscribe(self, filters, within_ms=10_000):
        _, mid = self.client.unsubscribe(filters)
        return self.answer("unsubscribe", mid, within_ms)

    def do_publish(self, topic, body="", qos=0, retain=False, properties=None, within_ms=10_000):
        arguments = {}
        if self.client.protocol == mqtt.MQTTv5:
            arguments["properties"] = properties_in(properties)
        info = self.client.publish(topic, to_bytes(body), qos, retain, **arguments)
        return self.answer("publish", info.mid, within_ms)

    def do_send(self, topic, bodies, qos=1):
        """Publishes without waiting for answers, which `do_sent` does."""
        return {"mids": [self.client.publish(topic, to_bytes(body), qos).mid for body in bodies]}

    def do_sent(self, mids, within_ms=10_000):
        """The reasons of these publishes, once all are answered."""
        keys = [("publish", mid) for mid in mids]
        if not self.wait(lambda: all(key in self.answers for key in keys), within_ms):
            raise TimeoutError(f"not all answered: {self.answers}, closed {self.closed}")
        return {"reasons": [self.answers.pop(key)[0] for key in keys]}

    def do_take(self, count=1, within_ms=10_000):
        """Up to `count` messages, as soon as that many are there or the time is over."""
        self.wait(lambda: len(self.messages) >= count, within_ms)
        with self.changed:
            taken, self.messages = self.messages[:count], self.messages[count:]
        return {"messages": taken}

    def do_ack(self, mid, qos=1):
        self.client.ack(mid, qos)

    def do_wait_closed(self, within_ms=10_000):
        started = time.monotonic()
        if not self.wait(lambda: self.closed, within_ms):
            return {"closed": None}
        return {"closed": self.closed, "after_ms": int((time.monotonic() - started) * 1000)}

    def do_disconnect(self, within_ms=10_000):
        self.client.disconnect()
        self.wait(lambda: self.closed, within_ms)
        self.client.loop_stop()
        return {"closed": self.closed}


serve(Agent())
