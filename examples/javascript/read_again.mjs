// What a device publishes is kept in a stream; an application reads all of it, a device from where it likes.
//
// The stream is bound to `amq.topic` like a queue, but keeps what was read: each reader has a place of its own. Here
// the application asks for `x-stream-offset` `first`, the device subscribes to `$stream/<name>` from offset 1 on.
//
// Needs amqplib and mqtt (`npm install` in this folder). Run a node with `anabranch serve --dev`, then
// `node read_again.mjs`. ANABRANCH_MQTT (host:port) and ANABRANCH_AMQP (URI) name another node.
import amqp from 'amqplib';
import mqtt from 'mqtt';

const { ANABRANCH_MQTT: MQTT = '127.0.0.1:1883' } = process.env;
const { ANABRANCH_AMQP: AMQP = 'amqp://guest:guest@127.0.0.1:5672/%2f' } = process.env;
const STREAM = 'example-history-js';
const READINGS = ['21.4', '21.6', '21.9'];

const connected = (clientId) => mqtt.connectAsync(`mqtt://${MQTT}`, { protocolVersion: 5, clientId });

/** Publishes all readings with QoS 1 and waits until each is safe. */
async function publishReadings() {
  const device = await connected('example-sensor-8-js');
  for (const reading of READINGS) await device.publishAsync('plant/8/temp', reading, { qos: 1 });
  console.log(`device: all ${READINGS.length} are acknowledged`);
  await device.endAsync();
}

/**
 * The application: from the first message on. A prefetch count and acknowledgements are needed; they only say how much
 * may be on the way.
 */
async function readAll(channel) {
  await channel.prefetch(10);
  let left = READINGS.length;
  let allRead;
  const done = new Promise((resolve) => (allRead = resolve));
  const first = { arguments: { 'x-stream-offset': 'first' } };
  const read = (delivery) => {
    const offset = delivery.properties.headers['x-stream-offset'];
    console.log(`application: ${delivery.content} is offset ${offset}`);
    channel.ack(delivery);
    left -= 1;
    if (left === 0) allRead();
  };
  const { consumerTag } = await channel.consume(STREAM, read, first);
  await done;
  await channel.cancel(consumerTag);
}

/** A device: from an offset on. Each message tells where it was, so that the device can go on behind it. */
async function readFrom(offset) {
  const device = await connected('example-reader-8-js');
  let left = READINGS.length - offset;
  let allRead;
  const done = new Promise((resolve) => (allRead = resolve));
  device.on('message', (topic, payload, { properties }) => {
    console.log(`device: ${payload} is offset ${properties.userProperties['x-stream-offset']} on ${topic}`);
    left -= 1;
    if (left === 0) allRead();
  });
  const properties = { userProperties: { offset: String(offset) } };
  await device.subscribeAsync(`$stream/${STREAM}`, { qos: 1, properties });
  await done;
  await device.endAsync();
}

setTimeout(() => {
  throw new Error('not done within 30 s');
}, 30_000).unref();

const application = await amqp.connect(AMQP);
const channel = await application.createChannel();
const kept = { 'x-queue-type': 'stream', 'x-max-age': '7D' };
await channel.assertQueue(STREAM, { durable: true, arguments: kept });
await channel.bindQueue(STREAM, 'amq.topic', 'plant.*.temp');

await publishReadings();
await readAll(channel);
await readFrom(1);

await channel.deleteQueue(STREAM);
await application.close();
