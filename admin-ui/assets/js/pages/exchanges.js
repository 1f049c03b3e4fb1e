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
  const into = (bindings?.items ?? []).filter((row) => shown && row.vhost === shown.vhost && row.destination_kind === "exchange" && row.destination === shown.name);
  const alternateOf = (data?.items ?? []).filter((row) => shown && row.vhost === shown.vhost && row.alternate === shown.name);
  const pick = (name) => setPicked(`${shown.vhost} ${name}`);
  const anyDelayed = (data?.items ?? []).some((row) => row.delayed > 0);
  const columns = useMemo(() => [
    { name: "name", title: "Exchange", value: title, cell: (row) => html`<b>${title(row)}</b><div class="tags">${row.durable ? "" : html`<${Tag} kind="muted">transient<//>`}${row.auto_delete && html`<${Tag} kind="muted">auto-delete<//>`}${row.internal && html`<${Tag} kind="muted">internal<//>`}${row.delays && html`<${Tag} kind="muted" title="Keeps messages for as long as they ask">delays<//>`}${row.alternate != null && html`<${Tag} kind="muted" title=${`What no binding takes goes to ${row.alternate}`}>else ${row.alternate}<//>`}</div>` },
    { name: "kind", title: "Kind", value: (row) => row.kind, cell: (row) => html`<${Tag}>${row.kind}<//>` },
    session.value?.vhosts.length > 1 && { name: "vhost", title: "Vhost", value: (row) => row.vhost, cell: (row) => html`<code>${row.vhost}</code>` },
    { name: "bindings", title: "Bindings", kind: "number", value: (row) => counts.get(keyOf(row)) ?? 0, cell: (row) => count(counts.get(keyOf(row)) ?? 0) },
    anyDelayed && { name: "delayed", title: "Waiting", kind: "number", value: (row) => row.delayed, cell: (row) => row.delayed > 0 && html`${count(row.delayed)} <${Button} icon="trash" kind="quiet danger" label=${`Drop what waits in ${title(row)}`} onClick=${() => setDialog({ kind: "drop", row })} />` },
    { name: "act", title: "", cell: (row) => !row.predeclared && html`<${Button} icon="trash" kind="quiet danger" label=${`Delete exchange ${title(row)}`} onClick=${() => setDialog({ kind: "delete", row })} />` },
  ].filter(Boolean), [counts, anyDelayed]);
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
            : own.length === 0 && shown.alternate == null
              ? html`<${Empty} icon="exchanges" title="Nothing is bound here" action=${html`<${Button} kind="primary" icon="plus" onClick=${() => setDialog({ kind: "bind", row: shown })}>Bind a queue<//>`}>Messages published to ${title(shown)} find no destination. Bind a queue, or let a client subscribe.<//>`
              : html`<${Flow} exchange=${shown} bindings=${own} streams=${streams?.items ?? []} series=${series} onPick=${pick} onUnbind=${(row) => setDialog({ kind: "unbind", row })} />`}
          ${into.length + alternateOf.length > 0 && html`<ul class="rows" aria-label=${`What flows into ${title(shown)}`}>
            ${into.map((row) => html`<li key=${`${row.exchange} ${row.pattern}`}><span class="note">from</span><${Button} kind="quiet" onClick=${() => pick(row.exchange)}>${row.exchange}<//><span class="arrow-right">→</span><code>${row.pattern || "every message"}</code></li>`)}
            ${alternateOf.map((row) => html`<li key=${`alternate ${row.name}`}><span class="note">from</span><${Button} kind="quiet" onClick=${() => pick(row.name)}>${title(row)}<//><span class="arrow-right">⇢</span><span class="note">what no binding takes there</span></li>`)}</ul>`}
        <//>`}
      </div>`}
    ${dialog?.kind === "create" && html`<${Create} exchanges=${data?.items ?? []} onClose=${() => setDialog(null)} onDone=${again} />`}
    ${dialog?.kind === "bind" && html`<${Bind} exchange=${dialog.row} exchanges=${data?.items ?? []} streams=${streams?.items ?? []} onClose=${() => setDialog(null)} onDone=${again} />`}
    ${dialog?.kind === "unbind" && html`<${FormDialog} title="Remove this binding?" submit="Remove" kind="danger" onClose=${() => setDialog(null)} onSubmit=${async () => {
      await call("DELETE", "/bindings", dialog.row);
      toast("Binding removed");
      again();
    }}><p><code>${dialog.row.exchange}</code> → <code>${dialog.row.pattern || "(every message)"}</code> → <code>${dialog.row.destination}</code></p><p class="note">Messages on their way stay where they are; new ones no longer take this branch.</p><//>`}
    ${dialog?.kind === "drop" && html`<${FormDialog} title=${`Drop what waits in ${title(dialog.row)}?`} submit="Drop messages" kind="danger" onClose=${() => setDialog(null)} onSubmit=${async () => {
      const { dropped } = await call("DELETE", `/exchanges/${enc(dialog.row.vhost)}/${enc(dialog.row.name)}/delayed`);
      toast(`${count(dropped)} messages dropped`);
      again();
    }}><p>${count(dialog.row.delayed)} messages wait until they are due. Nobody will get them.</p><//>`}
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

