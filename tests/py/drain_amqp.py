"""Takes everything out of a queue with pika, in order, acknowledging as it goes.

Arguments: host port queue user password. First it publishes a fence to the queue, confirmed; then it
consumes until the fence comes. Each body before the fence is one line on stdout without its blanks at
the end, with a `!` in front where the delivery was flagged as redelivered.
"""

import sys
import uuid

import pika

host, port, queue, user, password = sys.argv[1:6]
connection = pika.BlockingConnection(
    pika.ConnectionParameters(host, int(port), "/", pika.PlainCredentials(user, password))
)
channel = connection.channel()
channel.confirm_delivery()
fence = f"fence {uuid.uuid4()}".encode()
channel.basic_publish("", queue, fence, pika.BasicProperties(delivery_mode=2), mandatory=True)
channel.basic_qos(prefetch_count=500)
lines = []
for method, _properties, body in channel.consume(queue, inactivity_timeout=30):
    if method is None:
        sys.exit(f"nothing for 30 s after {len(lines)} messages, and no fence")
    if body == fence:
        channel.basic_ack(method.delivery_tag, multiple=True)
        break
    lines.append(("!" if method.redelivered else "") + body.decode().rstrip())
    if len(lines) % 100 == 0:
        channel.basic_ack(method.delivery_tag, multiple=True)
channel.cancel()
left = channel.queue_declare(queue, passive=True).method.message_count
connection.close()
sys.stdout.write("".join(line + "\n" for line in lines))
if left:
    sys.exit(f"{left} messages behind the fence")
