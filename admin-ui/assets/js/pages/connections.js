// Who is connected, over which protocol, doing how much; and ending a connection.
import { html, useMemo, useState } from "../lib.js";
import { call, can, enc, usePoll, useSeries } from "../api.js";
import { Button, Card, Dialog, Empty, Field, FormDialog, Loading, Page, ProtocolTag, Search, Spark, State, Table, Tag, TransportTag, toast } from "../ui.js";
import { bytes, count, duration, many, rate } from "../format.js";

const keyOf = (row) => row.id;
/** Rows of a gateway's own that stand above them already. */
const SHOWN_ALREADY = ["channels", "consumers", "published", "delivered", "unacknowledged"];

export function Connections() {
  const { data, error, refresh } = usePoll("/connections");
  const series = useSeries(data, keyOf);
  const [find, setFind] = useState("");
  const [open, setOpen] = useState(null);
  const [closing, setClosing] = useState(null);
  const rows = useMemo(() => {
    const words = find.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row) => [row.protocol, row.user, row.client_id, row.peer, row.vhost, row.state, row.details.product].join(" ").toLowerCase();
    return (data?.items ?? []).filter((row) => words.every((word) => text(row).includes(word)));
  }, [data, find]);
  const columns = useMemo(() => [
    { name: "protocol", title: "Protocol", value: (row) => row.protocol, cell: (row) => html`<span class="tags"><${ProtocolTag} name=${row.protocol} /><${TransportTag} name=${row.transport} /></span>` },
    { name: "user", title: "User", value: (row) => row.user, cell: (row) => (row.user ? html`<b>${row.user}</b>` : html`<span class="note">anonymous</span>`) },
    { name: "client", title: "Client", value: (row) => row.client_id, cell: (row) => html`<div>${row.client_id || row.details.product || "–"}</div><small class="note">${row.peer}</small>` },
    { name: "vhost", title: "Vhost", value: (row) => row.vhost, cell: (row) => html`<code>${row.vhost}</code>` },
    { name: "state", title: "State", value: (row) => row.state, cell: (row) => html`<${State} state=${row.state} />` },
    { name: "holds", title: "Holds", cell: (row) => html`<${Holds} row=${row} />` },
    { name: "in", title: "In", kind: "number", value: (row) => series.rate(row.id, "received") ?? 0, cell: (row) => html`<div data-total=${row.received}>${rate(series.rate(row.id, "received"))}</div><small class="note">${count(row.received)}</small>` },
    { name: "out", title: "Out", kind: "number", value: (row) => series.rate(row.id, "delivered") ?? 0, cell: (row) => html`<div data-total=${row.delivered}>${rate(series.rate(row.id, "delivered"))}</div><small class="note">${count(row.delivered)}</small>` },
    { name: "since", title: "For", kind: "number", value: (row) => -row.connected_at_ms, cell: (row) => duration(data.at_ms - row.connected_at_ms) },
    { name: "act", title: "", cell: (row) => can("all") && html`<${Button} icon="unlink" kind="quiet danger" label=${`Close connection of ${row.user || row.client_id || row.peer}`} onClick=${() => setClosing(row)} />` },
  ], [data]);
  const shown = open && data?.items.find((row) => row.id === open);
  const empty = find
    ? html`<${Empty} icon="connections" title="Nothing matches">No connection has “${find}” in its user, client, address, vhost or protocol.<//>`
    : html`<${Empty} icon="connections" title="Nobody is connected">${can("monitoring") ? "Clients show here the moment they connect. The overview lists the addresses to connect to." : "You see your own connections; seeing everyone’s needs the role monitoring."}<//>`;
  return html`<${Page} title="Connections" note=${data && `${data.items.length} open${can("monitoring") ? "" : ", your own only"}`} actions=${html`<${Search} value=${find} onInput=${setFind} label="Find user, client, address" />`}>
    ${data ? html`<${Card}><${Table} caption="Connections" columns=${columns} rows=${rows} keyOf=${keyOf} onOpen=${(row) => setOpen(row.id)} selected=${open} empty=${empty} /><//>` : html`<${Loading} error=${error} />`}
    ${shown && html`<${Details} row=${shown} series=${series} at=${data.at_ms} onClose=${() => setOpen(null)} onKick=${() => { setOpen(null); setClosing(shown); }} />`}
    ${closing && html`<${Kick} row=${closing} onClose=${() => setClosing(null)} onDone=${refresh} />`}
  <//>`;
}