/** Clients bind their own sessions and groups; only what people bound can be undone here. */
const removable = (row) => row.destination_kind === "queue" || row.destination_kind === "exchange";
const branchKey = (row) => `${row.destination_kind} ${row.destination} ${row.pattern} ${JSON.stringify(row.arguments ?? {})}${row.alternate ? " alternate" : ""}`;

/**
 * Left the exchange, a branch for each binding with its pattern, right what it flows into; last and dashed the
 * alternate exchange.
 */
function Flow({ exchange, bindings, streams, series, onPick, onUnbind }) {
  const sorted = [...bindings].sort((a, b) => a.destination_kind.localeCompare(b.destination_kind) || a.destination.localeCompare(b.destination) || a.pattern.localeCompare(b.pattern));
  const shown = sorted.slice(0, BRANCHES_LIMIT);
  const more = sorted.length - shown.length;
  if (exchange.alternate != null) shown.push({ vhost: exchange.vhost, destination_kind: "exchange", destination: exchange.alternate, pattern: "", alternate: true });
  const height = Math.max(shown.length * ROW, 70);
  const middle = height / 2;
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const kinds = { queue: ["queue", "stream"], session: ["session"], group: ["group"], exchange: [] };
  const streamOf = (row) => streams.find((one) => one.vhost === row.vhost && one.name === row.destination && kinds[row.destination_kind]?.includes(one.kind));
  const destinations = [];
  shown.forEach((row, place) => {
    const last = destinations.at(-1);
    if (last && last.row.destination === row.destination && last.row.destination_kind === row.destination_kind && !row.alternate) last.to = place;
    else destinations.push({ row, from: place, to: place });
  });
  const words = (row) => (row.alternate ? "what nobody takes" : wanted(exchange, row));
  return html`<div class="flow">
    <svg viewBox=${`0 0 ${WIDTH} ${height}`} role="group" aria-label=${`${exchange.name} flows into ${destinations.map((one) => one.row.destination).join(", ")}`}>
      ${shown.map((row, place) => {
        const y = place * ROW + ROW / 2;
        const busy = !row.alternate && (series.rate(`${row.vhost} ${row.destination}`, "published") ?? 0) > 0;
        return html`<path key=${branchKey(row)} class=${`branch ${row.alternate ? "alternate" : busy ? "busy" : ""}`} d=${`M150,${middle} C215,${middle} 175,${y} 245,${y} L420,${y}`} />`;
      })}
      <rect class="node source" x="2" y=${middle - 26} width="148" height="52" rx="12" />
      <text class="node-name on-source" x="76" y=${middle - 3} text-anchor="middle">${cut(exchange.name, 17)}</text>
      <text class="node-note on-source" x="76" y=${middle + 14} text-anchor="middle">${exchange.kind}</text>
      ${shown.map((row, place) => {
        const y = place * ROW + ROW / 2;
        const text = cut(words(row), 21);
        const width = text.length * 7.3 + 20;
        const parts = html`<rect x=${330 - width / 2} y=${y - 13} width=${width} height="26" rx="13" />
          <text x="330" y=${y + 4} text-anchor="middle">${text}</text>`;
        if (row.alternate || !removable(row)) return html`<g key=${branchKey(row)} class="pattern fixed"><title>${`${words(row)} → ${row.destination}${row.alternate ? "" : "; its clients bound it"}`}</title>${parts}</g>`;
        return html`<g key=${branchKey(row)} class="pattern" role="button" tabindex="0" aria-label=${`Remove binding ${row.pattern} to ${row.destination}`}
            onClick=${() => onUnbind(row)} onKeyDown=${(event) => event.key === "Enter" && onUnbind(row)}>
          <title>${`${words(row)} → ${row.destination}; click to remove`}</title>
          ${parts}
        </g>`;
      })}
      ${destinations.map(({ row, from, to }) => {
        const top = from * ROW + 4;
        const tall = (to - from + 1) * ROW - 8;
        const y = top + tall / 2;
        const stream = streamOf(row);
        const note = stream ? `${stream.kind === "queue" ? "" : `${stream.kind} · `}${count(stream.ready)} ready · ${rate(series.rate(`${row.vhost} ${row.destination}`, "published"))}` : row.alternate ? "alternate exchange" : row.destination_kind;
        const parts = html`<title>${row.destination}</title>
          <rect class=${`node ${stream?.kind ?? row.destination_kind} ${row.alternate ? "alternate" : ""}`} x="420" y=${top} width="218" height=${tall} rx="10" />
          <text class="node-name" x="434" y=${y - 2}>${cut(row.destination, 25)}</text>
          <text class="node-note" x="434" y=${y + 13}>${note}</text>`;
        if (row.destination_kind !== "exchange") return html`<a key=${branchKey(row)} href=${stream ? `#/streams/${enc(row.vhost)}/${enc(row.destination)}` : undefined}>${parts}</a>`;
        const open = () => onPick(row.destination);
        return html`<g key=${branchKey(row)} class="onwards" role="button" tabindex="0" aria-label=${`Show where ${row.destination} flows`} onClick=${open} onKeyDown=${(event) => event.key === "Enter" && open()}>${parts}</g>`;
      })}
    </svg>
    ${more > 0 && html`<p class="note pad">and ${more} more bindings</p>`}
  </div>`;
}

