// Exchanges, and where each of them sends messages: drawn as a river with its branches.
import { html, useMemo, useState } from "../lib.js";
import { call, enc, session, usePoll, useSeries } from "../api.js";
import { Button, Card, Empty, Field, FormDialog, Loading, Page, Search, Table, Tag, toast } from "../ui.js";
import { count, rate } from "../format.js";

const keyOf = (row) => `${row.vhost} ${row.name}`;
const title = (row) => row.name || "(default)";
const BRANCHES_LIMIT = 40;

export function Exchanges() {
  const { data, error, refresh } = usePoll("/exchanges");
  const { data: bindings, refresh: rebind } = usePoll("/bindings");
  const { data: streams } = usePoll("/streams");
  const series = useSeries(streams, keyOf);
  const [find, setFind] = useState("");
  const [picked, setPicked] = useState(null);
  const [dialog, setDialog] = useState(null);
  const counts = useMemo(() => {
    const map = new Map();
    for (const row of bindings?.items ?? []) {
      const key = `${row.vhost} ${row.exchange}`;
      map.set(key, (map.get(key) ?? 0) + 1);
    }
    return map;
  }, [bindings]);
  const rows = (data?.items ?? []).filter((row) => `${title(row)} ${row.kind} ${row.vhost}`.toLowerCase().includes(find.toLowerCase()));
  const busiest = [...(data?.items ?? [])].sort((a, b) => (counts.get(keyOf(b)) ?? 0) - (counts.get(keyOf(a)) ?? 0))[0];
  const shown = data?.items.find((row) => keyOf(row) === picked) ?? busiest;
  const own = (bindings?.items ?? []).filter((row) => shown && row.vhost === shown.vhost && row.exchange === shown.name);
  const columns = useMemo(() => [
    { name: "name", title: "Exchange", value: title, cell: (row) => html`<b>${title(row)}</b>` },
    { name: "kind", title: "Kind", value: (row) => row.kind, cell: (row) => html`<${Tag}>${row.kind}<//>` },
    { name: "vhost", title: "Vhost", value: (row) => row.vhost, cell: (row) => html`<code>${row.vhost}</code>` },
    { name: "bindings", title: "Bindings", kind: "number", value: (row) => counts.get(keyOf(row)) ?? 0, cell: (row) => count(counts.get(keyOf(row)) ?? 0) },
    { name: "flags", title: "", cell: (row) => html`<div class="tags">${row.durable ? "" : html`<${Tag} kind="muted">transient<//>`}${row.auto_delete && html`<${Tag} kind="muted">auto-delete<//>`}${row.internal && html`<${Tag} kind="muted">internal<//>`}</div>` },
    { name: "act", title: "", cell: (row) => !row.predeclared && html`<${Button} icon="trash" kind="quiet danger" label=${`Delete exchange ${title(row)}`} onClick=${() => setDialog({ kind: "delete", row })} />` },
  ], [counts]);
  const again = () => {
    refresh();
    rebind();
  };
  const actions = html`<${Search} value=${find} onInput=${setFind} label="Find exchange" /><${Button} kind="primary" icon="plus" onClick=${() => setDialog({ kind: "create" })}>New exchange<//>`;
  return html`<${Page} title="Exchanges" note="Everything published goes to an exchange, and its bindings say where it flows from there." actions=${actions}>
    ${!data ? html`<${Loading} error=${error} />` : html`
      <div class="split">
        <${Card}><${Table} caption="Exchanges" columns=${columns} rows=${rows} keyOf=${keyOf} selected=${shown && keyOf(shown)} onOpen=${(row) => setPicked(keyOf(row))}
          empty=${html`<${Empty} icon="exchanges" title="Nothing matches">No exchange has “${find}” in its name.<//>`} /><//>
        ${shown && html`<${Card} title=${html`Where ${html`<em>${title(shown)}</em>`} flows`} actions=${shown.name !== "" && html`<${Button} icon="plus" onClick=${() => setDialog({ kind: "bind", row: shown })}>Bind<//>`}>
          ${shown.name === ""
            ? html`<${Empty} icon="exchanges" title="The default exchange">It reaches every queue by the queue’s own name; it needs no bindings and takes none.<//>`
            : own.length === 0
              ? html`<${Empty} icon="exchanges" title="Nothing is bound here" action=${html`<${Button} kind="primary" icon="plus" onClick=${() => setDialog({ kind: "bind", row: shown })}>Bind a queue<//>`}>Messages published to ${title(shown)} find no destination. Bind a queue, or let a client subscribe.<//>`
              : html`<${Flow} exchange=${shown} bindings=${own} streams=${streams?.items ?? []} series=${series} onUnbind=${(row) => setDialog({ kind: "unbind", row })} />`}
        <//>`}
      </div>`}
    ${dialog?.kind === "create" && html`<${Create} onClose=${() => setDialog(null)} onDone=${again} />`}
    ${dialog?.kind === "bind" && html`<${Bind} exchange=${dialog.row} streams=${streams?.items ?? []} onClose=${() => setDialog(null)} onDone=${again} />`}
    ${dialog?.kind === "unbind" && html`<${FormDialog} title="Remove this binding?" submit="Remove" kind="danger" onClose=${() => setDialog(null)} onSubmit=${async () => {
      await call("DELETE", "/bindings", dialog.row);
      toast("Binding removed");
      again();
    }}><p><code>${dialog.row.exchange}</code> → <code>${dialog.row.pattern || "(every message)"}</code> → <code>${dialog.row.destination}</code></p><p class="note">Messages on their way stay where they are; new ones no longer take this branch.</p><//>`}
    ${dialog?.kind === "delete" && html`<${FormDialog} title=${`Delete exchange ${dialog.row.name}?`} submit="Delete exchange" kind="danger" onClose=${() => setDialog(null)} onSubmit=${async () => {
      await call("DELETE", `/exchanges/${enc(dialog.row.vhost)}/${enc(dialog.row.name)}`);
      toast("Exchange deleted");
      again();
    }}><p>Its ${counts.get(keyOf(dialog.row)) ?? 0} bindings go with it. Who publishes to it is refused from then on.</p><//>`}
  <//>`;
}

const ROW = 46;
const WIDTH = 640;

/** What a binding lets through: of a headers exchange its arguments, of any other its pattern. */
function wanted(exchange, binding) {
  const headers = Object.entries(binding.arguments ?? {}).map(([name, value]) => `${name}=${value}`);
  if (exchange.kind === "headers" && headers.length) return headers.join(" ");
  return binding.pattern || "every message";
}

/** Left the exchange, a branch for each binding with its pattern, right what it flows into. */
function Flow({ exchange, bindings, streams, series, onUnbind }) {
  const sorted = [...bindings].sort((a, b) => a.destination.localeCompare(b.destination) || a.pattern.localeCompare(b.pattern));
  const shown = sorted.slice(0, BRANCHES_LIMIT);
  const height = Math.max(shown.length * ROW, 70);
  const middle = height / 2;
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const destinations = [];
  shown.forEach((row, place) => {
    const last = destinations.at(-1);
    if (last && last.name === row.destination) last.to = place;
    else destinations.push({ name: row.destination, kind: row.destination_kind, from: place, to: place });
  });
  return html`<div class="flow">
    <svg viewBox=${`0 0 ${WIDTH} ${height}`} role="img" aria-label=${`${exchange.name} flows into ${destinations.map((one) => one.name).join(", ")}`}>
      ${shown.map((row, place) => {
        const y = place * ROW + ROW / 2;
        const key = `${row.vhost} ${row.destination}`;
        const busy = (series.rate(key, "published") ?? 0) > 0;
        return html`<path key=${`${row.destination} ${row.pattern}`} class=${`branch ${busy ? "busy" : ""}`} d=${`M150,${middle} C215,${middle} 175,${y} 245,${y} L420,${y}`} />`;
      })}
      <rect class="node source" x="2" y=${middle - 26} width="148" height="52" rx="12" />
      <text class="node-name on-source" x="76" y=${middle - 3} text-anchor="middle">${cut(exchange.name, 17)}</text>
      <text class="node-note on-source" x="76" y=${middle + 14} text-anchor="middle">${exchange.kind}</text>
      ${shown.map((row, place) => {
        const y = place * ROW + ROW / 2;
        const text = cut(wanted(exchange, row), 21);
        const width = text.length * 7.3 + 20;
        return html`<g key=${`${row.destination} ${row.pattern}`} class="pattern" role="button" tabindex="0" aria-label=${`Remove binding ${row.pattern} to ${row.destination}`}
            onClick=${() => onUnbind(row)} onKeyDown=${(event) => event.key === "Enter" && onUnbind(row)}>
          <title>${`${wanted(exchange, row)} → ${row.destination}; click to remove`}</title>
          <rect x=${330 - width / 2} y=${y - 13} width=${width} height="26" rx="13" />
          <text x="330" y=${y + 4} text-anchor="middle">${text}</text>
        </g>`;
      })}
      ${destinations.map((one) => {
        const top = one.from * ROW + 4;
        const tall = (one.to - one.from + 1) * ROW - 8;
        const y = top + tall / 2;
        const key = `${exchange.vhost} ${one.name}`;
        const stream = streams.find((row) => `${row.vhost} ${row.name}` === key);
        const note = stream ? `${count(stream.ready)} ready · ${rate(series.rate(key, "published"))}` : one.kind;
        return html`<a key=${one.name} href=${stream ? `#/streams/${enc(exchange.vhost)}/${enc(one.name)}` : undefined}>
          <title>${one.name}</title>
          <rect class=${`node ${stream?.kind ?? ""}`} x="420" y=${top} width="218" height=${tall} rx="10" />
          <text class="node-name" x="434" y=${y - 2}>${cut(one.name, 26)}</text>
          <text class="node-note" x="434" y=${y + 13}>${note}</text>
        </a>`;
      })}
    </svg>
    ${sorted.length > shown.length && html`<p class="note pad">and ${sorted.length - shown.length} more bindings</p>`}
  </div>`;
}

function VhostSelect() {
  return html`<select name="vhost">${session.value.vhosts.map((name) => html`<option>${name}</option>`)}</select>`;
}

function Create({ onClose, onDone }) {
  const send = async (form) => {
    const body = { vhost: form.get("vhost"), name: form.get("name"), kind: form.get("kind"), durable: form.has("durable"), auto_delete: form.has("auto_delete"), internal: form.has("internal") };
    await call("POST", "/exchanges", body);
    toast(`Exchange ${body.name} is there`);
    onDone();
  };
  return html`<${FormDialog} title="New exchange" submit="Create exchange" onSubmit=${send} onClose=${onClose}>
    <${Field} label="Name"><input name="name" required maxlength="255" autofocus /><//>
    <div class="pair">
      <${Field} label="Kind"><select name="kind"><option>topic</option><option>direct</option><option>fanout</option><option>headers</option></select><//>
      <${Field} label="Vhost"><${VhostSelect} /><//>
    </div>
    <div class="checks">
      <label><input type="checkbox" name="durable" checked /> durable</label>
      <label><input type="checkbox" name="auto_delete" /> goes with its last binding</label>
      <label><input type="checkbox" name="internal" /> internal</label>
    </div>
  <//>`;
}

function Bind({ exchange, streams, onClose, onDone }) {
  const send = async (form) => {
    const body = { vhost: exchange.vhost, exchange: exchange.name, destination_kind: "queue", destination: form.get("destination"), pattern: form.get("pattern") ?? "" };
    await call("POST", "/bindings", body);
    toast(`${body.destination} is bound`);
    onDone();
  };
  const hint = { topic: "Words with dots; * is one word, # any number: plant.*.temp", direct: "The routing key, exactly", fanout: "A fanout exchange looks at no key", headers: "A headers exchange looks at headers, which clients give when they bind" }[exchange.kind];
  const queues = streams.filter((row) => row.vhost === exchange.vhost && row.kind !== "session");
  return html`<${FormDialog} title=${`Bind to ${exchange.name}`} submit="Bind" onSubmit=${send} onClose=${onClose}>
    <${Field} label="Queue or stream"><input name="destination" list="queues" required autofocus /><datalist id="queues">${queues.map((row) => html`<option value=${row.name} />`)}</datalist><//>
    <${Field} label="Pattern" hint=${hint}><input name="pattern" disabled=${exchange.kind === "fanout"} maxlength="255" class="mono" /><//>
  <//>`;
}
