// A device asks over MQTT; an application answers over AMQP; the device has the answer.
//
// The device asks as MQTT 5 says: with a Response Topic that it subscribes to, and Correlation Data. The
// application takes questions from a queue bound to `amq.topic`. It finds where to answer in `reply_to`, as
// `mqtt:<topic>`, and in the header `x-mqtt-response-topic`; it answers by publishing to `amq.topic` with that
// topic as routing key.
//
// Needs amqplib and mqtt (`npm install` in this folder). Run a node with `anabranch serve --dev`, then
// `node device_asks.mjs`. ANABRANCH_MQTT (host:port) and ANABRANCH_AMQP (URI) name another node.
import { on } from 'node:events';
import amqp from 'amqplib';
import mqtt from 'mqtt';

const { ANABRANCH_MQTT: MQTT = '127.0.0.1:1883' } = process.env;
const { ANABRANCH_AMQP: AMQP = 'amqp://guest:guest@127.0.0.1:5672/%2f' } = process.env;
const QUEUE = 'example-questions-js';
const ANSWERS = 'settings/meter-7/answers';
const SETTINGS = { interval: '60 s' };

/** A topic's levels are a routing key's words. (A `.` within a level would be written `%2E`.) */
function routingKey(topic) {
  return topic.replaceAll('/', '.');
}

/** Answers a question where it says. */
function answer(channel, question) {
  const { replyTo, headers, correlationId } = question.properties;
  console.log(`application: ${question.content} on ${question.fields.routingKey}`);
  console.log(`application: reply to ${replyTo}`);
  const key = routingKey(headers['x-mqtt-response-topic']);
  channel.publish('amq.topic', key, Buffer.from(SETTINGS[question.content]), {
    contentType: 'text/plain',
    correlationId,
  });
  channel.ack(question);
}

setTimeout(() => {
  throw new Error('not done within 30 s');
}, 30_000).unref();

const application = await amqp.connect(AMQP);
const channel = await application.createChannel();
await channel.assertQueue(QUEUE, { durable: true });
await channel.bindQueue(QUEUE, 'amq.topic', 'settings.get');
const { consumerTag } = await channel.consume(QUEUE, (question) => answer(channel, question));

const device = await mqtt.connectAsync(`mqtt://${MQTT}`, {
  protocolVersion: 5,
  clientId: 'example-meter-7-js',
});
const answers = on(device, 'message');
// First listen to answers, then ask.
await device.subscribeAsync(ANSWERS, { qos: 1 });
console.log('device: asks for its interval');
await device.publishAsync('settings/get', 'interval', {
  qos: 1,
  properties: { responseTopic: ANSWERS, correlationData: Buffer.from('question-1') },
});

const { value: arrived } = await answers.next();
const [, payload, { properties }] = arrived;
console.log(`device: ${payload} answers ${properties.correlationData}`);
await device.endAsync();
await channel.cancel(consumerTag);
await channel.deleteQueue(QUEUE);
await application.close();
