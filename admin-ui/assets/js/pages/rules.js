// Rules in the order they are asked, and the answer to: may somebody do something, and which rule says so?
import { html, useMemo, useState } from "../lib.js";
import { call, enc, session, usePoll } from "../api.js";
import { Button, Card, Empty, Field, FormDialog, Icon, Loading, Page, Tag, toast } from "../ui.js";
import { actionWords, idleActions, resourceWords, subjectWords } from "../format.js";

const ACTIONS = {
  Messages: ["publish", "receive", "subscribe", "consume", "retain", "share"],
  Structure: ["connect", "configure", "bind", "purge", "peek"],
  Console: ["admin.management", "admin.policy", "admin.monitoring", "admin.all"],
};
const DATA_ACTIONS = [...ACTIONS.Messages, ...ACTIONS.Structure];
const SUBJECTS = ["user", "role", "group", "client_id", "cidr", "protocol", "anonymous", "everyone"];
const ALONE = ["anonymous", "everyone"];
const KINDS = ["topic", "exchange", "queue", "stream", "session", "admin", "*"];
const MATCHES = { literal: "exactly", prefix: "begins with", filter: "filter (+ and #)", regex: "expression, whole name", "regex-search": "expression, anywhere" };
const PRESETS = [
  { text: "Publish to topics", actions: ["connect", "publish"], kind: "topic", match: "filter", pattern: "plant/${user}/#" },
  { text: "Read topics", actions: ["connect", "subscribe", "receive"], kind: "topic", match: "filter", pattern: "plant/+/temp" },
  { text: "Work on a queue", actions: ["connect", "configure", "bind", "consume", "publish", "peek"], kind: "queue", match: "prefix", pattern: "" },
  { text: "Everything", actions: ["*"], kind: "*", match: "prefix", pattern: "" },
];
const NEW = { comment: "", effect: "allow", priority: 0, subjects: [{ kind: "user", value: "" }], actions: ["publish"], resource: { vhost: "/", kind: "topic", match: "filter", pattern: "" }, conditions: {} };

export function Rules() {
  const { data, error, refresh } = usePoll("/rules");
  const { data: users } = usePoll("/users", 5000);
  const [dialog, setDialog] = useState(null);
  const [question, setQuestion] = useState(null);
  const { data: answer, error: unanswered, refresh: ask } = usePoll(question && `/rules/explain?${new URLSearchParams(question)}`);
  const again = () => {
    refresh();
    ask();
  };
  const steps = useMemo(() => new Map((answer?.steps ?? []).map((step) => [step.rule, step])), [answer]);
  const rules = data?.items ?? [];
  const actions = html`<${Button} kind="primary" icon="plus" onClick=${() => setDialog({ kind: "edit", rule: NEW })}>New rule<//>`;
  return html`<${Page} title="Rules" note="Asked from the top; the first that matches decides. When none matches, the answer is no." actions=${actions}>
    <${Explain} users=${users?.items ?? []} question=${question} answer=${answer} error=${unanswered} onAsk=${setQuestion} />
    ${!data ? html`<${Loading} error=${error} />` : html`<${Card}>
      ${rules.length === 0
        ? html`<${Empty} icon="rules" title="No rules yet" action=${html`<${Button} kind="primary" icon="plus" onClick=${() => setDialog({ kind: "edit", rule: NEW })}>Write the first rule<//>`}>Nobody may do anything. Write a rule that allows a user to publish, or a role to read.<//>`
        : html`<ol class=${`rules ${answer ? "asked" : ""}`} aria-label="Rules in order">${rules.map((rule, place) => html`<${RuleRow} key=${rule.id} rule=${rule} place=${place + 1} step=${steps.get(rule.id)} asked=${!!answer}
            onEdit=${() => setDialog({ kind: "edit", rule })} onDelete=${() => setDialog({ kind: "delete", rule })} />`)}
            <li class=${`rule last ${answer && answer.rule == null ? "decides deny" : ""}`}><span class="place"></span><${Tag} kind="deny">no<//><span class="rule-text">What no rule matches is refused.</span></li></ol>`}
    <//>`}
    ${dialog?.kind === "edit" && html`<${Editor} rule=${dialog.rule} users=${users?.items ?? []} onClose=${() => setDialog(null)} onDone=${again} />`}
    ${dialog?.kind === "delete" && html`<${FormDialog} title=${`Delete rule ${dialog.rule.id}?`} submit="Delete rule" kind="danger" onClose=${() => setDialog(null)} onSubmit=${async () => {
      await call("DELETE", `/rules/${enc(dialog.rule.id)}`);
      toast("Rule deleted; it acts at once");
      again();
    }}><p><${Sentence} rule=${dialog.rule} /></p><p class="note">This acts at once, on live connections too.</p><//>`}
  <//>`;
}

