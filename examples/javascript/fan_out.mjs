// One published message reaches several queues and several MQTT subscribers.
//
// An exchange of type fanout leads to every queue bound to it. It is bound to `amq.topic` too, the exchange of
// all MQTT subscriptions: so devices that subscribe to `alarm/#` get what is published with the routing key
// `alarm.plant-7`. A shard stores it once, however many take it.
//
// Needs amqplib and mqtt (`npm install` in this folder). Run a node with `anabranch serve --dev`, then
// `node fan_out.mjs`. ANABRANCH_MQTT (host:port) and ANABRANCH_AMQP (URI) name another node.
import { on } from 'node:events';
import amqp from 'amqplib';
import mqtt from 'mqtt';

const { ANABRANCH_MQTT: MQTT = '127.0.0.1:1883' } = process.env;
const { ANABRANCH_AMQP: AMQP = 'amqp://guest:guest@127.0.0.1:5672/%2f' } = process.env;
const EXCHANGE = 'example-alarms-js';
const QUEUES = ['example-alarms-log-js', 'example-alarms-mail-js'];
const DEVICES = ['example-siren-js', 'example-display-js'];

/** Connects a device that listens to alarms. */
async function startDevice(name) {
  const client = await mqtt.connectAsync(`mqtt://${MQTT}`, { protocolVersion: 5, clientId: name });
  const alarms = on(client, 'message');
  await client.subscribeAsync('alarm/#', { qos: 1 });
  return { name, client, alarms };
}

setTimeout(() => {
  throw new Error('not done within 30 s');
}, 30_000).unref();

const application = await amqp.connect(AMQP);
const channel = await application.createConfirmChannel();
await channel.assertExchange(EXCHANGE, 'fanout', { durable: true });
await channel.bindExchange('amq.topic', EXCHANGE, '');
for (const queue of QUEUES) {
  await channel.assertQueue(queue, { durable: true });
  await channel.bindQueue(queue, EXCHANGE, '');
}
const devices = await Promise.all(DEVICES.map(startDevice));

channel.publish(EXCHANGE, 'alarm.plant-7', Buffer.from('pressure is high'), {
  contentType: 'text/plain',
  persistent: true,
});
await channel.waitForConfirms();
console.log('application: published one alarm');

for (const queue of QUEUES) {
  const delivery = await channel.get(queue);
  if (!delivery) throw new Error(`${queue} got nothing`);
  console.log(`queue ${queue}: ${delivery.content} (${delivery.fields.routingKey})`);
  channel.ack(delivery);
}
for (const { name, client, alarms } of devices) {
  const { value: alarm } = await alarms.next();
  const [topic, payload] = alarm;
  console.log(`device ${name}: ${payload} (${topic})`);
  await client.endAsync();
}

for (const queue of QUEUES) await channel.deleteQueue(queue);
await channel.deleteExchange(EXCHANGE);
await application.close();
