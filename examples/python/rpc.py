"""A client calls a function of a server over AMQP, without a queue for the answers.

The client consumes from the pseudo-queue `amq.rabbitmq.reply-to` (without acknowledgements) and names it in
`reply_to`. What the server sees there is an address of that client's channel; it publishes to the default exchange
with it as routing key. Nothing is declared for the answer, nothing is stored, and nothing has to be deleted.

Needs pika 1. Run a node with `anabranch serve --dev`, then this file. ANABRANCH_AMQP (URI) names another node.
"""

import os
import threading
import time

import pika

AMQP = os.environ.get("ANABRANCH_AMQP", "amqp://guest:guest@127.0.0.1:5672/%2f")
QUEUE = "example-squares-py"
DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
WAIT_S = 30


def on_call(channel, method, call, body):
    """The function: answers the square of a number, to whoever asked."""
    square = int(body) ** 2
    print(f"server: the square of {body.decode()} is {square}")
    channel.basic_publish(
        "",
        routing_key=call.reply_to,
        body=str(square),
        properties=pika.BasicProperties(correlation_id=call.correlation_id),
    )
    channel.basic_ack(method.delivery_tag)


class Client:
    """Calls, one at a time."""

    def __init__(self):
        self.connection = pika.BlockingConnection(pika.URLParameters(AMQP))
        self.channel = self.connection.channel()
        self.answers = {}
        # An answer goes to the channel that asked: this consumer comes first.
        self.channel.basic_consume(DIRECT_REPLY_TO, self.on_answer, auto_ack=True)

    def on_answer(self, _channel, _method, answer, body):
        self.answers[answer.correlation_id] = int(body)

    def square(self, number):
        call = f"call-{number}"
        self.channel.basic_publish(
            "",
            routing_key=QUEUE,
            body=str(number),
            properties=pika.BasicProperties(
                reply_to=DIRECT_REPLY_TO,
                correlation_id=call,
                expiration=str(WAIT_S * 1000),
            ),
        )
        deadline = time.monotonic() + WAIT_S
        while call not in self.answers:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{call} was not answered")
            self.connection.process_data_events(time_limit=left_s)
        return self.answers.pop(call)


def main():
    server = pika.BlockingConnection(pika.URLParameters(AMQP))
    functions = server.channel()
    # The queue of calls goes with its last server.
    functions.queue_declare(QUEUE, auto_delete=True)
    functions.basic_consume(QUEUE, on_call)
    serving = threading.Thread(target=functions.start_consuming)
    serving.start()

    client = Client()
    try:
        for number in [3, 7, 12]:
            print(f"client: {number} squared is {client.square(number)}")
    finally:
        client.connection.close()
        server.add_callback_threadsafe(functions.stop_consuming)
        serving.join(WAIT_S)
    server.close()


if __name__ == "__main__":
    main()
