"""Publishes numbered persistent messages with pika, with confirms, until the connection is gone.

Arguments: host port name exchange key window user password bytes. Each body is "<name> <number>", with
blanks up to so many bytes; every number that the broker confirmed is written to stdout as it comes,
`blocked` and `unblocked` to stderr. Leaves with 0 when the broker went away, with 1 when it refused a
message.
"""

import sys

import pika

host, port, name, exchange, key, window, user, password, size = sys.argv[1:10]
window = int(window)
properties = pika.BasicProperties(delivery_mode=2)


class Load:
    """The next number, what is confirmed, and why it ended."""

    sent = 0
    confirmed = 0
    open = set()
    failure = None
    channel = None

    def fill(self):
        while len(self.open) < window and self.channel.is_open:
            self.sent += 1
            self.open.add(self.sent)
            body = f"{name} {self.sent}".ljust(int(size))
            self.channel.basic_publish(exchange, key, body, properties)

    def on_confirm(self, frame):
        tag, multiple = frame.method.delivery_tag, frame.method.multiple
        if not isinstance(frame.method, pika.spec.Basic.Ack):
            self.failure = f"nack of {tag}"
            connection.ioloop.stop()
            return
        done = sorted(n for n in self.open if n <= tag) if multiple else [tag]
        self.open.difference_update(done)
        sys.stdout.write("".join(f"{n}\n" for n in done))
        sys.stdout.flush()
        self.fill()

    def on_channel(self, channel):
        self.channel = channel
        channel.add_on_close_callback(self.on_channel_closed)
        channel.confirm_delivery(self.on_confirm, callback=lambda _: self.fill())

    def on_channel_closed(self, _channel, reason):
        if isinstance(reason, pika.exceptions.ChannelClosedByBroker):
            self.failure = repr(reason)
            connection.ioloop.stop()


load = Load()


def on_open_error(_connection, error):
    load.failure = repr(error)
    connection.ioloop.stop()


connection = pika.SelectConnection(
    pika.ConnectionParameters(host, int(port), "/", pika.PlainCredentials(user, password)),
    on_open_callback=lambda c: c.channel(on_open_callback=load.on_channel),
    on_open_error_callback=on_open_error,
    on_close_callback=lambda c, _reason: c.ioloop.stop(),
)
for add, word in (
    (connection.add_on_connection_blocked_callback, "blocked"),
    (connection.add_on_connection_unblocked_callback, "unblocked"),
):
    add(lambda _connection, _frame, word=word: print(word, file=sys.stderr))
connection.ioloop.start()
print(f"sent {load.sent}", file=sys.stderr)
if load.failure:
    sys.exit(load.failure)
