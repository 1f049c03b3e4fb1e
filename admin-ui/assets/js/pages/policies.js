// Policies: limits and modes for all queues or groups whose name matches, with a look at which those are.
import { html, useMemo, useState } from "../lib.js";
import { call, can, enc, session, usePoll } from "../api.js";
import { Button, Card, Empty, Field, FormDialog, Loading, Page, Search, Table, Tag, toast } from "../ui.js";
import { LimitFields, limitWords, settingsOf } from "../limits.js";
import { many } from "../format.js";

const keyOf = (row) => `${row.vhost} ${row.name}`;
const path = (vhost, name) => `/policies/${enc(vhost)}/${enc(name)}`;
const APPLIES = { queues: "queues", streams: "streams", groups: "groups of shared subscriptions", all: "all of these" };
const NEW = { vhost: "/", name: "", pattern: "", applies_to: "queues", priority: 0, settings: {} };
const SHOWN_LIMIT = 12;

/** Queues and groups that a policy is about, by the name that its pattern looks at; null when it is no expression. */
function matching(policy, streams) {
  let pattern;
  try {
    pattern = new RegExp(policy.pattern, "u");
  } catch {
    return null;
  }
  const kinds = { queues: ["queue", "stream"], streams: ["stream"], groups: ["group"], all: ["queue", "stream", "group"] }[policy.applies_to] ?? [];
  return streams.filter((row) => row.vhost === policy.vhost && kinds.includes(row.kind) && pattern.test(row.group ?? row.name));
}

