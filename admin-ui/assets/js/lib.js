// The few names every module of the console needs from the vendored libraries, bound once.
import { h, render, Fragment } from "../vendor/preact.js";
import { useEffect, useMemo, useRef, useState, useCallback } from "../vendor/preact-hooks.js";
import { signal, computed } from "../vendor/signals.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { h, render, Fragment, useEffect, useMemo, useRef, useState, useCallback, signal, computed };
