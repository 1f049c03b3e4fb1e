// Starts the console: sign-in, the frame around the pages, and which page the address names.
import { html, render, signal, useEffect, useState } from "./lib.js";
import { call, can, reachable, session, whoami } from "./api.js";
import { Button, Icon, Logo, Toasts, clearToasts } from "./ui.js";
import { choice, nextTheme } from "./theme.js";
import { Overview } from "./pages/overview.js";
import { Connections } from "./pages/connections.js";
import { Exchanges } from "./pages/exchanges.js";
import { Streams, StreamPage } from "./pages/streams.js";
import { Retained } from "./pages/retained.js";
import { Policies } from "./pages/policies.js";
import { Users } from "./pages/users.js";
import { Rules } from "./pages/rules.js";

const PAGES = [
  { path: "overview", title: "Overview", icon: "overview", page: Overview },
  { path: "connections", title: "Connections", icon: "connections", page: Connections },
  { path: "exchanges", title: "Exchanges", icon: "exchanges", page: Exchanges },
  { path: "streams", title: "Streams & queues", icon: "streams", page: Streams },
  { path: "retained", title: "Retained", icon: "retained", page: Retained },
  { path: "policies", title: "Policies", icon: "policies", page: Policies },
  { path: "users", title: "Users", icon: "users", page: Users, right: "all" },
  { path: "rules", title: "Rules", icon: "rules", page: Rules, right: "all" },
];

/** The page of that path, or the first: of a path that is none, and of one this user may not see. */
const pageOf = (path) => PAGES.find((page) => page.path === path && (!page.right || can(page.right))) ?? PAGES[0];

/** The address after #, split at /, each part decoded. */
function parts() {
  const text = location.hash.replace(/^#\/?/, "").split("?")[0];
  return text.split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
}

const route = signal(parts());
addEventListener("hashchange", () => {
  route.value = parts();
  document.getElementById("main")?.focus({ preventScroll: true });
  scrollTo(0, 0);
});

function Login() {
  const [state, setState] = useState({ busy: false, error: null });
  const send = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    setState({ busy: true, error: null });
    try {
      session.value = await call("POST", "/login", { user: form.get("user"), password: form.get("password") });
    } catch (error) {
      setState({ busy: false, error: error.message });
    }
  };
  useEffect(() => {
    document.title = "Sign in · Anabranch";
  }, []);
  return html`<main class="login" id="main">
    <form class="login-box" onSubmit=${send}>
      <img src="/icon.svg" alt="" width="52" height="52" />
      <h1>Anabranch</h1>
      <p class="note">One log, every protocol.</p>
      <label class="field"><span class="field-label">User</span><input name="user" autocomplete="username" required autofocus /></label>
      <label class="field"><span class="field-label">Password</span><input name="password" type="password" autocomplete="current-password" required /></label>
      ${state.error && html`<p class="form-error" role="alert">${state.error}</p>`}
      <button class="button primary big" disabled=${state.busy}>${state.busy ? "Signing in" : "Sign in"}</button>
      <p class="hint">The first password of <code>admin</code> stands in the file <code>admin-password</code> of the node's data folder.</p>
    </form>
  </main>`;
}

function Frame({ children }) {
  const here = pageOf(route.value[0]).path;
  const signOut = async () => {
    try {
      await call("POST", "/logout");
    } finally {
      clearToasts();
      session.value = null;
    }
  };
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to content</a>
    <nav class="side" aria-label="Pages">
      <a class="brand" href="#/overview"><${Logo} /><span>Anabranch</span></a>
      <ul>${PAGES.filter((page) => !page.right || can(page.right)).map((page) => html`<li key=${page.path}>
        <a href=${`#/${page.path}`} aria-current=${page.path === here ? "page" : undefined}><${Icon} name=${page.icon} /><span>${page.title}</span></a>
      </li>`)}</ul>
      <div class="side-foot">
        <div class="who"><span class="avatar" aria-hidden="true">${(session.value.user[0] ?? "?").toUpperCase()}</span>
          <span class="who-text"><b>${session.value.user}</b><small>${session.value.node} · ${session.value.version}</small></span></div>
        <div class="side-buttons">
          <${Button} kind="quiet" icon=${{ auto: "auto", light: "sun", dark: "moon" }[choice.value]} label=${`Theme: ${choice.value}`} onClick=${nextTheme} />
          <${Button} kind="quiet" icon="out" label="Sign out" onClick=${signOut} />
        </div>
      </div>
    </nav>
    <div class="content">
      ${!reachable.value && html`<div class="banner bad" role="alert">The node does not answer. What you see may be old; trying again every second.</div>`}
      ${children}
    </div>
  </div>`;
}

function App() {
  useEffect(() => {
    whoami();
  }, []);
  if (session.value === undefined) {
    return reachable.value ? null : html`<main class="login"><div class="login-box"><h1>No answer</h1><p class="note">The node does not answer.</p><${Button} onClick=${whoami}>Try again<//></div></main>`;
  }
  if (session.value === null) return html`<${Login} /><${Toasts} />`;
  const [name, ...rest] = route.value;
  const found = pageOf(name);
  const page = found.path === "streams" && rest.length === 2
    ? html`<${StreamPage} key=${rest.join("/")} vhost=${rest[0]} name=${rest[1]} />`
    : html`<${found.page} key=${found.path} rest=${rest} />`;
  return html`<${Frame}>${page}<//><${Toasts} />`;
}

render(html`<${App} />`, document.getElementById("app"));
