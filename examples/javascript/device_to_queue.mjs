// A device publishes its readings over MQTT; an application takes them from a durable queue over AMQP.
//
// The queue is bound to `amq.topic`, the exchange that MQTT publishes go to: nothing else connects the two.
// The topic `plant/7/temp` is the routing key `plant.7.temp`.
//
// Needs amqplib and mqtt (`npm install` in this folder). Run a node with `anabranch serve --dev`, then
// `node device_to_queue.mjs`. ANABRANCH_MQTT (host:port) and ANABRANCH_AMQP (URI) name another node.
import amqp from 'amqplib';
import mqtt from 'mqtt';

const { ANABRANCH_MQTT: MQTT = '127.0.0.1:1883' } = process.env;
const { ANABRANCH_AMQP: AMQP = 'amqp://guest:guest@127.0.0.1:5672/%2f' } = process.env;
const QUEUE = 'example-readings-js';
const READINGS = ['21.4', '21.6', '21.9'];

/** Publishes all readings with QoS 1 and waits until each is safe: a PUBACK comes after the sync. */
async function publishReadings() {
  const device = await mqtt.connectAsync(`mqtt://${MQTT}`, {
    protocolVersion: 5,
    clientId: 'example-sensor-7-js',
  });
  for (const reading of READINGS) {
    const properties = { contentType: 'text/plain' };
    await device.publishAsync('plant/7/temp', reading, { qos: 1, properties });
    console.log(`device: ${reading} on plant/7/temp is acknowledged`);
  }
  await device.endAsync();
}

setTimeout(() => {
  throw new Error('not done within 30 s');
}, 30_000).unref();

const application = await amqp.connect(AMQP);
const channel = await application.createChannel();
await channel.assertQueue(QUEUE, { durable: true });
await channel.bindQueue(QUEUE, 'amq.topic', 'plant.*.temp');
console.log(`application: queue ${QUEUE} takes plant.*.temp`);

// Nobody consumes yet: the queue keeps what the device says.
await publishReadings();

let left = READINGS.length;
let allTaken;
const done = new Promise((resolve) => (allTaken = resolve));
const { consumerTag } = await channel.consume(QUEUE, (delivery) => {
  const { routingKey } = delivery.fields;
  const { contentType } = delivery.properties;
  console.log(`application: ${delivery.content} on ${routingKey} (${contentType})`);
  channel.ack(delivery);
  left -= 1;
  if (left === 0) allTaken();
});
await done;
await channel.cancel(consumerTag);
await channel.deleteQueue(QUEUE);
await application.close();
