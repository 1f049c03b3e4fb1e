// Users: who they are, what roles they hold; passwords are set here and never shown.
import { html, useMemo, useState } from "../lib.js";
import { call, enc, session, usePoll } from "../api.js";
import { Button, Card, Empty, Field, FormDialog, Loading, Page, Search, Table, Tag, toast } from "../ui.js";

const CONSOLE_ROLES = {
  management: "sign in here",
  policymaker: "sign in and set policies",
  monitoring: "sign in, see everything, read metrics",
  administrator: "everything",
};
const keyOf = (row) => row.name;
const words = (text) => text.split(/[\s,]+/).filter(Boolean);

export function Users() {
  const { data, error, refresh } = usePoll("/users");
  const { data: connections } = usePoll("/connections");
  const [find, setFind] = useState("");
  const [dialog, setDialog] = useState(null);
  const live = useMemo(() => {
    const map = new Map();
    for (const row of connections?.items ?? []) map.set(row.user, (map.get(row.user) ?? 0) + 1);
    return map;
  }, [connections]);
  const rows = (data?.items ?? []).filter((row) => `${row.name} ${row.roles.join(" ")} ${row.groups.join(" ")}`.toLowerCase().includes(find.toLowerCase()));
  const columns = useMemo(() => [
    { name: "name", title: "User", value: (row) => row.name, cell: (row) => html`<span class="user"><span class="avatar" aria-hidden="true">${(row.name[0] ?? "?").toUpperCase()}</span><b>${row.name}</b>${row.name === session.value.user && html`<${Tag}>you<//>`}${row.protected && html`<${Tag} kind="muted">from the configuration<//>`}</span>` },
    { name: "roles", title: "Roles", value: (row) => row.roles.join(" "), cell: (row) => (row.roles.length ? html`<div class="tags">${row.roles.map((role) => html`<${Tag} kind=${role in CONSOLE_ROLES ? "accent" : ""} title=${CONSOLE_ROLES[role]}>${role}<//>`)}</div>` : html`<span class="note">none</span>`) },
    { name: "groups", title: "Groups", value: (row) => row.groups.join(" "), cell: (row) => html`<div class="tags">${row.groups.map((group) => html`<${Tag}>${group}<//>`)}</div>` },
    { name: "live", title: "Connected", kind: "number", value: (row) => live.get(row.name) ?? 0, cell: (row) => live.get(row.name) ?? html`<span class="note">–</span>` },
    { name: "act", title: "", cell: (row) => !row.protected && html`<span class="row-actions"><${Button} icon="key" kind="quiet" label=${`Set password of ${row.name}`} onClick=${() => setDialog({ kind: "password", row })} /><${Button} icon="edit" kind="quiet" label=${`Roles of ${row.name}`} onClick=${() => setDialog({ kind: "roles", row })} /><${Button} icon="trash" kind="quiet danger" label=${`Delete user ${row.name}`} disabled=${row.name === session.value.user} onClick=${() => setDialog({ kind: "delete", row })} /></span>` },
  ], [live]);
  const close = () => setDialog(null);
  const actions = html`<${Search} value=${find} onInput=${setFind} label="Find user, role, group" /><${Button} kind="primary" icon="plus" onClick=${() => setDialog({ kind: "create" })}>New user<//>`;
  return html`<${Page} title="Users" note="A user without rules may do nothing. Roles let many users share rules." actions=${actions}>
    ${data ? html`<${Card}><${Table} caption="Users" columns=${columns} rows=${rows} keyOf=${keyOf} sort=${{ name: "name", down: false }} empty=${html`<${Empty} icon="users" title="Nothing matches">No user has “${find}” in name, roles or groups.<//>`} /><//>` : html`<${Loading} error=${error} />`}
    ${dialog?.kind === "create" && html`<${FormDialog} title="New user" submit="Create user" onClose=${close} onSubmit=${async (form) => {
      await call("POST", "/users", { name: form.get("name"), password: form.get("password"), roles: rolesOf(form), groups: words(form.get("groups")) });
      toast(`User ${form.get("name")} is there. Allow it something on the rules page.`);
      refresh();
    }}>
      <${Field} label="Name"><input name="name" required maxlength="128" autocomplete="off" autofocus /><//>
      <${Field} label="Password" hint="8 characters or more"><input name="password" type="password" required minlength="8" autocomplete="new-password" /><//>
      <${Roles} row=${{ roles: [], groups: [] }} />
    <//>`}
    ${dialog?.kind === "roles" && html`<${FormDialog} title=${`Roles of ${dialog.row.name}`} submit="Save" onClose=${close} onSubmit=${async (form) => {
      await call("PUT", `/users/${enc(dialog.row.name)}`, { roles: rolesOf(form), groups: words(form.get("groups")) });
      toast("Saved; it acts at once");
      refresh();
    }}><${Roles} row=${dialog.row} /><//>`}
    ${dialog?.kind === "password" && html`<${FormDialog} title=${`Password of ${dialog.row.name}`} submit="Set password" onClose=${close} onSubmit=${async (form) => {
      await call("PUT", `/users/${enc(dialog.row.name)}`, { password: form.get("password") });
      toast("Password set");
    }}><${Field} label="New password" hint="8 characters or more. Sessions opened here with the old one end."><input name="password" type="password" required minlength="8" autocomplete="new-password" autofocus /><//><//>`}
    ${dialog?.kind === "delete" && html`<${FormDialog} title=${`Delete user ${dialog.row.name}?`} submit="Delete user" kind="danger" onClose=${close} onSubmit=${async () => {
      await call("DELETE", `/users/${enc(dialog.row.name)}`);
      toast(`User ${dialog.row.name} is deleted`);
      refresh();
    }}><p>Its ${live.get(dialog.row.name) ?? 0} connections are closed. Rules that name it stay and match nobody.</p><//>`}
  <//>`;
}

function rolesOf(form) {
  return [...form.getAll("console_role"), ...words(form.get("roles"))];
}

function Roles({ row }) {
  const others = row.roles.filter((role) => !(role in CONSOLE_ROLES));
  return html`
    <fieldset class="choices"><legend>On this console</legend>
      ${Object.entries(CONSOLE_ROLES).map(([role, text]) => html`<label><input type="checkbox" name="console_role" value=${role} defaultChecked=${row.roles.includes(role)} /><span><b>${role}</b><small class="note">${text}</small></span></label>`)}
    </fieldset>
    <div class="pair">
      <${Field} label="Other roles" hint="Rules can speak of them"><input name="roles" defaultValue=${others.join(" ")} placeholder="sensor" /><//>
      <${Field} label="Groups" hint="Rules can speak of them"><input name="groups" defaultValue=${row.groups.join(" ")} /><//>
    </div>`;
}
