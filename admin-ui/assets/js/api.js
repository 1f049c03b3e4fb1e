// Talks to /api/v1: one function to call it, one hook to watch it. Owns who is signed in.
import { signal, useEffect, useRef, useState, useCallback } from "./lib.js";

export const POLL_MS = 1000;

/** Who is signed in: undefined while not known, null for nobody. */
export const session = signal(undefined);

/** Whether the node answered last time. */
export const reachable = signal(true);

export class ApiError extends Error {
  constructor(status, error, reason) {
    super(reason);
    this.status = status;
    this.error = error;
  }
}

export const enc = encodeURIComponent;

export function can(right) {
  return session.value?.rights?.includes(right) ?? false;
}

export async function call(method, path, body) {
  const headers = { "x-anabranch": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(`/api/v1${path}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
    });
  } catch {
    reachable.value = false;
    throw new ApiError(0, "unreachable", "the node does not answer");
  }
  reachable.value = true;
  const text = await response.text();
  let data = null;
  try {
    data = text ? JSON.parse(text) : null;
  } catch {
    data = null;
  }
  if (!response.ok) {
    if (response.status === 401 && path !== "/login") session.value = null;
    throw new ApiError(response.status, data?.error ?? "error", data?.reason ?? response.statusText);
  }
  return data;
}

export async function whoami() {
  try {
    session.value = await call("GET", "/whoami");
  } catch {
    if (session.value === undefined && reachable.value) session.value = null;
  }
}

/**
 * Asks for `path` now and every second while the page is visible. Gives the last answer, the error
 * of the last try, and a function that asks at once. No path, no asking.
 */
export function usePoll(path, everyMs = POLL_MS) {
  const [state, setState] = useState({ path: null, data: null, error: null });
  const asking = useRef(null);
  const refresh = useCallback(() => asking.current?.(), []);
  useEffect(() => {
    if (!path) return undefined;
    let ended = false;
    let timer = 0;
    const ask = async () => {
      clearTimeout(timer);
      if (!document.hidden) {
        try {
          const data = await call("GET", path);
          if (!ended) setState({ path, data, error: null });
        } catch (error) {
          if (!ended) setState((last) => ({ path, data: last.path === path ? last.data : null, error }));
        }
      }
      if (!ended) {
        clearTimeout(timer);
        timer = setTimeout(ask, everyMs);
      }
    };
    asking.current = ask;
    document.addEventListener("visibilitychange", ask);
    ask();
    return () => {
      ended = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", ask);
    };
  }, [path, everyMs]);
  const own = state.path === path;
  return { data: own ? state.data : null, error: own ? state.error : null, refresh };
}

const SAMPLES_LIMIT = 60;
/** Rates are taken over about this long, so that they do not jump. */
const RATE_SPAN_MS = 3000;

/**
 * Remembers the last minute of every row of a list, by key: `rate(key, field)` is per second,
 * `series(key, field)` the values for a sparkline.
 */
export function useSeries(list, keyOf) {
  const memory = useRef({ at: 0, rows: new Map() });
  if (list && list.at_ms !== memory.current.at) {
    const rows = new Map();
    for (const row of list.items) {
      const key = keyOf(row);
      const samples = memory.current.rows.get(key) ?? [];
      samples.push({ at: list.at_ms, row });
      if (samples.length > SAMPLES_LIMIT) samples.shift();
      rows.set(key, samples);
    }
    memory.current = { at: list.at_ms, rows };
  }
  const samplesOf = (key) => memory.current.rows.get(key) ?? [];
  return {
    rate(key, field) {
      const samples = samplesOf(key);
      const last = samples.at(-1);
      const first = samples.findLast((sample) => last.at - sample.at >= RATE_SPAN_MS) ?? samples[0];
      if (!last || first === last) return null;
      return Math.max(0, ((last.row[field] - first.row[field]) * 1000) / (last.at - first.at));
    },
    series: (key, field) => samplesOf(key).map((sample) => sample.row[field]),
    samples: samplesOf,
  };
}
