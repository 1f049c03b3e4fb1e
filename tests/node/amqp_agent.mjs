// amqplib, driven line by line (see agent.mjs): AMQP 0-9-1 with a confirm channel.
import amqp from 'amqplib';
import { Inbox, fromBytes, serve, toBytes } from './agent.mjs';

const NAMES = {
  content_type: 'contentType',
  content_encoding: 'contentEncoding',
  delivery_mode: 'deliveryMode',
  priority: 'priority',
  correlation_id: 'correlationId',
  reply_to: 'replyTo',
  expiration: 'expiration',
  message_id: 'messageId',
  timestamp: 'timestamp',
  type: 'type',
  user_id: 'userId',
  app_id: 'appId',
  headers: 'headers',
};

function valueIn(value) {
  if (Array.isArray(value)) return value.map(valueIn);
  if (value && typeof value === 'object') {
    if (Object.keys(value).join() === 'hex') return Buffer.from(value.hex, 'hex');
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, valueIn(v)]));
  }
  return value;
}

function valueOut(value) {
  if (Buffer.isBuffer(value)) return fromBytes(value);
  if (Array.isArray(value)) return value.map(valueOut);
  if (value && typeof value === 'object') {
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, valueOut(v)]));
  }
  return value;
}

function propertiesIn(described = {}) {
  return Object.fromEntries(
    Object.entries(described).map(([name, value]) => [NAMES[name], valueIn(value)]),
  );
}

function propertiesOut(properties) {
  const described = {};
  for (const [name, theirs] of Object.entries(NAMES)) {
    if (properties[theirs] !== undefined) described[name] = valueOut(properties[theirs]);
  }
  return described;
}

let connection;
let channel;
const inbox = new Inbox();

await serve({
  async connect({ host, port, user = 'guest', password = 'guest', vhost = '/' }) {
    connection = await amqp.connect({
      protocol: 'amqp',
      hostname: host,
      port,
      username: user,
      password,
      vhost,
    });
    connection.on('error', (error) => console.error(error));
    channel = await connection.createConfirmChannel();
    channel.on('error', (error) => console.error(error));
  },
  async queue_declare({ queue = '', ...options }) {
    const ok = await channel.assertQueue(queue, options);
    return { queue: ok.queue, messages: ok.messageCount, consumers: ok.consumerCount };
  },
  async queue_bind({ queue, exchange, key = '' }) {
    await channel.bindQueue(queue, exchange, key);
  },
  async publish({ key, exchange = '', body = '', properties, mandatory = false }) {
    const options = { ...propertiesIn(properties), mandatory };
    await new Promise((resolve, reject) =>
      channel.publish(exchange, key, toBytes(body), options, (error) =>
        error ? reject(error) : resolve(),
      ),
    );
    return { confirmed: true };
  },
  async consume({ queue, no_ack = false }) {
    const { consumerTag } = await channel.consume(
      queue,
      (message) =>
        message &&
        inbox.push({
          tag: message.fields.deliveryTag,
          redelivered: message.fields.redelivered,
          exchange: message.fields.exchange,
          key: message.fields.routingKey,
          properties: propertiesOut(message.properties),
          body: fromBytes(message.content),
        }),
      { noAck: no_ack },
    );
    return { consumer: consumerTag };
  },
  async take({ count = 1, within_ms = 10_000 }) {
    return { messages: await inbox.take(count, within_ms) };
  },
  async ack({ tag, multiple = false }) {
    channel.ack({ fields: { deliveryTag: tag } }, multiple);
  },
  async close() {
    await connection.close();
  },
});
