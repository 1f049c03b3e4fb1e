// The console's parts: icons, buttons, tables, dialogs, fields, sparklines, toasts. No part knows a page.
import { html, signal, useEffect, useMemo, useRef, useState } from "./lib.js";

const ICONS = {
  overview: "M3 13h4l3-8 4 14 3-6h4",
  connections: "M9 7H6a4 4 0 0 0 0 10h3M15 7h3a4 4 0 0 1 0 10h-3M8 12h8",
  exchanges: "M4 12h6m0 0c5 0 4-7 10-7m-10 7c5 0 4 7 10 7m-10-7h10",
  streams: "M4 7h16M4 12h16M4 17h10",
  users: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8Zm-8 8c1-4 4-6 8-6s7 2 8 6",
  policies: "M5 6h8m4 0h2M5 12h2m4 0h8M5 18h10m4 0h0M15 4v4M9 10v4M17 16v4",
  retained: "M7 3h10v18l-5-4-5 4V3Z",
  seek: "M6 5v14M20 6l-9 6 9 6V6Z",
  rules: "M12 3l8 3v6c0 5-3.500 8-8 9-4.500-1-8-4-8-9V6l8-3Zm-3.500 9 2.500 2.500L15.500 10",
  plus: "M12 5v14M5 12h14",
  close: "M6 6l12 12M18 6L6 18",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  edit: "M4 20h4L19 9l-4-4L4 16v4Z",
  eye: "M2 12s4-7 10-7 10 7 10 7-4 7-10 7S2 12 2 12Zm10 3a3 3 0 1 0 0-6 3 3 0 0 0 0 6Z",
  send: "M4 12l16-8-6 16-3-7-7-1Z",
  broom: "M14 4l6 6M13 7l4 4-7 8H5v-5l8-7ZM4 20h16",
  key: "M16 13a4.500 4.500 0 1 0 0-9 4.500 4.500 0 0 0 0 9Zm-3.200-1.300L4 20.500m3-3 2.500 2.500",
  back: "M15 5l-7 7 7 7",
  copy: "M9 9h10v10H9zM5 15V5h10",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 3v2m0 14v2M3 12h2m14 0h2M5.600 5.600l1.500 1.500m9.800 9.800 1.500 1.500m0-12.800-1.500 1.500m-9.800 9.800-1.500 1.500",
  moon: "M20 14A8 8 0 0 1 10 4a8 8 0 1 0 10 10Z",
  auto: "M12 4v16m0-16a8 8 0 0 1 0 16 8 8 0 0 1 0-16Z",
  out: "M10 4H5v16h5m4-12 4 4-4 4m4-4H9",
  question: "M9 9a3 3 0 1 1 4 3c-1 .5-1 1-1 2m0 3v.01",
  unlink: "M9 7H6a4 4 0 0 0 0 10h3M15 7h3a4 4 0 0 1 0 10h-3M4 4l16 16",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${ICONS[name]} /></svg>`;
}

export function Logo() {
  return html`<img class="logo" src="/icon.svg" alt="" width="30" height="30" />`;
}

export function Button({ icon, children, kind = "", label, ...rest }) {
  return html`<button type="button" class=${`button ${kind} ${children ? "" : "only-icon"}`} aria-label=${label} title=${label} ...${rest}>
    ${icon && html`<${Icon} name=${icon} />`}${children}
  </button>`;
}

export function Page({ title, note, actions, children, back }) {
  useEffect(() => {
    document.title = `${title} · Anabranch`;
  }, [title]);
  return html`<main class="page" id="main" tabindex="-1">
    <header class="page-head">
      <div>
        ${back && html`<a class="back" href=${back.href}><${Icon} name="back" />${back.text}</a>`}
        <h1>${title}</h1>
        ${note && html`<p class="note">${note}</p>`}
      </div>
      <div class="actions">${actions}</div>
    </header>
    ${children}
  </main>`;
}

export function Card({ title, actions, children, kind = "" }) {
  return html`<section class=${`card ${kind}`}>
    ${(title || actions) && html`<header class="card-head"><h2>${title}</h2><div class="actions">${actions}</div></header>`}
    ${children}
  </section>`;
}

export function Empty({ icon, title, children, action }) {
  return html`<div class="empty">
    <div class="empty-icon"><${Icon} name=${icon} /></div>
    <h3>${title}</h3>
    <p>${children}</p>
    ${action}
  </div>`;
}

export function Tag({ kind = "", children, title }) {
  return html`<span class=${`tag ${kind}`} title=${title}>${children}</span>`;
}

/** The same protocol always gets the same of four colours, whatever protocols there are. */
export function ProtocolTag({ name }) {
  const hue = [...name].reduce((sum, char) => sum + char.charCodeAt(0), 0) % 4;
  return html`<span class=${`tag protocol hue-${hue}`}>${name}</span>`;
}

const TRANSPORTS = { tls: "encrypted by TLS", ws: "in WebSockets", wss: "in WebSockets, encrypted by TLS" };

/** What carries a protocol, where that is more than TCP. */
export function TransportTag({ name }) {
  return name !== "tcp" && html`<${Tag} kind="muted" title=${TRANSPORTS[name]}>${name}<//>`;
}