function Holds({ row }) {
  return html`<div class="tags">
    ${row.channels != null && html`<${Tag}>${row.channels} ${row.channels === 1 ? "channel" : "channels"}<//>`}
    ${row.session && html`<${Tag} title=${row.session.name}>${row.session.durable ? "durable session" : "clean session"}<//>`}
    ${row.channels != null && html`<span class="note">${many(row.consumers, "consumer")}</span>`}
    ${row.unacknowledged > 0 && html`<${Tag} kind="warn">${count(row.unacknowledged)} unacked<//>`}
  </div>`;
}

function Details({ row, series, at, onClose, onKick }) {
  const facts = [
    ["User", row.user || "anonymous"], ["Client", row.client_id || "–"], ["Address", row.peer], ["Vhost", row.vhost],
    ["Connected for", duration(at - row.connected_at_ms)], ...(row.channels != null ? [["Consumers", count(row.consumers)]] : []), ["Unacknowledged", count(row.unacknowledged)],
    ["Received", `${count(row.received)} messages, ${bytes(row.bytes_in)}`], ["Delivered", `${count(row.delivered)} messages, ${bytes(row.bytes_out)}`],
    ...(row.session ? [["Session", `${row.session.name} (${row.session.durable ? "durable" : "clean"}), ${row.session.subscriptions} filters`]] : []),
    ...(row.channels != null ? [["Channels", count(row.channels)]] : []),
    ...Object.entries(row.details).filter(([name]) => !SHOWN_ALREADY.includes(name)),
  ];
  return html`<${Dialog} title=${row.client_id || row.details.product || row.user || row.peer} onClose=${onClose}>
    <div class="form">
      <div class="tags"><${ProtocolTag} name=${row.protocol} /><${TransportTag} name=${row.transport} /><${State} state=${row.state} /></div>
      <div class="pair">
        <div class="mini"><span class="note">In</span><b>${rate(series.rate(row.id, "received"))}</b><${Spark} values=${deltas(series.series(row.id, "received"))} tone="a" width=${200} /></div>
        <div class="mini"><span class="note">Out</span><b>${rate(series.rate(row.id, "delivered"))}</b><${Spark} values=${deltas(series.series(row.id, "delivered"))} tone="b" width=${200} /></div>
      </div>
      <dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
      <footer class="form-foot">${can("all") && html`<${Button} kind="danger" icon="unlink" onClick=${onKick}>Close this connection<//>`}</footer>
    </div>
  <//>`;
}

function deltas(totals) {
  return totals.slice(1).map((value, place) => Math.max(0, value - totals[place]));
}

function Kick({ row, onClose, onDone }) {
  const send = async (form) => {
    await call("DELETE", `/connections/${enc(row.id)}?reason=${enc(form.get("reason"))}`);
    toast("Connection closed");
    onDone();
  };
  return html`<${FormDialog} title="Close this connection?" submit="Close connection" kind="danger" onSubmit=${send} onClose=${onClose}>
    <p><${ProtocolTag} name=${row.protocol} /> ${row.user || "anonymous"} ${row.client_id} <code>${row.peer}</code></p>
    <${Field} label="Reason, for the log"><input name="reason" value="closed by an administrator" maxlength="200" /><//>
    <p class="note">Most clients connect again by themselves. To keep one out, change its rules or its password.</p>
  <//>`;
}
