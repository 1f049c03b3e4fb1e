// Numbers, times and names as people read them. Pure: no DOM, no clock.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** 1234567 -> "1.23 M"; whole numbers below 10000 stay as they are. */
export function count(value) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size < 10000) return Number.isInteger(value) ? String(value) : value.toFixed(size < 10 ? 1 : 0);
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (size >= limit) return `${trim(value / limit)} ${unit}`;
  }
  return String(value);
}

/** A rate per second. */
export function rate(value) {
  if (value == null || Number.isNaN(value)) return "–";
  return `${count(value < 10 ? Math.round(value * 10) / 10 : Math.round(value))}/s`;
}

/** 1536 -> "1.50 KiB". */
export function bytes(value) {
  if (value == null || Number.isNaN(value)) return "–";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value) : trim(value)} ${UNITS[unit]}`;
}

function trim(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** Milliseconds as the two largest units: "3 d 4 h". */
export function duration(ms) {
  if (ms == null || ms < 0) return "–";
  const seconds = Math.floor(ms / 1000);
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([size]) => seconds >= size);
  if (first < 0) return "0 s";
  const [size, unit] = parts[first];
  const head = `${Math.floor(seconds / size)} ${unit}`;
  if (first + 1 >= parts.length) return head;
  const [small, smallUnit] = parts[first + 1];
  const rest = Math.floor((seconds % size) / small);
  return rest ? `${head} ${rest} ${smallUnit}` : head;
}

/** A time of day, with the date when it is not today. */
export function time(ms, nowMs) {
  const at = new Date(ms);
  const today = new Date(nowMs).toDateString() === at.toDateString();
  return today ? at.toLocaleTimeString() : at.toLocaleString();
}

/** A rule's subjects in words. */
export function subjectWords(subject) {
  switch (subject.kind) {
    case "everyone": return "everyone";
    case "anonymous": return "anonymous clients";
    case "client_id": return `client ${subject.value}`;
    case "cidr": return `clients from ${subject.value}`;
    case "protocol": return `${subject.value} clients`;
    default: return `${subject.kind} ${subject.value || "…"}`;
  }
}

const MATCH_WORDS = {
  literal: "named",
  prefix: "beginning with",
  filter: "matching",
  regex: "whose whole name matches",
  "regex-search": "whose name contains a match of",
};

/** A rule's resource in words. */
export function resourceWords(resource) {
  const kind = resource.kind === "*" ? "anything" : resource.kind === "admin" ? "the console" : `${resource.kind}s`;
  if (resource.kind === "admin") return kind;
  if (resource.match === "prefix" && resource.pattern === "") return resource.kind === "*" ? kind : `every ${resource.kind}`;
  return `${kind} ${MATCH_WORDS[resource.match] ?? resource.match} ${resource.pattern || (resource.match === "literal" ? "(the empty name)" : "…")}`;
}

/** A rule's actions in words. */
export function actionWords(actions) {
  if (actions.includes("*")) return "do everything";
  return actions.join(", ") || "(nothing)";
}

/** "1 consumer", "2 consumers". */
export function many(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

/** Kinds of things that each action is asked on; connecting is asked on the vhost. */
const ASKED_ON = {
  publish: ["topic", "exchange", "queue", "stream"],
  receive: ["topic"],
  subscribe: ["topic"],
  share: ["topic"],
  retain: ["topic"],
  consume: ["queue", "stream"],
  purge: ["queue", "stream"],
  peek: ["queue", "stream"],
  configure: ["queue", "stream", "exchange"],
  bind: ["queue", "stream", "exchange"],
};

/** What a rule names and never can decide, in words; empty when all is well. */
export function idleActions(rule) {
  const kind = rule.resource.kind;
  if (kind === "*") return "";
  const idle = rule.actions.filter((action) => (action.startsWith("admin") ? kind !== "admin" : ASKED_ON[action] && !ASKED_ON[action].includes(kind)));
  if (!idle.length) return "";
  const kinds = [...new Set(idle.flatMap((action) => (action.startsWith("admin") ? ["admin"] : ASKED_ON[action])))];
  return `${idle.join(", ")} ${idle.length === 1 ? "is" : "are"} never asked on a ${kind}, but on: ${kinds.join(", ")}. Write another rule for that.`;
}