export function State({ state }) {
  const kind = { running: "good", blocked: "warn", closing: "muted", opening: "muted", creating: "muted", deleting: "muted" }[state] ?? "bad";
  return html`<span class=${`state ${kind}`}><span class="dot"></span>${state}</span>`;
}

/** A minute of values as a line. */
export function Spark({ values, tone = "a", width = 120, height = 28 }) {
  const points = useMemo(() => {
    if (values.length < 2) return null;
    const most = Math.max(...values, 1);
    const step = width / (values.length - 1);
    return values.map((value, place) => `${(place * step).toFixed(1)},${(height - 2 - (value / most) * (height - 5)).toFixed(1)}`);
  }, [values, width, height]);
  return html`<svg class=${`spark tone-${tone}`} viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
    ${points && html`<polygon points=${`0,${height} ${points.join(" ")} ${width},${height}`} /><polyline points=${points.join(" ")} />`}
  </svg>`;
}

/** How deep a stream is beside the deepest, the part in consumers' hands apart. */
export function Depth({ ready, unacknowledged, most }) {
  const part = (value) => ({ width: `${most ? Math.max(value > 0 ? 2 : 0, (value / most) * 100) : 0}%` });
  return html`<div class="depth" title=${`${ready} ready, ${unacknowledged} unacknowledged`}>
    <span class="depth-ready" style=${part(ready)}></span><span class="depth-unacked" style=${part(unacknowledged)}></span>
  </div>`;
}

/**
 * Rows that can be sorted, and opened with a click or Enter. A column: {name, title, value(row) to sort
 * by, cell(row) to show, kind: "number" | "wide"}.
 */
export function Table({ columns, rows, keyOf, onOpen, empty, caption, sort: first, rowClass, selected }) {
  const [sort, setSort] = useState(first ?? null);
  const sorted = useMemo(() => {
    const column = sort && columns.find((one) => one.name === sort.name);
    if (!column?.value) return rows;
    const compare = (a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      return typeof x === "number" && typeof y === "number" ? x - y : String(x ?? "").localeCompare(String(y ?? ""), undefined, { numeric: true });
    };
    return [...rows].sort((a, b) => (sort.down ? compare(b, a) : compare(a, b)));
  }, [rows, sort, columns]);
  if (!rows.length) return empty;
  const head = (column) => {
    const now = sort?.name === column.name;
    const order = now ? (sort.down ? "descending" : "ascending") : undefined;
    const flip = () => setSort({ name: column.name, down: now ? !sort.down : column.kind === "number" });
    return html`<th scope="col" class=${column.kind ?? ""} data-column=${column.name} aria-sort=${order}>
      ${column.value ? html`<button type="button" class="sort" onClick=${flip}>${column.title}<span class="arrow">${now ? (sort.down ? "↓" : "↑") : ""}</span></button>` : column.title}
    </th>`;
  };
  return html`<div class="table-scroll"><table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map(head)}</tr></thead>
    <tbody>${sorted.map((row) => {
      const key = keyOf(row);
      const open = onOpen && (() => onOpen(row));
      const press = (event) => {
        if (event.key === "Enter" && event.target === event.currentTarget) open();
      };
      const click = (event) => {
        if (!event.target.closest("button, a, input, select")) open();
      };
      return html`<tr key=${key} data-key=${key} class=${`${open ? "opens" : ""} ${selected === key ? "selected" : ""} ${rowClass?.(row) ?? ""}`}
          tabindex=${open ? 0 : undefined} onClick=${open && click} onKeyDown=${open && press}>
        ${columns.map((column) => html`<td class=${column.kind ?? ""} data-column=${column.name}>${column.cell(row)}</td>`)}
      </tr>`;
    })}</tbody>
  </table></div>`;
}

