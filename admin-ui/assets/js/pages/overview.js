// What the node does now: rates over the last minutes, what is deepest, where to connect.
import { html, useMemo } from "../lib.js";
import { usePoll } from "../api.js";
import { Card, Command, Depth, Loading, Page, ProtocolTag, Stat, State, TransportTag } from "../ui.js";
import { Chart } from "../chart.js";
import { bytes, count, duration, many, rate } from "../format.js";

export function Overview() {
  const { data, error } = usePoll("/overview");
  const { data: history } = usePoll("/history");
  const { data: streams } = usePoll("/streams");
  const points = history?.points ?? [];
  const column = (name) => points.map((point) => point[name]);
  const times = useMemo(() => points.map((point) => point.at_ms / 1000), [history]);
  if (!data) return html`<${Page} title="Overview"><${Loading} error=${error} /><//>`;
  const now = points.at(-1) ?? {};
  const { gauges, totals, node } = data;
  const quiet = gauges.connections === 0 && totals.received === 0;
  const deepest = [...(streams?.items ?? [])].sort((a, b) => b.ready + b.unacknowledged - a.ready - a.unacknowledged).slice(0, 6);
  const most = deepest.length ? Math.max(...deepest.map((row) => row.ready + row.unacknowledged)) : 0;
  const note = html`${node.name} · up ${duration(data.at_ms - node.started_at_ms)}`;
  return html`<${Page} title="Overview" note=${note}>
    ${data.alarms.map((alarm) => html`<div class="banner bad" role="alert" key=${alarm.name}><b>${alarm.name}</b> ${alarm.text}</div>`)}
    ${quiet && html`<${FirstSteps} listeners=${data.listeners} />`}
    <div class="stats">
      <${Stat} name="Received" value=${rate(now.received)} note=${`${count(totals.received)} in all`} values=${column("received")} tone="a" />
      <${Stat} name="Delivered" value=${rate(now.delivered)} note=${`${count(totals.delivered)} in all`} values=${column("delivered")} tone="b" />
      <${Stat} name="Ready" value=${count(gauges.ready)} note=${`${bytes(gauges.stored_bytes)} held`} values=${column("ready")} tone="c" />
      <${Stat} name="Unacknowledged" value=${count(gauges.unacknowledged)} note=${many(gauges.consumers, "consumer")} values=${column("unacknowledged")} tone="d" />
      <${Stat} name="Connections" value=${count(gauges.connections)} note=${data.protocols.map((row) => `${row.protocol} ${row.connections}`).join(" · ")} values=${column("connections")} tone="e" />
    </div>
    <${Card} title="Messages per second" actions=${html`<span class="live"><span class="dot"></span>live, 5 minutes</span>`}>
      <${Chart} times=${times} spanS=${60} format=${count} lines=${[
        { name: "Received", tone: "a", values: column("received"), fill: true },
        { name: "Delivered", tone: "b", values: column("delivered") },
        { name: "Acknowledged", tone: "e", values: column("acknowledged") },
      ]} />
    <//>
    <div class="columns">
      <${Card} title="Deepest" actions=${html`<a href="#/streams">all ${gauges.queues + gauges.streams + gauges.sessions}</a>`}>
        ${deepest.length
          ? html`<ul class="bars">${deepest.map((row) => html`<li key=${`${row.vhost} ${row.name}`}>
              <a href=${`#/streams/${encodeURIComponent(row.vhost)}/${encodeURIComponent(row.name)}`}>${row.name}</a>
              <${Depth} ready=${row.ready} unacknowledged=${row.unacknowledged} most=${most} />
              <span class="number">${count(row.ready + row.unacknowledged)}</span>
            </li>`)}</ul>`
          : html`<p class="note pad">No stream or queue yet. Applications declare them, or create one on the <a href="#/streams">streams page</a>.</p>`}
      <//>
      <${Card} title="Listeners">
        <ul class="rows">${data.listeners.map((row) => html`<li key=${row.protocol + row.transport + row.address}><${ProtocolTag} name=${row.protocol} /><${TransportTag} name=${row.transport} /><code>${row.address}</code><${State} state="running" /></li>`)}</ul>
      <//>
      <${Card} title="Node">
        <dl class="facts">
          <dt>Memory</dt><dd>${bytes(node.memory_bytes)}</dd>
          <dt>Data on disk</dt><dd>${bytes(node.disk_used_bytes)}</dd>
          <dt>Free on disk</dt><dd>${bytes(node.disk_free_bytes)}</dd>
          ${node.tier_url && html`<dt>Segments on disk</dt><dd>${count(gauges.store_local_segments)}, ${bytes(gauges.store_local_bytes)}</dd>
          <dt>In the object store</dt><dd title=${node.tier_url}>${count(gauges.store_tier_segments)}, ${bytes(gauges.store_tier_bytes)}${gauges.store_tier_waiting > 0 && ` (${count(gauges.store_tier_waiting)} to go there)`}</dd>`}
          <dt>Traffic in / out</dt><dd>${bytes(now.bytes_in)}/s / ${bytes(now.bytes_out)}/s</dd>
          <dt>Retained messages</dt><dd><a href="#/retained">${count(gauges.retained)}</a></dd>
          <dt>Delayed messages</dt><dd><a href="#/exchanges">${count(gauges.delayed)}</a></dd>
          <dt>Found no binding</dt><dd>${count(totals.unroutable)}</dd>
          <dt>Refused by rules</dt><dd>${count(totals.refused)}</dd>
          <dt>Dropped</dt><dd>${count(totals.dropped)}</dd>
        </dl>
      <//>
    </div>
  <//>`;
}

function FirstSteps({ listeners }) {
  const port = (protocol) => listeners.find((row) => row.protocol === protocol && row.transport === "tcp")?.address.split(":").at(-1);
  const host = location.hostname;
  const device = port("mqtt");
  const application = port("amqp");
  return html`<${Card} kind="welcome" title="Nothing is connected yet">
    <p class="pad">Create a user on the <a href="#/users">users page</a> and allow it something on the <a href="#/rules">rules page</a>. Then connect with what you have:</p>
    ${device && html`<${Command} text=${`mosquitto_pub -h ${host} -p ${device} -u USER -P PASSWORD -q 1 -t plant/7/temp -m 21.5`} />`}
    ${application && html`<${Command} text=${`amqp-consume --url=amqp://USER:PASSWORD@${host}:${application} -e amq.topic -r 'plant.#' cat`} />`}
  <//>`;
}
