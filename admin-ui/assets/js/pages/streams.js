// Streams, queues, sessions and groups: how deep each is, and one of them close up.
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { call, enc, session, usePoll, useSeries } from "../api.js";
import { Button, Card, Depth, Dialog, Empty, Field, FormDialog, Loading, Page, Search, Spark, Stat, State, Table, Tag, toast } from "../ui.js";
import { Body, bodyOf } from "../body.js";
import { Chart } from "../chart.js";
import { CaptureField, LimitFields, OF_QUEUES, argumentsOf, captureOf, limitWords, settingsOf } from "../limits.js";
import { bytes, count, many, rate, time } from "../format.js";

const keyOf = (row) => `${row.vhost} ${row.name}`;
const href = (row) => `#/streams/${enc(row.vhost)}/${enc(row.name)}`;
const path = (vhost, name) => `/streams/${enc(vhost)}/${enc(name)}`;
const KINDS = ["all", "queue", "stream", "session", "group"];

export function Streams() {
  const { data, error, refresh } = usePoll("/streams");
  const series = useSeries(data, keyOf);
  const [find, setFind] = useState("");
  const [kind, setKind] = useState("all");
  const [creating, setCreating] = useState(false);
  const items = data?.items ?? [];
  const rows = items.filter((row) => (kind === "all" || row.kind === kind) && `${row.name} ${row.vhost}`.toLowerCase().includes(find.toLowerCase()));
  const most = Math.max(1, ...rows.map((row) => row.ready + row.unacknowledged));
  const columns = useMemo(() => [
    { name: "name", title: "Name", kind: "name", value: (row) => row.name, cell: (row) => html`<a class="strong" href=${href(row)}>${row.name}</a><div class="tags"><${Kind} row=${row} /></div>` },
    session.value?.vhosts.length > 1 && { name: "vhost", title: "Vhost", value: (row) => row.vhost, cell: (row) => html`<code>${row.vhost}</code>` },
    { name: "depth", title: "Depth", kind: "wide", value: (row) => row.ready + row.unacknowledged, cell: (row) => html`<${Depth} ready=${row.ready} unacknowledged=${row.unacknowledged} most=${most} />` },
    { name: "ready", title: "Ready", kind: "number", value: (row) => row.ready, cell: (row) => count(row.ready) },
    { name: "unacknowledged", title: "Unacked", kind: "number", value: (row) => row.unacknowledged, cell: (row) => count(row.unacknowledged) },
    { name: "minute", title: "Last minute", cell: (row) => html`<${Spark} values=${series.series(keyOf(row), "ready")} tone="c" />` },
    { name: "in", title: "In", kind: "number", value: (row) => series.rate(keyOf(row), "published") ?? 0, cell: (row) => rate(series.rate(keyOf(row), "published")) },
    { name: "out", title: "Out", kind: "number", value: (row) => series.rate(keyOf(row), "delivered") ?? 0, cell: (row) => rate(series.rate(keyOf(row), "delivered")) },
    { name: "consumers", title: "Consumers", kind: "number", value: (row) => row.consumers, cell: (row) => (row.consumers ? count(row.consumers) : html`<span class="note">none</span>`) },
    { name: "bytes", title: "Size", kind: "number", value: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
  ].filter(Boolean), [data, most]);
  const tabs = html`<div class="tabs" role="tablist">${KINDS.map((name) => html`<button type="button" role="tab" aria-selected=${kind === name} onClick=${() => setKind(name)}>
    ${name === "all" ? "All" : `${name[0].toUpperCase()}${name.slice(1)}s`} <span class="note">${name === "all" ? items.length : items.filter((row) => row.kind === name).length}</span></button>`)}</div>`;
  const actions = html`<${Search} value=${find} onInput=${setFind} label="Find stream or queue" /><${Button} kind="primary" icon="plus" onClick=${() => setCreating(true)}>New queue<//>`;
  const empty = find || kind !== "all"
    ? html`<${Empty} icon="streams" title="Nothing matches">There is no ${kind === "all" ? "stream or queue" : kind}${find ? ` with “${find}” in its name` : ""}.<//>`
    : html`<${Empty} icon="streams" title="No streams or queues yet" action=${html`<${Button} kind="primary" icon="plus" onClick=${() => setCreating(true)}>Create a queue<//>`}>Applications declare queues, devices open sessions; both show here. You can also create a queue now and bind it to an exchange.<//>`;
  return html`<${Page} title="Streams & queues" note="Where messages wait: queues, streams, sessions of devices, groups that share." actions=${actions}>
    ${data ? html`${tabs}<${Card}><${Table} caption="Streams and queues" columns=${columns} rows=${rows} keyOf=${keyOf} sort=${{ name: "depth", down: true }} onOpen=${(row) => { location.hash = href(row); }} empty=${empty} /><//>` : html`<${Loading} error=${error} />`}
    ${creating && html`<${Create} onClose=${() => setCreating(false)} onDone=${refresh} />`}
  <//>`;
}

function Kind({ row }) {
  const shared = row.kind === "session" || row.kind === "stream" || row.mode === "shared";
  return html`<${Tag} kind=${`kind-${row.kind}`}>${row.kind}<//>${!shared && html`<${Tag} title="How its readers share it">${row.mode.replace("_", "-")}<//>`}${row.policies.length > 0 && html`<${Tag} kind="muted" title=${`Policies that count: ${row.policies.join(", ")}`}>${row.policies.length === 1 ? row.policies[0] : `${row.policies.length} policies`}<//>`}${!row.durable && html`<${Tag} kind="muted">transient<//>`}${row.exclusive && row.kind === "queue" && html`<${Tag} kind="muted">exclusive<//>`}${row.auto_delete && html`<${Tag} kind="muted">auto-delete<//>`}${row.live != null && html`<span class=${`state ${row.live ? "good" : "muted"}`}><span class="dot"></span>${row.live ? "connected" : "away"}</span>`}${row.live == null && row.state !== "running" && html`<${State} state=${row.state} />`}`;
}

function Create({ onClose, onDone }) {
  const [kind, setKind] = useState("queue");
  const stream = kind === "stream";
  const send = async (form) => {
    const name = form.get("name");
    const given = stream ? {} : argumentsOf(settingsOf(form));
    if (form.get("type")) given["x-queue-type"] = form.get("type");
    if (form.get("max_age")) given["x-max-age"] = form.get("max_age");
    if (form.get("max_bytes")) given["x-max-length-bytes"] = Number(form.get("max_bytes"));
    const capture = stream ? { capture: captureOf(form) } : {};
    await call("PUT", path(form.get("vhost"), name), { kind, durable: stream || form.has("durable"), auto_delete: form.has("auto_delete"), arguments: given, ...capture });
    toast(`${name} is there`);
    onDone();
  };
  return html`<${FormDialog} title=${`New ${kind}`} submit="Create" onSubmit=${send} onClose=${onClose}>
    <fieldset class="choices"><legend class="hidden">Kind</legend>
      <label><input type="radio" name="what" value="queue" checked=${!stream} onChange=${() => setKind("queue")} /><span><b>a queue</b><small class="note">A message leaves when it was handled.</small></span></label>
      <label><input type="radio" name="what" value="stream" checked=${stream} onChange=${() => setKind("stream")} /><span><b>a stream</b><small class="note">It keeps its messages, and each reader reads from where it likes.</small></span></label>
    </fieldset>
    <div class="pair">
      <${Field} label="Name"><input name="name" required maxlength="255" autofocus /><//>
      <${Field} label="Vhost"><select name="vhost">${session.value.vhosts.map((name) => html`<option>${name}</option>`)}</select><//>
    </div>
    ${stream && html`<div class="pair">
      <${Field} label="Keeps messages for" hint="7D, 12h, 30m or 90s; empty: no limit"><input name="max_age" class="mono" pattern="[1-9][0-9]*[YMDhms]" placeholder="7D" /><//>
      <${Field} label="Keeps so many bytes" hint="Of bodies; empty: no limit"><input name="max_bytes" type="number" min="0" step="1" placeholder="bytes" /><//>
      <${CaptureField} />
    </div>`}
    ${!stream && html`<div class="checks"><label><input type="checkbox" name="durable" checked /> durable</label><label><input type="checkbox" name="auto_delete" /> goes with its last consumer</label></div>
    <details><summary>Readers and limits</summary>
      <div class="form-part"><${Field} label="Kind" hint="As applications know it; a quorum queue drops a message that came back 20 times"><select name="type"><option value="">classic</option><option>quorum</option></select><//>
      <${LimitFields} only=${OF_QUEUES} /></div>
    </details>`}
  <//>`;
}

const PEEK_COUNT = 20;
const DEPTH_POINTS_LIMIT = 300;

export function StreamPage({ vhost, name }) {
  const { data, error, refresh } = usePoll(path(vhost, name));
  const { data: bindings } = usePoll(`/bindings?vhost=${enc(vhost)}&destination=${enc(name)}`);
  const [dialog, setDialog] = useState(null);
  const memory = useRef([]);
  const seen = useRef(null);
  if (data && data !== seen.current) {
    seen.current = data;
    memory.current = [...memory.current, { at: Date.now(), row: data }].slice(-DEPTH_POINTS_LIMIT);
  }
  const points = memory.current;
  const speed = (field) => {
    const last = points.at(-1);
    const first = points.findLast((point) => last.at - point.at >= 3000) ?? points[0];
    return !last || first === last ? null : Math.max(0, ((last.row[field] - first.row[field]) * 1000) / (last.at - first.at));
  };
  const back = { href: "#/streams", text: "Streams & queues" };
  if (!data) return html`<${Page} title=${name} back=${back}><${Loading} error=${error} /><//>`;
  const gone = error?.status === 404;
  const close = () => setDialog(null);
  const stream = data.kind === "stream";
  const queue = data.kind === "queue" || stream;
  const actions = data.kind !== "group" && html`
    <${Button} icon="eye" onClick=${() => setDialog("peek")}>Peek<//>
    ${queue && html`<${Button} icon="send" onClick=${() => setDialog("publish")}>Publish<//>`}
    ${data.kind === "queue" && html`<${Button} icon="seek" onClick=${() => setDialog("seek")}>Seek<//>`}
    ${!stream && html`<${Button} icon="broom" kind="danger" onClick=${() => setDialog("purge")}>Purge<//>`}
    <${Button} icon="trash" kind="danger" onClick=${() => setDialog("delete")}>Delete<//>`;
  const column = (field) => points.map((point) => point.row[field]);
  return html`<${Page} title=${name} back=${back} actions=${!gone && actions} note=${html`<span class="tags"><${Kind} row=${data} /><span>in vhost <code>${vhost}</code></span>${data.owner && html`<span>of <b>${data.owner}</b></span>`}</span>`}>
    ${gone && html`<div class="banner bad" role="alert">It is gone: ${error.message}</div>`}
    <div class="stats">
      <${Stat} name=${stream ? "Kept" : "Ready"} value=${count(data.ready)} note=${bytes(data.bytes)} />
      ${data.kept && html`<${Stat} name="Offsets" value=${`${data.kept.first_offset} – ${data.kept.last_offset}`} note=${`since ${time(data.kept.first_at_ms, Date.now())}`} />`}
      <${Stat} name="Unacknowledged" value=${count(data.unacknowledged)} note="being handled" />
      <${Stat} name="Consumers" value=${count(data.consumers)} note=${data.consumers ? "attached" : "nobody reads"} />
      <${Stat} name="In" value=${rate(speed("published"))} note=${`${count(data.published)} in all`} />
      <${Stat} name="Out" value=${rate(speed("delivered"))} note=${`${count(data.delivered)} in all`} />
      <${Stat} name="Acknowledged" value=${rate(speed("acknowledged"))} note=${`${count(data.acknowledged)} in all`} />
      ${data.dropped > 0 && html`<${Stat} name="Dropped" value=${count(data.dropped)} note=${`${count(data.dead_lettered)} dead-lettered`} />`}
      ${data.dead_letters_waiting > 0 && html`<${Stat} name="Dead letters waiting" value=${count(data.dead_letters_waiting)} note="no destination has taken them yet" />`}
      ${data.rejected > 0 && html`<${Stat} name="Refused" value=${count(data.rejected)} note="it was full" />`}
    </div>
    <${Card} title="Depth" actions=${html`<span class="live"><span class="dot"></span>live, since you opened this page</span>`}>
      <${Chart} times=${points.map((point) => point.at / 1000)} height=${230} spanS=${60} lines=${[{ name: "Ready", tone: "c", values: column("ready"), fill: true }, { name: "Unacknowledged", tone: "d", values: column("unacknowledged") }]} />
    <//>
    <div class="columns two">
      <${Card} title="Flows in from">
        ${bindings?.items.length ? html`<ul class="rows">${bindings.items.map((row) => html`<li key=${`${row.exchange} ${row.pattern}`}><a href="#/exchanges">${row.exchange || "(default)"}</a><span class="arrow-right">→</span><code>${row.pattern || "every message"}</code></li>`)}</ul>`
          : data.kind === "group" ? html`<p class="note pad">Bound to <code>${data.filter}</code> by its members.</p>`
          : data.kind === "session" ? html`<p class="note pad">It has no subscriptions now.</p>`
          : html`<p class="note pad">No bindings. Only messages published to the default exchange under its own name arrive. <a href="#/exchanges">Bind it to an exchange</a> to let more flow in.</p>`}
      <//>
      <${Card} title="Readers">
        <ul class="rows">${data.subscriptions.map((row) => html`<li key=${row.name}><b>${row.name || "its own subscription"}</b><${Tag}>${row.mode.replace("_", "-")}<//><span class="push">${count(row.ready)} ready, ${count(row.unacknowledged)} unacked, ${many(row.consumers, "consumer")}</span></li>`)}
          ${data.active != null && html`<li key="active"><span class="note">served now</span><a href="#/connections">connection ${data.active}</a></li>`}
          ${data.members.map((row) => html`<li key=${`member ${row.client_id}`}><span class="note">member</span><b>${row.client_id}</b>${!row.durable && html`<${Tag} kind="muted">while connected<//>`}</li>`)}</ul>
      <//>
      ${(queue || data.policies.length > 0) && html`<${Card} title="Limits" actions=${data.policies.length > 0 && html`<span class="tags"><span class="note">with</span>${data.policies.map((name) => html`<a key=${name} href="#/policies">${name}</a>`)}</span>`}>
        <${Facts} pairs=${limitWords(data.limits)} none="Nothing bounds it." />
      <//>`}
      ${Object.keys(data.arguments).length > 0 && html`<${Card} title="Declared with"><${Facts} pairs=${Object.entries(data.arguments).map(([key, value]) => [key, JSON.stringify(value)])} /><//>`}
    </div>
    ${dialog === "peek" && html`<${Peek} vhost=${vhost} name=${name} kept=${data.kept} onClose=${close} />`}
    ${dialog === "publish" && html`<${Publish} vhost=${vhost} name=${name} onClose=${close} onDone=${refresh} />`}
    ${dialog === "seek" && html`<${Seek} row=${data} onClose=${close} onDone=${refresh} />`}
    ${dialog === "purge" && html`<${FormDialog} title=${`Purge ${name}?`} submit="Purge" kind="danger" onClose=${close} onSubmit=${async () => {
      const done = await call("POST", `${path(vhost, name)}/purge`);
      toast(`${count(done.purged)} messages purged`);
      refresh();
    }}><p>${count(data.ready)} messages that wait for delivery are deleted and cannot be brought back. Those in consumers’ hands stay.</p><//>`}
    ${dialog === "delete" && html`<${FormDialog} title=${`Delete ${name}?`} submit="Delete" kind="danger" onClose=${close} onSubmit=${async (form) => {
      await call("DELETE", `${path(vhost, name)}?if_empty=${form.has("if_empty")}&if_unused=${form.has("if_unused")}`);
      toast(`${name} is deleted`);
      location.hash = "#/streams";
    }}><p>Its messages and bindings go with it; ${many(data.consumers, "consumer")} will be cancelled.</p>
      <div class="checks"><label><input type="checkbox" name="if_empty" /> only when empty</label><label><input type="checkbox" name="if_unused" /> only when nobody consumes</label></div><//>`}
  <//>`;
}

function Facts({ pairs, none }) {
  if (!pairs.length) return html`<p class="note pad">${none}</p>`;
  return html`<dl class="facts">${pairs.map(([key, value]) => html`<dt>${key}</dt><dd>${value}</dd>`)}</dl>`;
}

const PLACES = {
  start: ["the oldest message", "What consumers hold comes back and is handed out again, in order."],
  end: ["behind the newest message", "Everything that waits is dropped."],
  offset: ["an offset", "As a look at the messages shows it."],
  time: ["a time", "To the first message that came in then or later."],
};

function Seek({ row, onClose, onDone }) {
  const [to, setTo] = useState("start");
  const send = async (form) => {
    const place = { offset: () => ({ offset: Number(form.get("offset")) }), time: () => ({ time: new Date(form.get("time")).getTime() }) }[to]?.() ?? { to };
    const done = await call("POST", `${path(row.vhost, row.name)}/seek`, place);
    toast(`${many(done.left, "message")} dropped from ${row.name}`);
    onDone();
  };
  return html`<${FormDialog} title=${`Move ${row.name} to`} submit="Move" kind="danger" onSubmit=${send} onClose=${onClose}>
    <fieldset class="choices"><legend class="hidden">Place</legend>
      ${Object.entries(PLACES).map(([name, [text, hint]]) => html`<label key=${name}><input type="radio" name="to" value=${name} checked=${to === name} onChange=${() => setTo(name)} /><span><b>${text}</b><small class="note">${hint}</small></span></label>`)}
    </fieldset>
    ${to === "offset" && html`<${Field} label="Offset"><input name="offset" type="number" min="0" step="1" required class="mono" /><//>`}
    ${to === "time" && html`<${Field} label="Time" hint="By the clock of this browser"><input name="time" type="datetime-local" step="1" required /><//>`}
    <p class="note">Messages that wait before that place are dropped. What was acknowledged does not come back.</p>
  <//>`;
}

function Publish({ vhost, name, onClose, onDone }) {
  const send = async (form) => {
    const body = { vhost, exchange: form.get("exchange"), address: form.get("address"), body: form.get("body"), durable: form.has("durable"), retain: form.has("retain") };
    if (form.get("content_type")) body.content_type = form.get("content_type");
    const done = await call("POST", "/publish", body);
    toast(done.routed ? `Confirmed, went to ${done.routed} ${done.routed === 1 ? "stream" : "streams"}` : "Confirmed, but no binding wanted it", done.routed ? "good" : "warn");
    onDone();
  };
  return html`<${FormDialog} title="Publish a message" submit="Publish" onSubmit=${send} onClose=${onClose}>
    <div class="pair">
      <${Field} label="Exchange" hint="Empty: straight to a queue by its name"><input name="exchange" class="mono" /><//>
      <${Field} label="Routing key"><input name="address" value=${name} class="mono" /><//>
    </div>
    <${Field} label="Body"><textarea name="body" rows="5" class="mono" autofocus></textarea><//>
    <${Field} label="Content type"><input name="content_type" placeholder="application/json" /><//>
    <div class="checks"><label><input type="checkbox" name="durable" checked /> durable</label><label title="Only through amq.topic: it becomes the last value of its address"><input type="checkbox" name="retain" /> retain</label></div>
  <//>`;
}

/** Messages in their order; of a stream from any offset or time that is kept. */
function Peek({ vhost, name, kept, onClose }) {
  const [rows, setRows] = useState(null);
  const [failed, setFailed] = useState(null);
  const load = async (from, more = false) => {
    const place = from?.offset != null ? `&offset=${from.offset}` : from?.since != null ? `&since=${from.since}` : "";
    try {
      const done = await call("GET", `${path(vhost, name)}/peek?count=${PEEK_COUNT}${place}`);
      setRows((before) => (more ? [...before, ...done.items] : done.items));
      setFailed(null);
    } catch (error) {
      setFailed(error.message);
    }
  };
  useEffect(() => {
    load(null);
  }, []);
  const typed = (read) => (event) => event.target.value && load(read(event.target.value));
  return html`<${Dialog} wide title=${`Next in ${name}`} onClose=${onClose}>
    <div class="form">
      <p class="note">Looking takes nothing: no message is delivered, marked or moved.</p>
      ${kept && html`<div class="pair">
        <${Field} label="From offset"><input type="number" class="mono" min=${kept.first_offset} max=${kept.last_offset} step="1" placeholder=${kept.first_offset} onChange=${typed((text) => ({ offset: Number(text) }))} /><//>
        <${Field} label="From time" hint="By the clock of this browser"><input type="datetime-local" step="1" onChange=${typed((text) => ({ since: new Date(text).getTime() }))} /><//>
      </div>`}
      ${failed && html`<p class="form-error" role="alert">${failed}</p>`}
      ${rows && rows.length === 0 && html`<${Empty} icon="streams" title="It is empty">Messages show here when they wait for delivery.<//>`}
      <ol class="messages">${(rows ?? []).map((row) => html`<li key=${row.offset}><${Message} row=${row} /></li>`)}</ol>
      <footer class="form-foot">
        ${rows?.length >= PEEK_COUNT && html`<${Button} onClick=${() => load({ offset: rows.at(-1).offset + 1 }, true)}>More<//>`}
        <${Button} onClick=${() => load(null)}>Look again<//>
        <${Button} kind="primary" onClick=${onClose}>Close<//>
      </footer>
    </div>
  <//>`;
}

function Message({ row }) {
  return html`<article class="message">
    <header><span class="number">${row.offset}</span><code class="strong">${row.address}</code><span class="tags">${row.retain && html`<${Tag}>retained<//>`}${row.attempts > 0 && html`<${Tag} kind="warn">try ${row.attempts + 1}<//>`}<${Tag} kind="muted">${row.content_type ?? bodyOf(row).kind}<//></span>
      <span class="push note">${time(row.published_at_ms, Date.now())} · ${bytes(row.body_bytes)}</span></header>
    <${Body} row=${row} />
  </article>`;
}