function VhostSelect() {
  return html`<select name="vhost">${session.value.vhosts.map((name) => html`<option>${name}</option>`)}</select>`;
}

function Create({ exchanges, onClose, onDone }) {
  const send = async (form) => {
    const body = { vhost: form.get("vhost"), name: form.get("name"), kind: form.get("kind"), durable: form.has("durable"), auto_delete: form.has("auto_delete"), internal: form.has("internal") };
    if (form.get("alternate")) body.alternate = form.get("alternate");
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
    <${Field} label="Alternate exchange" hint="Gets what no binding of this one takes"><input name="alternate" list="alternates" maxlength="255" placeholder="none" /><datalist id="alternates">${exchanges.filter((row) => row.name).map((row) => html`<option value=${row.name} />`)}</datalist><//>
    <div class="checks">
      <label><input type="checkbox" name="durable" checked /> durable</label>
      <label><input type="checkbox" name="auto_delete" /> goes with its last binding</label>
      <label><input type="checkbox" name="internal" /> internal</label>
    </div>
  <//>`;
}

function Bind({ exchange, exchanges, streams, onClose, onDone }) {
  const [kind, setKind] = useState("queue");
  const headers = exchange.kind === "headers";
  const send = async (form) => {
    const body = { vhost: exchange.vhost, exchange: exchange.name, destination_kind: kind, destination: form.get("destination"), pattern: form.get("pattern") ?? "" };
    if (headers) body.arguments = { "x-match": form.get("match"), ...headersOf(form.get("headers")) };
    await call("POST", "/bindings", body);
    toast(`${body.destination} is bound`);
    onDone();
  };
  const hint = { topic: "Words with dots; * is one word, # any number: plant.*.temp", direct: "The routing key, exactly", fanout: "A fanout exchange looks at no key", headers: "A headers exchange looks at no key" }[exchange.kind];
  const names = kind === "exchange"
    ? exchanges.filter((row) => row.vhost === exchange.vhost && row.name)
    : streams.filter((row) => row.vhost === exchange.vhost && (row.kind === "queue" || row.kind === "stream"));
  return html`<${FormDialog} title=${`Bind to ${exchange.name}`} submit="Bind" onSubmit=${send} onClose=${onClose}>
    <div class="pair">
      <${Field} label="What gets them"><select name="destination_kind" onChange=${(event) => setKind(event.target.value)}><option value="queue">a queue or stream</option><option value="exchange">another exchange</option></select><//>
      <${Field} label=${kind === "exchange" ? "Exchange" : "Queue or stream"}><input name="destination" list="destinations" required autofocus /><datalist id="destinations">${names.map((row) => html`<option value=${row.name} />`)}</datalist><//>
    </div>
    ${!headers && html`<${Field} label="Pattern" hint=${hint}><input name="pattern" disabled=${exchange.kind === "fanout"} maxlength="255" class="mono" /><//>`}
    ${headers && html`<${Field} label="Match"><select name="match"><option value="all">all of these headers</option><option value="any">any of these headers</option><option value="all-with-x">all, those that begin with x- too</option><option value="any-with-x">any, those that begin with x- too</option></select><//>
      <${Field} label="Headers" hint="One a line: name=value; a number or true is one, quotes make it text"><textarea name="headers" rows="3" class="mono" placeholder="unit=C"></textarea><//>`}
  <//>`;
}

/** Lines of name=value; a value is JSON where it reads as such, else text. */
function headersOf(text) {
  const pairs = text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`${line}: it is name=value`);
    const value = line.slice(at + 1);
    try {
      return [line.slice(0, at), JSON.parse(value)];
    } catch {
      return [line.slice(0, at), value];
    }
  });
  return Object.fromEntries(pairs);
}
