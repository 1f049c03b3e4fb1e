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

const nothing = () => ({});

async function open() {
  channel = await connection.createConfirmChannel();
  channel.on('error', (error) => console.error(error));
}

/** Runs an operation; a channel that the broker closes is its answer, and another is opened. */
async function asked(operation) {
  try {
    return await operation();
  } catch (error) {
    if (error.code === undefined) throw error;
    await open();
    return { channel_closed: { code: error.code, text: error.message } };
  }
}

await serve({
  async connect({ host, port, user = 'guest', password = 'guest', vhost = '/', mechanism = 'plain' }) {
    const to = { protocol: 'amqp', hostname: host, port, vhost };
    const credentials = amqp.credentials[mechanism](user, password);
    try {
      connection = await amqp.connect(to, { credentials });
    } catch (error) {
      return { refused: { text: String(error) } };
    }
    connection.on('error', (error) => console.error(error));
    await open();
  },
  async queue_declare({ queue = '', passive = false, auto_delete, ...options }) {
    return await asked(async () => {
      const ok = passive
        ? await channel.checkQueue(queue)
        : await channel.assertQueue(queue, { ...options, autoDelete: auto_delete });
      return { queue: ok.queue, messages: ok.messageCount, consumers: ok.consumerCount };
    });
  },
  async exchange_declare({ exchange, exchange_type, passive = false, ...options }) {
    return await asked(async () => {
      if (passive) await channel.checkExchange(exchange);
      else await channel.assertExchange(exchange, exchange_type, options);
    });
  },
  async exchange_bind({ destination, source, key = '', arguments: more }) {
    return await asked(() => channel.bindExchange(destination, source, key, more).then(nothing));
  },
  async queue_bind({ queue, exchange, key = '', arguments: more }) {
    return await asked(() => channel.bindQueue(queue, exchange, key, more).then(nothing));
  },
  async publish({ key, exchange = '', body = '', properties, mandatory = false }) {
    const options = { ...propertiesIn(properties), mandatory };
    return await new Promise((resolve) =>
      channel.publish(exchange, key, toBytes(body), options, (error) =>
        resolve(error ? { nacked: true } : { confirmed: true }),
      ),
    );
  },
  async qos({ prefetch, whole_channel = false }) {
    await channel.prefetch(prefetch, whole_channel);
  },
  async consume({ queue, no_ack = false, exclusive = false, arguments: more }) {
    const consume = () => channel.consume(
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
      { noAck: no_ack, exclusive, arguments: more },
    );
    return await asked(async () => ({ consumer: (await consume()).consumerTag }));
  },
  async take({ count = 1, within_ms = 10_000 }) {
    return { messages: await inbox.take(count, within_ms) };
  },
  async ack({ tag, multiple = false }) {
    channel.ack({ fields: { deliveryTag: tag } }, multiple);
  },
  async nack({ tag, multiple = false, requeue = true }) {
    channel.nack({ fields: { deliveryTag: tag } }, multiple, requeue);
  },
  async close() {
    await connection.close();
  },
});
