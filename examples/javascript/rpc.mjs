// A client calls a function of a server over AMQP, without a queue for the answers.
//
// The client consumes from the pseudo-queue `amq.rabbitmq.reply-to` (without acknowledgements) and names it in
// `reply_to`. What the server sees there is an address of that client's channel; it publishes to the default
// exchange with it as routing key. Nothing is declared for the answer, nothing is stored, and nothing has to be
// deleted.
//
// Needs amqplib (`npm install` in this folder). Run a node with `anabranch serve --dev`, then `node rpc.mjs`.
// ANABRANCH_AMQP (URI) names another node.
import { randomUUID } from 'node:crypto';
import amqp from 'amqplib';

const { ANABRANCH_AMQP: AMQP = 'amqp://guest:guest@127.0.0.1:5672/%2f' } = process.env;
const QUEUE = 'example-squares-js';
const DIRECT_REPLY_TO = 'amq.rabbitmq.reply-to';

/** The function: answers the square of a number, to whoever asked. */
async function serve(connection) {
  const channel = await connection.createChannel();
  // The queue of calls goes with its last server.
  await channel.assertQueue(QUEUE, { durable: false, autoDelete: true });
  await channel.consume(QUEUE, (call) => {
    const square = Number(call.content) ** 2;
    console.log(`server: the square of ${call.content} is ${square}`);
    const { replyTo, correlationId } = call.properties;
    channel.sendToQueue(replyTo, Buffer.from(String(square)), { correlationId });
    channel.ack(call);
  });
}

/** A client: `square(number)`, as often at once as one likes. */
class Client {
  #waiting = new Map();

  static async start(connection) {
    const client = new Client();
    client.channel = await connection.createChannel();
    // An answer goes to the channel that asked: this consumer comes first.
    await client.channel.consume(DIRECT_REPLY_TO, (answer) => client.#answered(answer), { noAck: true });
    return client;
  }

  #answered({ content, properties: { correlationId } }) {
    this.#waiting.get(correlationId)?.(Number(content));
    this.#waiting.delete(correlationId);
  }

  square(number) {
    const correlationId = randomUUID();
    return new Promise((answer) => {
      this.#waiting.set(correlationId, answer);
      const options = { replyTo: DIRECT_REPLY_TO, correlationId, expiration: 30_000 };
      this.channel.sendToQueue(QUEUE, Buffer.from(String(number)), options);
    });
  }
}

setTimeout(() => {
  throw new Error('not done within 30 s');
}, 30_000).unref();

const server = await amqp.connect(AMQP);
await serve(server);
const connection = await amqp.connect(AMQP);
const client = await Client.start(connection);
for (const number of [3, 7, 12]) {
  console.log(`client: ${number} squared is ${await client.square(number)}`);
}
await connection.close();
await server.close();