export function Policies() {
  const { data, error, refresh } = usePoll("/policies");
  const { data: list } = usePoll("/streams", 3000);
  const streams = list?.items ?? [];
  const [find, setFind] = useState("");
  const [dialog, setDialog] = useState(null);
  const may = can("policy");
  const rows = (data?.items ?? []).filter((row) => `${row.name} ${row.pattern} ${row.vhost}`.toLowerCase().includes(find.toLowerCase()));
  const columns = useMemo(() => [
    { name: "name", title: "Policy", value: (row) => row.name, cell: (row) => html`<b>${row.name}</b>` },
    session.value?.vhosts.length > 1 && { name: "vhost", title: "Vhost", value: (row) => row.vhost, cell: (row) => html`<code>${row.vhost}</code>` },
    { name: "pattern", title: "Pattern", value: (row) => row.pattern, cell: (row) => html`<code>${row.pattern}</code>` },
    { name: "applies", title: "For", value: (row) => row.applies_to, cell: (row) => html`<${Tag} title=${APPLIES[row.applies_to]}>${row.applies_to}<//>` },
    { name: "settings", title: "Sets", kind: "wide", cell: (row) => html`<div class="tags">${limitWords(row.settings).map(([key, value]) => html`<${Tag} kind="muted" title=${key}>${key === "Readers share it" ? value : `${key.toLowerCase()} ${value}`}<//>`)}</div>` },
    { name: "matches", title: "Counts for", kind: "number", value: (row) => matching(row, streams)?.length ?? -1, cell: (row) => {
      const found = matching(row, streams);
      return found ? html`<span title=${found.slice(0, SHOWN_LIMIT).map((one) => one.name).join(", ")}>${found.length}</span>` : "–";
    } },
    { name: "priority", title: "Priority", kind: "number", value: (row) => row.priority, cell: (row) => row.priority },
    { name: "act", title: "", cell: (row) => may && html`<span class="row-actions"><${Button} icon="edit" kind="quiet" label=${`Edit policy ${row.name}`} onClick=${() => setDialog({ kind: "edit", row })} /><${Button} icon="trash" kind="quiet danger" label=${`Delete policy ${row.name}`} onClick=${() => setDialog({ kind: "delete", row })} /></span>` },
  ].filter(Boolean), [data, list, may]);
  const create = () => setDialog({ kind: "create", row: { ...NEW, vhost: session.value.vhosts[0] ?? "/" } });
  const close = () => setDialog(null);
  const actions = html`<${Search} value=${find} onInput=${setFind} label="Find policy" />${may && html`<${Button} kind="primary" icon="plus" onClick=${create}>New policy<//>`}`;
  const empty = find
    ? html`<${Empty} icon="policies" title="Nothing matches">No policy has “${find}” in its name or pattern.<//>`
    : html`<${Empty} icon="policies" title="No policies yet" action=${may && html`<${Button} kind="primary" icon="plus" onClick=${create}>Write the first policy<//>`}>A policy bounds all queues whose names match, without their applications knowing of it, or says how the members of a group share its messages.<//>`;
  return html`<${Page} title="Policies" note="What a queue was declared with counts first, then the highest priority." actions=${actions}>
    ${data ? html`<${Card}><${Table} caption="Policies" columns=${columns} rows=${rows} keyOf=${keyOf} sort=${{ name: "priority", down: true }} onOpen=${may ? (row) => setDialog({ kind: "edit", row }) : undefined} empty=${empty} /><//>` : html`<${Loading} error=${error} />`}
    ${(dialog?.kind === "create" || dialog?.kind === "edit") && html`<${Editor} policy=${dialog.row} fresh=${dialog.kind === "create"} streams=${streams} onClose=${close} onDone=${refresh} />`}
    ${dialog?.kind === "delete" && html`<${FormDialog} title=${`Delete policy ${dialog.row.name}?`} submit="Delete policy" kind="danger" onClose=${close} onSubmit=${async () => {
      await call("DELETE", path(dialog.row.vhost, dialog.row.name));
      toast(`Policy ${dialog.row.name} is deleted`);
      refresh();
    }}><p>What it set is undone within a second for ${many(matching(dialog.row, streams)?.length ?? 0, "queue or group")}; messages that it dropped do not come back.</p><//>`}
  <//>`;
}

function Editor({ policy, fresh, streams, onClose, onDone }) {
  const [about, setAbout] = useState({ vhost: policy.vhost, pattern: policy.pattern, applies_to: policy.applies_to });
  const set = (name) => (event) => setAbout((last) => ({ ...last, [name]: event.target.value }));
  const send = async (form) => {
    const name = fresh ? form.get("name") : policy.name;
    const body = { pattern: about.pattern, applies_to: about.applies_to, priority: Number.parseInt(form.get("priority"), 10) || 0, settings: settingsOf(form) };
    await call("PUT", path(about.vhost, name), body);
    toast(`Policy ${name} counts from now on`);
    onDone();
  };
  const only = { groups: ["mode"], streams: ["bytes_max", "age_max_ms", "capture"] }[about.applies_to] ?? null;
  return html`<${FormDialog} wide title=${fresh ? "New policy" : `Policy ${policy.name}`} submit=${fresh ? "Create policy" : "Save policy"} onSubmit=${send} onClose=${onClose}>
    <div class="pair">
      <${Field} label="Name"><input name="name" required maxlength="255" disabled=${!fresh} defaultValue=${policy.name} autofocus=${fresh} /><//>
      <${Field} label="Vhost"><select name="vhost" disabled=${!fresh} onChange=${set("vhost")}>${session.value.vhosts.map((name) => html`<option selected=${name === about.vhost}>${name}</option>`)}</select><//>
      <${Field} label="Pattern" hint="An expression looked for anywhere in the name: ^telemetry"><input name="pattern" class="mono" required value=${about.pattern} onInput=${set("pattern")} /><//>
      <${Field} label="For"><select name="applies_to" onChange=${set("applies_to")}>${Object.entries(APPLIES).map(([value, text]) => html`<option value=${value} selected=${value === about.applies_to}>${text}</option>`)}</select><//>
    </div>
    <${Preview} policy=${about} streams=${streams} />
    <${LimitFields} settings=${policy.settings} only=${only} />
    <${Field} label="Priority" hint="Of several policies that set the same, the highest counts"><input name="priority" type="number" step="1" class="short" defaultValue=${policy.priority} /><//>
  <//>`;
}

/** Which of what is there now the policy is about. */
function Preview({ policy, streams }) {
  const found = policy.pattern ? matching(policy, streams) : [];
  const shown = (found ?? []).slice(0, SHOWN_LIMIT);
  return html`<div class="preview" role="status" data-preview=${found?.length ?? ""}>
    ${found == null ? html`<span class="note">This is no regular expression.</span>`
      : !policy.pattern ? html`<span class="note">Type a pattern to see what it matches.</span>`
        : html`<b>${found.length === 0 ? "Nothing there matches now." : `Matches ${found.length} now:`}</b> <span class="tags">${shown.map((row) => html`<${Tag} key=${row.name} kind=${`kind-${row.kind}`}>${row.name}<//>`)}${found.length > shown.length && html`<span class="note">and ${found.length - shown.length} more</span>`}</span>`}
  </div>`;
}
