// mqtt.js, driven line by line (see agent.mjs): MQTT 3.1.1 and 5.0.
import { readFileSync } from 'node:fs';
import mqtt from 'mqtt';
import { Inbox, fromBytes, serve, toBytes } from './agent.mjs';

function propertiesIn(described) {
  if (!described) return undefined;
  const properties = {};
  if ('content_type' in described) properties.contentType = described.content_type;
  if ('response_topic' in described) properties.responseTopic = described.response_topic;
  if ('expiry_s' in described) properties.messageExpiryInterval = described.expiry_s;
  if ('payload_format' in described) {
    properties.payloadFormatIndicator = Boolean(described.payload_format);
  }
  if ('correlation' in described) properties.correlationData = toBytes(described.correlation);
  if ('user' in described) {
    // mqtt.js keeps repeated names as a list under one name.
    properties.userProperties = {};
    for (const [name, value] of described.user) {
      (properties.userProperties[name] ??= []).push(value);
    }
  }
  return properties;
}

function propertiesOut(properties = {}) {
  const described = {};
  if (properties.contentType !== undefined) described.content_type = properties.contentType;
  if (properties.responseTopic !== undefined) described.response_topic = properties.responseTopic;
  if (properties.messageExpiryInterval !== undefined) {
    described.expiry_s = properties.messageExpiryInterval;
  }
  if (properties.payloadFormatIndicator !== undefined) {
    described.payload_format = Number(properties.payloadFormatIndicator);
  }
  if (properties.correlationData !== undefined) {
    described.correlation = fromBytes(properties.correlationData);
  }
  if (properties.userProperties !== undefined) {
    described.user = Object.entries(properties.userProperties).flatMap(([name, value]) =>
      [value].flat().map((one) => [name, one]),
    );
  }
  if (properties.subscriptionIdentifier !== undefined) {
    described.subscriptions = [properties.subscriptionIdentifier].flat();
  }
  return described;
}

let client;
let sent = [];
const inbox = new Inbox();

/** What a connection attempt comes to. */
function accepted() {
  return new Promise((resolve) => {
    client.once('connect', (packet) =>
      resolve({ reason: packet.reasonCode ?? 0, session_present: packet.sessionPresent }),
    );
    client.once('error', (error) => resolve({ reason: error.code ?? -1, text: String(error) }));
    client.once('close', () => resolve({ closed: true }));
  });
}

await serve({
  // `protocol` is one of mqtt, mqtts, ws and wss; `ca` the file that the encrypted ones trust.
  async connect({
    host,
    port,
    client_id,
    user,
    password,
    version = '5',
    clean = true,
    expiry_s,
    will,
    aliases,
    protocol = 'mqtt',
    path,
    ca,
  }) {
    client = mqtt.connect({
      protocol,
      path,
      ca: ca && readFileSync(ca),
      host,
      port,
      clientId: client_id,
      username: user,
      password,
      clean,
      protocolVersion: version === '5' ? 5 : 4,
      properties: { sessionExpiryInterval: expiry_s, topicAliasMaximum: aliases },
      autoAssignTopicAlias: aliases !== undefined,
      will: will && { ...will, payload: toBytes(will.body) },
      reconnectPeriod: 0,
      resubscribe: false,
    });
    client.on('message', (topic, payload, packet) =>
      inbox.push({
        topic,
        body: fromBytes(payload),
        qos: packet.qos,
        retain: packet.retain,
        dup: packet.dup,
        properties: propertiesOut(packet.properties),
      }),
    );
    return await accepted();
  },
  /** The same client again: what it has not finished, it goes on with. */
  async reconnect() {
    if (client.connected) await new Promise((resolve) => client.once('close', resolve));
    const { incomingStore, outgoingStore } = client;
    client.reconnect({ incomingStore, outgoingStore });
    return await accepted();
  },
  /** Ends the connection without DISCONNECT. */
  async cut() {
    const closed = new Promise((resolve) => client.once('close', resolve));
    client.stream.destroy();
    await closed;
  },
  async subscribe({ filters, as_published = false, handling = 0, identifier }) {
    const one = (qos) => ({ qos, rap: as_published, rh: handling });
    const wanted = Object.fromEntries(filters.map(([filter, qos]) => [filter, one(qos)]));
    const properties = identifier && { subscriptionIdentifier: identifier };
    const granted = await client.subscribeAsync(wanted, { properties });
    return { reasons: granted.map((one) => one.qos) };
  },
  async publish({ topic, body = '', qos = 0, retain = false, properties }) {
    await client.publishAsync(topic, toBytes(body), {
      qos,
      retain,
      properties: propertiesIn(properties),
    });
  },
  /** Publishes without waiting for answers, which `sent` does. */
  async send({ topic, bodies, qos = 1 }) {
    sent = bodies.map((body) => client.publishAsync(topic, toBytes(body), { qos }));
  },
  async sent() {
    await Promise.all(sent);
  },
  async take({ count = 1, within_ms = 10_000 }) {
    return { messages: await inbox.take(count, within_ms) };
  },
  async disconnect() {
    await client.endAsync();
  },
});
