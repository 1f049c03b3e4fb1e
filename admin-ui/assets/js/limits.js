// What bounds a queue: the fields of a form, and words for what is set. A policy sets it under these names, a
// declaration under the arguments that applications give.
import { html } from "./lib.js";
import { bytes, count, duration } from "./format.js";
import { Field } from "./ui.js";

export const MODES = {
  shared: "shared: in turns",
  exclusive: "exclusive: one reader",
  failover: "failover: one, others wait",
  key_shared: "key-shared: by key",
};
const OVERFLOWS = {
  drop_oldest: "drop the oldest",
  reject: "refuse new ones",
  reject_and_dead_letter: "refuse and dead-letter",
  hold: "hold the publishers",
};

/** Name of a setting, its label, what to type, and the argument of a declaration that means it. */
const NUMBERS = [
  ["message_ttl_ms", "Messages end after", "milliseconds", "x-message-ttl"],
  ["expires_ms", "Queue goes when unused for", "milliseconds", "x-expires"],
  ["messages_max", "Messages that may wait", "count", "x-max-length"],
  ["bytes_max", "Bytes that may wait", "bytes", "x-max-length-bytes"],
  ["age_max_ms", "A stream keeps messages for", "milliseconds", null],
  ["delivery_limit", "A message may come back", "times", "x-delivery-limit"],
  ["priority_max", "Priorities go up to", "none", "x-max-priority"],
  ["retry_min_ms", "One that came back waits", "milliseconds", "x-delayed-retry-min"],
  ["retry_max_ms", "… and never longer than", "milliseconds", "x-delayed-retry-max"],
  ["retry_multiplier", "… each time so many times as long", "by steps", "x-delayed-retry-multiplier"],
  ["ack_timeout_ms", "Acknowledged within", "milliseconds", "x-consumer-timeout"],
];
/** What a declaration says and no policy. */
const DECLARED = ["priority_max"];
const NEVER_ZERO = ["priority_max", "expires_ms", "retry_min_ms", "retry_max_ms", "retry_multiplier"];
const TEXTS = [
  ["dead_letter_exchange", "Dropped ones go to exchange", "nowhere", "x-dead-letter-exchange"],
  ["dead_letter_key", "… with routing key", "their own", "x-dead-letter-routing-key"],
];
const OVERFLOW_ARGUMENTS = { drop_oldest: "drop-head", reject: "reject-publish", reject_and_dead_letter: "reject-publish-dlx", hold: "hold-publisher" };

const STRATEGIES = { at_most_once: "unless it is full", at_least_once: "until they are taken" };

const choose = (words, chosen, none) => html`<option value="" selected=${!chosen}>${none}</option>${Object.entries(words).map(([value, text]) => html`<option value=${value} selected=${chosen === value}>${text}</option>`)}`;

/** Everything that a declaration of a queue can say, rather than of a stream. */
export const OF_QUEUES = ["mode", "overflow", "dead_letter_strategy", ...NUMBERS.filter(([, , , argument]) => argument).map(([name]) => name), ...TEXTS.map(([name]) => name)];

/** Fields for everything that can be set; `only` names those that make sense here. */
export function LimitFields({ settings = {}, only = null }) {
  const shown = (name) => (only ? only.includes(name) : !DECLARED.includes(name));
  const numbers = NUMBERS.filter(([name]) => shown(name));
  const texts = TEXTS.filter(([name]) => shown(name));
  return html`<div class="pair">
    ${shown("mode") && html`<${Field} label="Readers share it"><select name="mode">${choose(MODES, settings.mode, "not set")}</select><//>`}
    ${shown("overflow") && html`<${Field} label="When no more may wait"><select name="overflow">${choose(OVERFLOWS, settings.overflow, "not set")}</select><//>`}
    ${numbers.map(([name, label, unit]) => html`<${Field} key=${name} label=${label}><input name=${name} type="number" min=${NEVER_ZERO.includes(name) ? 1 : 0} step="1" placeholder=${unit} defaultValue=${settings[name] ?? ""} /><//>`)}
    ${texts.map(([name, label, none]) => html`<${Field} key=${name} label=${label}><input name=${name} class="mono" maxlength="255" placeholder=${none} defaultValue=${settings[name] ?? ""} /><//>`)}
    ${shown("dead_letter_strategy") && html`<${Field} label="… they are sent" hint="Until they are taken: only where a full queue refuses or holds"><select name="dead_letter_strategy">${choose(STRATEGIES, settings.dead_letter_strategy, "not set")}</select><//>`}
    ${shown("capture") && html`<${CaptureField} filters=${settings.capture} />`}
  </div>`;
}

/** Topics whose messages a stream keeps. */
export function CaptureField({ filters = [] }) {
  return html`<${Field} label="Streams keep what is published to" hint="Topic filters, separated by spaces"><input name="capture" class="mono" placeholder="sensors/+/temp" defaultValue=${filters.join(" ")} /><//>`;
}