function Sentence({ rule }) {
  const conditions = rule.conditions ?? {};
  const extra = [
    conditions.max_qos != null && `QoS at most ${conditions.max_qos}`,
    conditions.retain != null && (conditions.retain ? "only retained" : "not retained"),
    conditions.max_body_bytes != null && `body at most ${conditions.max_body_bytes} bytes`,
  ].filter(Boolean);
  return html`<span class="sentence"><b>${rule.subjects.map(subjectWords).join(" or ") || "nobody"}</b> ${rule.effect === "allow" ? "may" : "may not"} <b>${actionWords(rule.actions)}</b>
    ${rule.resource.kind === "admin" ? " on the console" : html` on <code>${resourceWords(rule.resource)}</code>${rule.resource.vhost === "*" ? "" : html` in vhost <code>${rule.resource.vhost}</code>`}`}${extra.length ? `, ${extra.join(", ")}` : ""}</span>`;
}

function RuleRow({ rule, place, step, asked, onEdit, onDelete }) {
  const decides = step?.outcome === "decides";
  const state = decides ? `decides ${rule.effect}` : asked ? (step ? "passed" : "unasked") : "";
  const fixed = rule.origin !== "stored";
  return html`<li class=${`rule ${state}`} data-key=${rule.id}>
    <span class="place" aria-hidden="true">${place}</span>
    <${Tag} kind=${rule.effect}>${rule.effect}<//>
    <div class="rule-text"><${Sentence} rule=${rule} />
      <div class="rule-note">${decides ? html`<b>This one decides.</b>` : step ? `passed over: ${step.text}` : rule.comment && html`<span>${rule.comment}</span>`}<span class="note">rule ${rule.id}${{ role: ", comes with the role", config: ", holds until the node stops" }[rule.origin] ?? ""}</span></div></div>
    <span class="priority" title="Higher is asked first">priority ${rule.priority}</span>
    <span class="row-actions">${!fixed && html`<${Button} icon="edit" kind="quiet" label=${`Edit rule ${rule.id}`} onClick=${onEdit} /><${Button} icon="trash" kind="quiet danger" label=${`Delete rule ${rule.id}`} onClick=${onDelete} />`}</span>
  </li>`;
}

function Explain({ users, question, answer, error, onAsk }) {
  const [more, setMore] = useState(false);
  const send = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const asked = {};
    for (const [name, value] of form) if (value !== "") asked[name] = value;
    onAsk(asked);
  };
  return html`<section class="card explain" aria-label="Explain">
    <form class="ask" onSubmit=${send}>
      <span class="ask-icon"><${Icon} name="question" /></span>
      <label><span>May</span><input name="user" list="explain-users" placeholder="anonymous" aria-label="User" /></label>
      <datalist id="explain-users">${users.map((user) => html`<option value=${user.name} />`)}</datalist>
      <label><span class="hidden">Action</span><select name="action" aria-label="Action">${[...DATA_ACTIONS, ...ACTIONS.Console].map((name) => html`<option>${name}</option>`)}</select></label>
      <label><span>on</span><select name="kind" aria-label="Kind">${KINDS.filter((kind) => kind !== "*").map((kind) => html`<option>${kind}</option>`)}</select></label>
      <input class="mono grow" name="name" placeholder="plant/7/temp" aria-label="Name" />
      <label><span>in</span><select name="vhost" aria-label="Vhost">${session.value.vhosts.map((name) => html`<option>${name}</option>`)}</select></label>
      ${more && html`<div class="ask-more">
        <label><span>client id</span><input name="client_id" /></label><label><span>protocol</span><input name="protocol" /></label><label><span>address</span><input name="peer" placeholder="10.0.0.1" /></label>
        <label><span>QoS</span><input name="qos" type="number" min="0" max="2" /></label><label><span>retain</span><select name="retain"><option value=""></option><option>true</option><option>false</option></select></label><label><span>body bytes</span><input name="body_bytes" type="number" min="0" /></label></div>`}
      <button class="button primary">Explain</button>
      <${Button} kind="quiet" onClick=${() => setMore(!more)} aria-expanded=${more}>${more ? "fewer fields" : "more fields"}<//>
      ${question && html`<${Button} icon="close" kind="quiet" label="Clear the question" onClick=${() => onAsk(null)} />`}
    </form>
    ${error && html`<p class="verdict bad" role="status">${error.message}</p>`}
    ${answer && html`<p class=${`verdict ${answer.allowed ? "allow" : "deny"}`} role="status" data-rule=${answer.rule ?? ""}><b>${answer.allowed ? "Yes" : "No"}</b> ${answer.reason}</p>`}
  </section>`;
}

