// A message's body and headers as people read them: JSON indented, bytes as they came.
import { html, useMemo } from "./lib.js";

/** What kind of body it is, and its text. */
export function bodyOf(row) {
  if (row.body_encoding === "base64") return { kind: "binary", text: row.body };
  try {
    return { kind: "JSON", text: JSON.stringify(JSON.parse(row.body), null, 2) };
  } catch {
    return { kind: "text", text: row.body };
  }
}

export function Body({ row }) {
  const body = useMemo(() => bodyOf(row), [row]);
  const headers = Object.entries(row.headers);
  return html`<pre>${body.text}${row.cut ? "\n… cut" : ""}</pre>
    ${headers.length > 0 && html`<dl class="facts small">${headers.map(([key, value]) => html`<dt>${key}</dt><dd>${typeof value === "string" ? value : JSON.stringify(value)}</dd>`)}</dl>`}`;
}
