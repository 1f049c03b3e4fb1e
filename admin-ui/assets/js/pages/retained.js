// Retained messages: the last value of each address, which new subscribers get first.
import { html, useMemo, useState } from "../lib.js";
import { call, session, usePoll } from "../api.js";
import { Button, Card, Dialog, Empty, FormDialog, Loading, Page, Table, Tag, toast } from "../ui.js";
import { Body, bodyOf } from "../body.js";
import { bytes, time } from "../format.js";

const PAGE_COUNT = 50;
const POLL_MS = 3000;
const PREVIEW_LENGTH = 90;
const keyOf = (row) => row.address;

export function Retained() {
  const [asked, setAsked] = useState({ vhost: session.value.vhosts[0] ?? "/", filter: "#" });
  const [behind, setBehind] = useState([]);
  const [dialog, setDialog] = useState(null);
  const query = new URLSearchParams({ vhost: asked.vhost, filter: asked.filter, count: PAGE_COUNT });
  if (behind.length) query.set("after", behind.at(-1));
  const { data, error, refresh } = usePoll(`/retained?${query}`, POLL_MS);
  const send = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setBehind([]);
    setAsked({ vhost: form.get("vhost") ?? asked.vhost, filter: form.get("filter").trim() || "#" });
  };
  const columns = useMemo(() => [
    { name: "address", title: "Address", kind: "name", value: (row) => row.address, cell: (row) => html`<code class="strong">${row.address || "(empty)"}</code>` },
    { name: "body", title: "Value", kind: "wide", cell: (row) => html`<code class="value">${preview(row)}</code>` },
    { name: "type", title: "Type", cell: (row) => html`<${Tag} kind="muted">${row.content_type ?? bodyOf(row).kind}<//>` },
    { name: "size", title: "Size", kind: "number", value: (row) => row.body_bytes, cell: (row) => bytes(row.body_bytes) },
    { name: "since", title: "Since", kind: "number", value: (row) => row.published_at_ms, cell: (row) => time(row.published_at_ms, Date.now()) },
    { name: "act", title: "", cell: (row) => html`<span class="row-actions"><${Button} icon="eye" kind="quiet" label=${`Look at ${row.address}`} onClick=${() => setDialog({ kind: "look", row })} /><${Button} icon="trash" kind="quiet danger" label=${`Clear ${row.address}`} onClick=${() => setDialog({ kind: "clear", row })} /></span>` },
  ], []);
  const every = asked.filter === "#" && !behind.length;
  const empty = every
    ? html`<${Empty} icon="retained" title="No retained messages">A message that a device publishes with the retain flag stays here as the last value of its address, until an empty one clears it.<//>`
    : html`<${Empty} icon="retained" title="Nothing here">No retained message that you may receive matches <code>${asked.filter}</code>${behind.length ? " behind the last page" : ""}.<//>`;
  const close = () => setDialog(null);
  return html`<${Page} title="Retained" note="The last value of each address, as far as you may receive it. New subscribers get these first.">
    <${Card}>
      <form class="ask" role="search" aria-label="Retained messages" onSubmit=${send}>
        <label><span>Addresses</span><input class="mono filter" name="filter" defaultValue=${asked.filter} placeholder="plant/+/temp" aria-label="Filter" maxlength="1000" /></label>
        ${session.value.vhosts.length > 1 && html`<label><span>in</span><select name="vhost" aria-label="Vhost">${session.value.vhosts.map((name) => html`<option>${name}</option>`)}</select></label>`}
        <button class="button primary">Show</button>
        <span class="hint">+ is one level, # any number of levels</span>
      </form>
    <//>
    ${error && data && html`<div class="banner bad" role="alert">${error.message}</div>`}
    ${data ? html`<${Card}><${Table} caption="Retained messages" columns=${columns} rows=${data.items} keyOf=${keyOf} onOpen=${(row) => setDialog({ kind: "look", row })} empty=${empty} />
      ${(behind.length > 0 || data.next) && html`<footer class="pages"><${Button} disabled=${!behind.length} onClick=${() => setBehind(behind.slice(0, -1))}>Before<//><span class="note">page ${behind.length + 1}</span><${Button} disabled=${!data.next} onClick=${() => setBehind([...behind, data.next])}>Next<//></footer>`}<//>` : html`<${Loading} error=${error} />`}
    ${dialog?.kind === "look" && html`<${Dialog} wide title=${dialog.row.address || "(empty)"} onClose=${close}><div class="form"><article class="message">
        <header><${Tag} kind="muted">${dialog.row.content_type ?? bodyOf(dialog.row).kind}<//><span class="push note">${time(dialog.row.published_at_ms, Date.now())} · ${bytes(dialog.row.body_bytes)}</span></header>
        <${Body} row=${dialog.row} /></article>
      <footer class="form-foot"><${Button} icon="trash" kind="danger" onClick=${() => setDialog({ kind: "clear", row: dialog.row })}>Clear<//><${Button} kind="primary" onClick=${close}>Close<//></footer></div><//>`}
    ${dialog?.kind === "clear" && html`<${FormDialog} title="Clear this value?" submit="Clear" kind="danger" onClose=${close} onSubmit=${async () => {
      await call("DELETE", `/retained?${new URLSearchParams({ vhost: asked.vhost, topic: dialog.row.address })}`);
      toast(`${dialog.row.address} is cleared`);
      refresh();
    }}><p><code>${dialog.row.address}</code></p><p class="note">Who subscribes from now on gets no first value for it. Those who have it already are not told.</p><//>`}
  <//>`;
}

function preview(row) {
  const text = row.body.replaceAll(/\s+/g, " ");
  return text.length > PREVIEW_LENGTH ? `${text.slice(0, PREVIEW_LENGTH)}…` : text || "(empty)";
}
