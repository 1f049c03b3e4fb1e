// Several workers share one queue, and yet each device's messages are handled in their order, one at a time.
//
// The queue is declared with `x-subscription-mode: key_shared`. Messages with the same key go to the same worker
// as long as one of them is not acknowledged; other keys go to other workers. The key is the header `x-key`, over
// MQTT the user property of that name; without it, it is the routing key or topic. Here a device publishes to two
// topics, so it names itself as the key.
//
// The same among MQTT subscribers: they subscribe to `$share/workers/reading/#`, and the group has its mode from
//   anabranch policy set workers --applies-to groups --pattern '^workers$' --mode key_shared
//
// Needs amqplib and mqtt (`npm install` in this folder). Run a node with `anabranch serve --dev`, then
// `node key_shared_workers.mjs`. ANABRANCH_MQTT (host:port) and ANABRANCH_AMQP (URI) name another node.
import { setTimeout as sleep } from 'node:timers/promises';
import amqp from 'amqplib';
import mqtt from 'mqtt';

const { ANABRANCH_MQTT: MQTT = '127.0.0.1:1883' } = process.env;
const { ANABRANCH_AMQP: AMQP = 'amqp://guest:guest@127.0.0.1:5672/%2f' } = process.env;
const QUEUE = 'example-work-js';
const WORKERS = ['worker-1', 'worker-2', 'worker-3'];
const DEVICES = ['pump-1', 'pump-2', 'pump-3', 'pump-4', 'pump-5', 'pump-6'];
const READINGS = 5;

/** What the workers did, written down as they do it. */
class Ledger {
  order = new Map(DEVICES.map((device) => [device, []]));
  served = new Map(WORKERS.map((worker) => [worker, new Set()]));
  #busy = new Map();
  #left = DEVICES.length * READINGS;
  #allDone;
  done = new Promise((done) => (this.#allDone = done));

  begin(worker, device, number) {
    const other = this.#busy.get(device) ?? worker;
    if (other !== worker) throw new Error(`${device} is at ${other} and ${worker} at once`);
    this.#busy.set(device, worker);
    this.order.get(device).push(number);
    this.served.get(worker).add(device);
  }

  end(device) {
    this.#busy.delete(device);
    this.#left -= 1;
    if (this.#left === 0) this.#allDone();
  }
}

/** One worker: holds up to four messages, and handles one after the other. */
async function startWorker(name, ledger) {
  const connection = await amqp.connect(AMQP);
  const channel = await connection.createChannel();
  await channel.prefetch(4);
  let before = Promise.resolve();
  await channel.consume(QUEUE, (delivery) => {
    before = before.then(async () => {
      const device = delivery.properties.headers['x-key'];
      ledger.begin(name, device, Number(delivery.content));
      await sleep(10); // the work
      channel.ack(delivery);
      ledger.end(device);
    });
  });
  // A channel that closes sends its last acknowledgements first.
  const stop = async () => {
    await channel.close();
    await connection.close();
  };
  return { stop };
}

/** Publishes all devices' readings, as one gateway for them all; a device's in their order. */
async function publishReadings() {
  const gateway = await mqtt.connectAsync(`mqtt://${MQTT}`, {
    protocolVersion: 5,
    clientId: 'example-gateway-js',
  });
  for (let number = 1; number <= READINGS; number += 1) {
    const kind = number % 2 ? 'temp' : 'flow';
    // All devices at once, then the next round: mqtt.js itself does not keep to the server's receive maximum.
    const round = DEVICES.map((device) =>
      gateway.publishAsync(`reading/${device}/${kind}`, String(number), {
        qos: 1,
        properties: { userProperties: { 'x-key': device } },
      }),
    );
    await Promise.all(round);
  }
  await gateway.endAsync();
  console.log(`devices: ${DEVICES.length} published ${READINGS} readings each`);
}

setTimeout(() => {
  throw new Error('not done within 30 s');
}, 30_000).unref();

const application = await amqp.connect(AMQP);
const channel = await application.createChannel();
await channel.assertQueue(QUEUE, {
  durable: true,
  arguments: { 'x-subscription-mode': 'key_shared' },
});
await channel.bindQueue(QUEUE, 'amq.topic', 'reading.#');

const ledger = new Ledger();
// All consume before the first message is there, so each gets its share of the keys.
const workers = await Promise.all(WORKERS.map((name) => startWorker(name, ledger)));
await publishReadings();
await ledger.done;

for (const worker of workers) await worker.stop();
await channel.deleteQueue(QUEUE);
await application.close();
for (const [worker, devices] of ledger.served) {
  console.log(`${worker}: served ${[...devices].sort().join(', ') || 'nobody'}`);
}
for (const [device, order] of ledger.order) {
  console.log(`${device}: ${order.join(' ')}, one worker at a time`);
}