/** The filters of a form. */
export const captureOf = (form) => (form.get("capture") ?? "").split(/\s+/).filter(Boolean);

/** What the fields of a form set. */
export function settingsOf(form) {
  const settings = {};
  if (captureOf(form).length) settings.capture = captureOf(form);
  for (const name of ["mode", "overflow", "dead_letter_strategy", ...TEXTS.map(([name]) => name)]) {
    if (form.get(name)) settings[name] = form.get(name);
  }
  for (const [name] of NUMBERS) {
    if (form.get(name)) settings[name] = Number(form.get(name));
  }
  return settings;
}

/** The same as an application's declaration says it. */
export function argumentsOf(settings) {
  const given = {};
  for (const [name, , , argument] of [...NUMBERS, ...TEXTS]) {
    if (argument && settings[name] != null) given[argument] = settings[name];
  }
  if (settings.mode) given["x-subscription-mode"] = settings.mode;
  if (settings.dead_letter_strategy) given["x-dead-letter-strategy"] = settings.dead_letter_strategy.replaceAll("_", "-");
  if (settings.overflow) given["x-overflow"] = OVERFLOW_ARGUMENTS[settings.overflow];
  return given;
}

/** What is set, as pairs of words. */
export function limitWords(settings) {
  const to = settings.dead_letter_exchange;
  return [
    settings.mode && ["Readers share it", settings.mode.replace("_", "-")],
    settings.message_ttl_ms != null && ["Messages end after", duration(settings.message_ttl_ms)],
    settings.expires_ms != null && ["Goes when unused for", duration(settings.expires_ms)],
    settings.messages_max != null && ["At most waiting", `${count(settings.messages_max)} messages`],
    settings.bytes_max != null && ["At most waiting", bytes(settings.bytes_max)],
    settings.age_max_ms != null && ["Kept for", duration(settings.age_max_ms)],
    settings.capture?.length && ["Keeps", settings.capture.join(", ")],
    settings.overflow && ["Beyond that", OVERFLOWS[settings.overflow] ?? settings.overflow],
    settings.delivery_limit != null && ["May come back", `${count(settings.delivery_limit)} times`],
    settings.priority_max != null && ["Priorities", `0 to ${settings.priority_max}, the highest first`],
    settings.retry_min_ms != null && ["One that came back waits", `${duration(settings.retry_min_ms)}${settings.retry_multiplier != null ? `, each time ${settings.retry_multiplier} times as long` : " more each time"}${settings.retry_max_ms != null ? `, at most ${duration(settings.retry_max_ms)}` : ""}`],
    settings.ack_timeout_ms != null && ["Acknowledged within", settings.ack_timeout_ms === 0 ? "any time" : duration(settings.ack_timeout_ms)],
    settings.dead_letter_strategy && ["Dropped ones are sent", STRATEGIES[settings.dead_letter_strategy] ?? settings.dead_letter_strategy],
    to != null && ["Dropped ones go to", `${to || "(default)"}${settings.dead_letter_key != null ? ` with key ${settings.dead_letter_key}` : ""}`],
  ].filter(Boolean);
}
