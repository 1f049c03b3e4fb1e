// An application sends a command over AMQP; a device gets it over MQTT; its answer comes back over AMQP.
//
// The application publishes to the exchange `amq.topic`, where every MQTT subscription is bound: the routing
// key `command.pump-7.start` is the topic `command/pump-7/start`. `reply_to` and `correlation_id` arrive as
// MQTT 5's Response Topic (`$amqp/<vhost>/q/<queue>`, which stands for the application's queue) and
// Correlation Data. So a device answers as to any other request, and knows nothing of AMQP.
//
// Needs amqplib and mqtt (`npm install` in this folder). Run a node with `anabranch serve --dev`, then
// `node command_to_device.mjs`. ANABRANCH_MQTT (host:port) and ANABRANCH_AMQP (URI) name another node.
import { on } from 'node:events';
import amqp from 'amqplib';
import mqtt from 'mqtt';

const { ANABRANCH_MQTT: MQTT = '127.0.0.1:1883' } = process.env;
const { ANABRANCH_AMQP: AMQP = 'amqp://guest:guest@127.0.0.1:5672/%2f' } = process.env;

/** Does what the command says and answers where it asks for the answer. */
async function obey(device, [topic, payload, { properties }]) {
  console.log(`device: ${payload} on ${topic}`);
  console.log(`device: content type ${properties.contentType}`);
  console.log(`device: user properties ${JSON.stringify(properties.userProperties)}`);
  await device.publishAsync(properties.responseTopic, '{"running": true}', {
    qos: 1,
    properties: {
      contentType: 'application/json',
      correlationData: properties.correlationData,
    },
  });
}

/** Publishes one command. `mandatory` asks to have it back when nobody listens. */
async function sendCommand(channel, answers) {
  channel.on('return', () => {
    throw new Error('nobody listens to the command');
  });
  channel.publish('amq.topic', 'command.pump-7.start', Buffer.from('{"rpm": 1200}'), {
    contentType: 'application/json',
    persistent: true,
    headers: { priority: 'high' },
    replyTo: answers,
    correlationId: 'start-1',
    mandatory: true,
  });
  await channel.waitForConfirms();
  console.log('application: the command has a taker');
}

setTimeout(() => {
  throw new Error('not done within 30 s');
}, 30_000).unref();

const device = await mqtt.connectAsync(`mqtt://${MQTT}`, {
  protocolVersion: 5,
  clientId: 'example-pump-7-js',
});
const commands = on(device, 'message');
// Whatever is published after this reaches the device.
await device.subscribeAsync('command/pump-7/#', { qos: 1 });
console.log('device: listens to command/pump-7/#');

const application = await amqp.connect(AMQP);
const channel = await application.createConfirmChannel();
// The server finds a name for the queue of answers, and it goes with the connection.
const { queue: answers } = await channel.assertQueue('', { exclusive: true });
const answered = new Promise((answer) => {
  channel.consume(answers, answer, { noAck: true });
});
await sendCommand(channel, answers);

const { value: command } = await commands.next();
await obey(device, command);

const { content, properties } = await answered;
console.log(`application: ${content} answers ${properties.correlationId}`);
await application.close();
await device.endAsync();