function Editor({ rule, users, onClose, onDone }) {
  const [draft, setDraft] = useState(rule);
  const change = (part) => setDraft((last) => ({ ...last, ...part }));
  const resource = (part) => change({ resource: { ...draft.resource, ...part } });
  const condition = (name, value) => {
    const conditions = { ...draft.conditions };
    if (value === "" || value == null) delete conditions[name];
    else conditions[name] = value;
    change({ conditions });
  };
  const subject = (place, part) => change({ subjects: draft.subjects.map((one, at) => (at === place ? { ...one, ...part } : one)) });
  const toggle = (name, on) => {
    const without = draft.actions.filter((one) => one !== name && one !== (DATA_ACTIONS.includes(name) ? "*" : "admin.*"));
    change({ actions: on ? [...without, name] : without });
  };
  const holds = (name) => draft.actions.includes(name) || (DATA_ACTIONS.includes(name) ? draft.actions.includes("*") : draft.actions.includes("admin.*"));
  const existing = Boolean(rule.id);
  const send = async () => {
    const { id, origin, ...body } = draft;
    body.subjects = body.subjects.map((one) => (ALONE.includes(one.kind) ? { kind: one.kind } : one));
    await call(existing ? "PUT" : "POST", existing ? `/rules/${enc(id)}` : "/rules", body);
    toast("Saved; it acts at once");
    onDone();
  };
  const set = (handler) => (event) => handler(event.target.value);
  const admin = draft.resource.kind === "admin";
  return html`<${FormDialog} wide title=${existing ? `Rule ${rule.id}` : "New rule"} submit=${existing ? "Save rule" : "Create rule"} onSubmit=${send} onClose=${onClose}>
    ${!existing && html`<div class="presets"><span class="note">Start from</span>${PRESETS.map((preset) => html`<${Button} key=${preset.text} onClick=${() => change({ actions: preset.actions, resource: { ...draft.resource, kind: preset.kind, match: preset.match, pattern: preset.pattern } })}>${preset.text}<//>`)}</div>`}
    <div class="editor">
      <div class="editor-row"><span class="editor-name">Effect</span><div class="segmented" role="radiogroup" aria-label="Effect">${["allow", "deny"].map((effect) => html`<label class=${`${effect} ${draft.effect === effect ? "on" : ""}`}><input type="radio" name="effect" value=${effect} checked=${draft.effect === effect} onChange=${() => change({ effect })} />${effect}</label>`)}</div>
        <label class="inline">Priority <input type="number" class="short" aria-label="Priority" value=${draft.priority} onInput=${(event) => change({ priority: Number.parseInt(event.target.value, 10) || 0 })} /></label><span class="hint">higher is asked first; at equal priority deny before allow</span></div>
      <div class="editor-row"><span class="editor-name">Who</span><div class="lines">${draft.subjects.map((one, place) => html`<div class="line" key=${place}>
          <select aria-label="Subject kind" value=${one.kind} onChange=${set((kind) => subject(place, { kind }))}>${SUBJECTS.map((kind) => html`<option selected=${one.kind === kind}>${kind}</option>`)}</select>
          ${!ALONE.includes(one.kind) && html`<input aria-label="Subject" required list=${one.kind === "user" ? "rule-users" : undefined} value=${one.value} placeholder=${{ cidr: "10.0.0.0/8", role: "sensor", protocol: "mqtt" }[one.kind] ?? ""} onInput=${set((value) => subject(place, { value }))} />`}
          ${draft.subjects.length > 1 && html`<${Button} icon="close" kind="quiet" label="Remove this subject" onClick=${() => change({ subjects: draft.subjects.filter((_, at) => at !== place) })} />`}
        </div>`)}<${Button} icon="plus" kind="quiet" onClick=${() => change({ subjects: [...draft.subjects, { kind: "user", value: "" }] })}>or somebody else<//></div>
        <datalist id="rule-users">${users.map((user) => html`<option value=${user.name} />`)}</datalist></div>
      <div class="editor-row"><span class="editor-name">Does</span><div class="lines">${Object.entries(ACTIONS).map(([group, names]) => html`<div class="line chips" key=${group} role="group" aria-label=${group}>${names.map((name) => html`<label class=${`chip ${holds(name) ? "on" : ""}`}><input type="checkbox" name=${`action-${name}`} checked=${holds(name)} onChange=${(event) => toggle(name, event.target.checked)} />${name}</label>`)}</div>`)}
        <label class="inline"><input type="checkbox" checked=${draft.actions.includes("*")} onChange=${(event) => change({ actions: event.target.checked ? ["*", ...draft.actions.filter((name) => name.startsWith("admin"))] : draft.actions.filter((name) => name !== "*") })} /> everything with data</label></div></div>
      <div class="editor-row"><span class="editor-name">On</span><div class="lines"><div class="line">
          <select aria-label="Resource kind" value=${draft.resource.kind} onChange=${set((kind) => resource({ kind, match: kind !== "topic" && kind !== "*" && draft.resource.match === "filter" ? "prefix" : draft.resource.match }))}>${KINDS.map((kind) => html`<option value=${kind} selected=${draft.resource.kind === kind}>${kind === "*" ? "anything" : kind}</option>`)}</select>
          ${!admin && html`<select aria-label="Match" value=${draft.resource.match} onChange=${set((match) => resource({ match }))}>${Object.entries(MATCHES).filter(([match]) => match !== "filter" || ["topic", "*"].includes(draft.resource.kind)).map(([match, text]) => html`<option value=${match} selected=${draft.resource.match === match}>${text}</option>`)}</select>
          <input class="mono grow" aria-label="Pattern" value=${draft.resource.pattern} placeholder=${draft.resource.match === "filter" ? "plant/+/temp" : ""} onInput=${set((pattern) => resource({ pattern }))} />`}</div>
          ${!admin && html`<div class="line"><label class="inline">in vhost <input class="short mono" aria-label="Rule vhost" required value=${draft.resource.vhost} onInput=${set((vhost) => resource({ vhost }))} /></label><span class="hint">* for every vhost. ${"${user}"}, ${"${client_id}"} and ${"${vhost}"} stand for the client’s own.</span></div>`}</div></div>
      <details class="editor-row" open=${Object.keys(draft.conditions ?? {}).length > 0}><summary>Conditions</summary><div class="line">
        <label class="inline">QoS at most <select aria-label="QoS at most" value=${draft.conditions?.max_qos ?? ""} onChange=${set((value) => condition("max_qos", value === "" ? null : Number(value)))}>${["", "0", "1", "2"].map((value) => html`<option selected=${String(draft.conditions?.max_qos ?? "") === value}>${value}</option>`)}</select></label>
        <label class="inline">retain <select aria-label="Retain" onChange=${set((value) => condition("retain", value === "" ? null : value === "true"))}>${["", "true", "false"].map((value) => html`<option selected=${String(draft.conditions?.retain ?? "") === value}>${value}</option>`)}</select></label>
        <label class="inline">body bytes at most <input type="number" min="0" class="short" aria-label="Body bytes at most" value=${draft.conditions?.max_body_bytes ?? ""} onInput=${set((value) => condition("max_body_bytes", value === "" ? null : Number(value)))} /></label></div></details>
      <div class="editor-row"><span class="editor-name">Why</span><input class="grow" aria-label="Comment" placeholder="What this rule is for" value=${draft.comment} onInput=${set((comment) => change({ comment }))} /></div>
    </div>
    ${idleActions(draft) && html`<p class="warning">${idleActions(draft)}</p>`}
    <p class=${`preview ${draft.effect}`}><${Tag} kind=${draft.effect}>${draft.effect}<//> <${Sentence} rule=${draft} /></p>
  <//>`;
}