export function Search({ value, onInput, label }) {
  return html`<input class="search" type="search" placeholder=${label} aria-label=${label} value=${value} onInput=${(event) => onInput(event.target.value)} />`;
}

export function Field({ label, hint, children, wide }) {
  return html`<label class=${`field ${wide ? "wide" : ""}`}><span class="field-label">${label}</span>${children}${hint && html`<span class="hint">${hint}</span>`}</label>`;
}

/** A dialog that is open while it is there. Escape and the cross close it. */
export function Dialog({ title, onClose, children, wide }) {
  const ref = useRef(null);
  useEffect(() => {
    const dialog = ref.current;
    if (!dialog.open) dialog.showModal();
    return () => dialog.close();
  }, []);
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-label=${title} onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <header class="dialog-head"><h2>${title}</h2><${Button} icon="close" kind="quiet" label="Close" onClick=${onClose} /></header>
    ${children}
  </dialog>`;
}

/** A form in a dialog: runs `onSubmit`, shows what went wrong, closes when it went well. */
export function FormDialog({ title, submit, onSubmit, onClose, children, kind = "primary", wide }) {
  const [state, setState] = useState({ busy: false, error: null });
  const send = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: null });
    try {
      await onSubmit(new FormData(event.target));
      onClose();
    } catch (error) {
      setState({ busy: false, error: error.message });
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose} wide=${wide}>
    <form class="form" onSubmit=${send}>
      ${children}
      ${state.error && html`<p class="form-error" role="alert">${state.error}</p>`}
      <footer class="form-foot">
        <${Button} onClick=${onClose}>Cancel<//>
        <button class=${`button ${kind}`} disabled=${state.busy}>${submit}</button>
      </footer>
    </form>
  <//>`;
}

const toasts = signal([]);

/** Takes away what one user was told before another signs in. */
export function clearToasts() {
  toasts.value = [];
}
let nextToast = 1;
const TOAST_MS = 5000;
const TOASTS_LIMIT = 4;

export function toast(text, kind = "good") {
  const id = nextToast;
  nextToast += 1;
  toasts.value = [...toasts.value, { id, text, kind }].slice(-TOASTS_LIMIT);
  setTimeout(() => {
    toasts.value = toasts.value.filter((one) => one.id !== id);
  }, TOAST_MS);
}

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">${toasts.value.map((one) => html`<div key=${one.id} class=${`toast ${one.kind}`}>${one.text}</div>`)}</div>`;
}

export function Loading({ error }) {
  return error
    ? html`<${Empty} icon="unlink" title=${error.status === 403 ? "Not for you" : error.status === 404 ? "Not there" : "No answer"}>${error.message}<//>`
    : html`<div class="loading" role="status">Loading</div>`;
}

export function Stat({ name, value, note, values, tone }) {
  return html`<div class="stat">
    <div class="stat-name">${name}</div>
    <div class="stat-value" data-stat=${name}>${value}</div>
    ${note && html`<div class="stat-note">${note}</div>`}
    ${values && html`<${Spark} values=${values} tone=${tone} width=${220} height=${34} />`}
  </div>`;
}

export function Command({ text }) {
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  };
  return html`<div class="command"><code>${text}</code>${navigator.clipboard && html`<${Button} icon="copy" kind="quiet" label="Copy" onClick=${copy} />`}</div>`;
}

