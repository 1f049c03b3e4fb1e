"""Consumes a queue with pika, acknowledging each message, until the connection is gone.

Arguments: host port queue prefetch user password. Each body is one line on stdout without its blanks at the end,
written before its acknowledgement is sent, with a `!` in front where the delivery was flagged as redelivered.
"""

import sys

import pika

host, port, queue, prefetch, user, password = sys.argv[1:7]
connection = pika.BlockingConnection(
    pika.ConnectionParameters(host, int(port), "/", pika.PlainCredentials(user, password))
)
channel = connection.channel()
channel.basic_qos(prefetch_count=int(prefetch))


def deliver(_channel, method, _properties, body):
    sys.stdout.write(("!" if method.redelivered else "") + body.decode().rstrip() + "\n")
    sys.stdout.flush()
    channel.basic_ack(method.delivery_tag)


channel.basic_consume(queue, deliver)
try:
    channel.start_consuming()
except (pika.exceptions.ConnectionClosed, pika.exceptions.StreamLostError) as error:
    print(f"gone: {error!r}", file=sys.stderr)
