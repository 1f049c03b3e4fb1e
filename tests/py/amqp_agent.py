"""pika's blocking connection, driven line by line (see agent.py): AMQP 0-9-1."""

import datetime
import decimal
import ssl
import time

import pika
from pika import exceptions

from agent import from_bytes, serve, to_bytes

PROPERTIES = [
    "content_type",
    "content_encoding",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
]


def value_in(value):
    """A field value from the test's JSON."""
    if isinstance(value, dict) and set(value) == {"hex"}:
        return bytes.fromhex(value["hex"])
    if isinstance(value, dict) and set(value) == {"time_s"}:
        return datetime.datetime.fromtimestamp(value["time_s"], datetime.timezone.utc)
    if isinstance(value, dict):
        return {name: value_in(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [value_in(inner) for inner in value]
    return value


def value_out(value):
    """The test's JSON from a field value."""
    if isinstance(value, (bytes, bytearray)):
        return from_bytes(value)
    if isinstance(value, datetime.datetime):
        return int(value.replace(tzinfo=datetime.timezone.utc).timestamp())
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, dict):
        return {name: value_out(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [value_out(inner) for inner in value]
    return value


def properties_in(described):
    described = dict(described or {})
    if "headers" in described:
        described["headers"] = value_in(described["headers"])
    return pika.BasicProperties(**described)


def properties_out(properties):
    described = {}
    for name in PROPERTIES:
        value = getattr(properties, name)
        if value is not None:
            described[name] = value
    if properties.headers is not None:
        described["headers"] = value_out(properties.headers)
    return described


def closed(error):
    """What the broker said when it closed a channel or the connection."""
    if isinstance(error, exceptions.ChannelClosedByBroker):
        return {"channel_closed": {"code": error.reply_code, "text": error.reply_text}}
    if isinstance(error, exceptions.ConnectionClosedByBroker):
        return {"connection_closed": {"code": error.reply_code, "text": error.reply_text}}
    if isinstance(error, (exceptions.ConnectionClosed, exceptions.StreamLostError)):
        return {"connection_closed": {"code": 0, "text": str(error)}}
    if isinstance(error, exceptions.ConnectionWrongStateError):
        return {"connection_closed": {"code": 0, "text": "already closed"}}
    return None


class Agent:
    """One connection, any number of channels named by the test (default "1")."""

    def __init__(self):
        self.connection = None

    def do_connect(
        self,
        host,
        port,
        user="guest",
        password="guest",
        vhost="/",
        heartbeat_s=None,
        tls=None,
        within_ms=10_000,
    ):
        """`tls` names `ca`, and `certificate` and `key` if any."""
        self.channels = {}
        self.messages = []
        self.cancelled = []
        self.returned = []
        self.blocked = []
        secured = None
        if tls is not None:
            context = ssl.create_default_context(cafile=tls["ca"])
            if "certificate" in tls:
                context.load_cert_chain(tls["certificate"], tls["key"])
            secured = pika.SSLOptions(context, host)
        parameters = pika.ConnectionParameters(
            host=host,
            port=port,
            virtual_host=vhost,
            credentials=pika.PlainCredentials(user, password),
            heartbeat=heartbeat_s,
            ssl_options=secured,
            socket_timeout=within_ms / 1000,
            stack_timeout=within_ms / 1000,
            blocked_connection_timeout=within_ms / 1000,
        )
        try:
            self.connection = pika.BlockingConnection(parameters)
        except exceptions.ConnectionClosedByBroker as error:
            return {"refused": {"code": error.reply_code, "text": error.reply_text}}
        except exceptions.ProbableAuthenticationError as error:
            return {"refused": {"code": 403, "text": str(error)}}
        except exceptions.ProbableAccessDeniedError as error:
            return {"refused": {"code": 530, "text": str(error)}}
        except exceptions.AMQPConnectionError as error:
            return {"refused": {"code": 0, "text": repr(error)}}
        self.connection.add_on_connection_blocked_callback(
            lambda _connection, _frame: self.blocked.append(True)
        )
        self.connection.add_on_connection_unblocked_callback(
            lambda _connection, _frame: self.blocked.append(False)
        )
        impl = self.connection._impl
        return {
            "server": {k: value_out(v) for k, v in impl.server_properties.items()},
            "frame_max": impl.params.frame_max,
            "channel_max": impl.params.channel_max,
            "heartbeat_s": impl.params.heartbeat,
        }

    def channel(self, name):
        known = self.channels.get(name)
        if known is not None and known.is_open:
            return known
        opened = self.connection.channel()
        opened.add_on_cancel_callback(
            lambda frame: self.cancelled.append(frame.method.consumer_tag)
        )
        opened.add_on_return_callback(self.on_return)
        self.channels[name] = opened
        return opened

    def on_return(self, _channel, method, properties, body):
        self.returned.append(
            {
                "code": method.reply_code,
                "text": method.reply_text,
                "exchange": method.exchange,
                "key": method.routing_key,
                "body": from_bytes(body),
            }
        )

    def ask(self, channel, operation):
        """Runs `operation(channel)`; a close by the broker is its answer."""
        try:
            return operation(self.channel(channel))
        except exceptions.AMQPError as error:
            described = closed(error)
            if described is None:
                raise
            return described

    def do_queue_declare(self, queue="", channel="1", **options):
        def operation(ch):
            ok = ch.queue_declare(queue, **options).method
            return {"queue": ok.queue, "messages": ok.message_count, "consumers": ok.consumer_count}

        return self.ask(channel, operation)

    def do_exchange_declare(self, exchange, channel="1", **options):
        return self.ask(channel, lambda ch: {"ok": bool(ch.exchange_declare(exchange, **options))})

    def do_exchange_delete(self, exchange, channel="1"):
        return self.ask(channel, lambda ch: {"ok": bool(ch.exchange_delete(exchange))})

    def do_queue_bind(self, queue, exchange, key="", channel="1", arguments=None):
        return self.ask(
            channel,
            lambda ch: {"ok": bool(ch.queue_bind(queue, exchange, key, arguments=arguments))},
        )

    def do_queue_unbind(self, queue, exchange, key="", channel="1", arguments=None):
        return self.ask(
            channel,
            lambda ch: {"ok": bool(ch.queue_unbind(queue, exchange, key, arguments=arguments))},
        )

    def do_exchange_bind(self, destination, source, key="", channel="1", arguments=None):
        return self.ask(
            channel,
            lambda ch: {"ok": bool(ch.exchange_bind(destination, source, key, arguments))},
        )

    def do_exchange_unbind(self, destination, source, key="", channel="1", arguments=None):
        return self.ask(
            channel,
            lambda ch: {"ok": bool(ch.exchange_unbind(destination, source, key, arguments))},
        )

    def do_queue_purge(self, queue, channel="1"):
        return self.ask(
            channel, lambda ch: {"messages": ch.queue_purge(queue).method.message_count}
        )

    def do_queue_delete(self, queue, channel="1", **options):
        return self.ask(
            channel, lambda ch: {"messages": ch.queue_delete(queue, **options).method.message_count}
        )

    def do_qos(self, prefetch, channel="1", whole_channel=False):
        return self.ask(
            channel,
            lambda ch: {
                "ok": ch.basic_qos(prefetch_count=prefetch, global_qos=whole_channel) is None
            },
        )

    def do_recover(self, channel="1"):
        return self.ask(channel, lambda ch: {"ok": ch.basic_recover(requeue=True) is None})

    def do_tx_select(self, channel="1"):
        return self.ask(channel, lambda ch: {"ok": bool(ch.tx_select())})

    def do_tx_commit(self, channel="1"):
        return self.ask(channel, lambda ch: {"ok": bool(ch.tx_commit())})

    def do_tx_rollback(self, channel="1"):
        return self.ask(channel, lambda ch: {"ok": bool(ch.tx_rollback())})

    def do_confirm(self, channel="1"):
        return self.ask(channel, lambda ch: {"ok": ch.confirm_delivery() is None})

    def do_publish(
        self, key, exchange="", body="", properties=None, mandatory=False, channel="1"
    ):
        """Publishes; on a channel in confirm mode it waits for the broker's verdict."""

        def operation(ch):
            confirming = ch._delivery_confirmation
            try:
                ch.basic_publish(
                    exchange, key, to_bytes(body), properties_in(properties), mandatory
                )
            except exceptions.UnroutableError as error:
                returned = error.messages[0].method
                return {"returned": {"code": returned.reply_code, "text": returned.reply_text}}
            except exceptions.NackError:
                return {"nacked": True}
            return {"confirmed": confirming}

        return self.ask(channel, operation)

    def do_consume(
        self, queue, no_ack=False, channel="1", tag=None, exclusive=False, arguments=None
    ):
        def deliver(_channel, method, properties, body):
            self.messages.append(
                {
                    "tag": method.delivery_tag,
                    "redelivered": method.redelivered,
                    "exchange": method.exchange,
                    "key": method.routing_key,
                    "consumer": method.consumer_tag,
                    "properties": properties_out(properties),
                    "body": from_bytes(body),
                }
            )

        def operation(ch):
            return {
                "consumer": ch.basic_consume(
                    queue,
                    deliver,
                    auto_ack=no_ack,
                    exclusive=exclusive,
                    consumer_tag=tag,
                    arguments=value_in(arguments),
                )
            }

        return self.ask(channel, operation)

    def do_cancel(self, consumer, channel="1"):
        return self.ask(channel, lambda ch: {"pending": len(ch.basic_cancel(consumer))})

    def do_get(self, queue, no_ack=False, channel="1"):
        def operation(ch):
            method, properties, body = ch.basic_get(queue, auto_ack=no_ack)
            if method is None:
                return {"empty": True}
            return {
                "tag": method.delivery_tag,
                "redelivered": method.redelivered,
                "exchange": method.exchange,
                "key": method.routing_key,
                "left": method.message_count,
                "properties": properties_out(properties),
                "body": from_bytes(body),
            }

        return self.ask(channel, operation)

    def do_ack(self, tag, multiple=False, channel="1"):
        return self.ask(channel, lambda ch: {"ok": ch.basic_ack(tag, multiple) is None})

    def do_nack(self, tag, multiple=False, requeue=True, channel="1"):
        return self.ask(channel, lambda ch: {"ok": ch.basic_nack(tag, multiple, requeue) is None})

    def do_reject(self, tag, requeue=True, channel="1"):
        return self.ask(channel, lambda ch: {"ok": ch.basic_reject(tag, requeue) is None})

    def pump(self, condition, within_ms):
        """Serves the connection until `condition()` holds, it closes, or the time is over."""
        deadline = time.monotonic() + within_ms / 1000
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self.connection.process_data_events(time_limit=min(left, 0.05))

    def do_take(self, count=1, within_ms=10_000):
        """Up to `count` messages, as soon as that many are there or the time is over."""
        try:
            self.pump(lambda: len(self.messages) >= count, within_ms)
        except exceptions.AMQPError as error:
            described = closed(error)
            if described is None:
                raise
            return {"messages": self.messages, **described}
        taken, self.messages = self.messages[:count], self.messages[count:]
        return {"messages": taken}

    def do_answer(self, queue, within_ms=20_000):
        """Answers the next request in `queue`: its body in capitals, to whom and as the request says."""
        request = {}

        def operation(ch):
            tag = ch.basic_consume(
                queue,
                lambda _channel, method, about, body: request.update(
                    method=method, about=about, body=body
                ),
            )
            self.pump(lambda: request, within_ms)
            ch.basic_cancel(tag)
            about = request["about"]
            ch.basic_publish(
                "",
                about.reply_to,
                request["body"].upper(),
                pika.BasicProperties(correlation_id=about.correlation_id),
            )
            ch.basic_ack(request["method"].delivery_tag)
            return {"reply_to": about.reply_to}

        return self.ask("1", operation)

    def do_take_returned(self, count=1, within_ms=10_000):
        self.pump(lambda: len(self.returned) >= count, within_ms)
        taken, self.returned = self.returned[:count], self.returned[count:]
        return {"returned": taken}

    def do_wait_blocked(self, blocked, within_ms=10_000):
        """Waits until the broker's last word about the connection is this: held up, or free again."""
        self.pump(lambda: self.blocked[-1:] == [blocked], within_ms)
        return {"told": self.blocked}

    def do_wait_lost(self, channel="1", within_ms=10_000):
        """Waits until the broker cancels a consumer, closes the channel or the connection."""
        watched = self.channels[channel]
        started = time.monotonic()
        try:
            self.pump(lambda: self.cancelled or not watched.is_open, within_ms)
        except exceptions.AMQPError as error:
            described = closed(error)
            if described is None:
                raise
            return {**described, "after_ms": int((time.monotonic() - started) * 1000)}
        after = {"after_ms": int((time.monotonic() - started) * 1000)}
        if self.cancelled:
            return {"cancelled": self.cancelled.pop(0), **after}
        if not watched.is_open:
            reason = watched._closing_reason
            return {**(closed(reason) or {"channel_closed": str(reason)}), **after}
        return {"lost": None}

    def do_close_channel(self, channel="1"):
        return self.ask(channel, lambda ch: {"ok": ch.close() is None})

    def do_close(self):
        try:
            self.connection.close()
        except exceptions.AMQPError as error:
            return {"closed": repr(error)}


serve(Agent())
