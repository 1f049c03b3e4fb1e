// Drives the console in Chromium and prints what it saw as JSON lines, one step a line. The harness
// starts the node and makes the traffic; this script only looks and clicks, and waits for conditions
// with deadlines, never for time.
//
//   node console.mjs --base http://127.0.0.1:15672 --user admin --password ... --scenario NAME [options]
//
// Scenarios, with the lines they print (every line has "step"; the last is {"step":"done"} or
// {"step":"failed","error":...} with exit status 1):
//   login        a wrong password is refused with a message, the right one shows the overview; keyboard
//                only; light and dark differ; signing out ends the session
//   manage       --new-user NAME --new-password TEXT [--pattern FILTER]: creates the user and a rule that
//                lets it connect and publish; explain says yes and names the rule; no beside the filter.
//                Prints {"step":"rule","id":...}
//   policies     --queue NAME --topic ADDRESS: writes a policy for the queue after looking at what it matches, sees
//                it count on the queue's page, deletes it; sees the retained message of the address, clears it.
//                Prints {"step":"preview","matches":n}, {"step":"policy"}, {"step":"limits"},
//                {"step":"policy-deleted"}, {"step":"retained","value":...} and {"step":"cleared"}
//   watch        --queue NAME --protocols a,b [--seconds N]: prints {"step":"watching"} when it looks; then
//                {"step":"connection","protocol":...,"total":n} once for each protocol when a row of it
//                shows and its total moves; {"step":"depth","from":n,"to":m} when the queue's depth moves
//   rule-change  --rule ID: prints {"step":"ready"} and waits for a line on standard input, then turns the
//                rule into a deny in the console and prints {"step":"changed","at_ms":...} when it is saved
//
// Chromium is found by the environment variable CHROMIUM, else /usr/bin/chromium. playwright-core is found
// from this folder, or from ../node.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import { pathToFileURL } from "node:url";

const { values: options } = parseArgs({
  options: {
    base: { type: "string" },
    user: { type: "string" },
    password: { type: "string" },
    scenario: { type: "string" },
    "new-user": { type: "string", default: "device" },
    "new-password": { type: "string", default: "a device's password" },
    pattern: { type: "string", default: "plant/${user}/#" },
    queue: { type: "string" },
    topic: { type: "string" },
    vhost: { type: "string", default: "/" },
    protocols: { type: "string", default: "mqtt,amqp" },
    rule: { type: "string" },
    seconds: { type: "string", default: "30" },
    shots: { type: "string" },
  },
});
const deadlineMs = Number(options.seconds) * 1000;

function say(step, more = {}) {
  process.stdout.write(`${JSON.stringify({ step, ...more })}\n`);
}

function check(condition, words) {
  if (!condition) throw new Error(words);
}

async function playwright() {
  for (const from of [import.meta.url, new URL("../node/package.json", import.meta.url)]) {
    try {
      const found = createRequire(from).resolve("playwright-core");
      return (await import(pathToFileURL(found))).default;
    } catch (error) {
      if (error.code !== "MODULE_NOT_FOUND") throw error;
    }
  }
  throw new Error("playwright-core is not installed; run npm ci in tests/node");
}

async function shot(page, name) {
  if (options.shots) await page.screenshot({ path: `${options.shots}/${name}.png` });
}

async function signIn(page) {
  await page.goto(options.base);
  await page.getByLabel("User").fill(options.user);
  await page.getByLabel("Password").fill(options.password);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Overview" }).waitFor();
}

async function login(page) {
  await page.goto(options.base);
  await page.getByLabel("User").waitFor();
  // The first field has the focus, so the keyboard alone does.
  await page.keyboard.type(options.user);
  await page.keyboard.press("Tab");
  await page.keyboard.type("not the password");
  await page.keyboard.press("Enter");
  const refusal = await page.getByRole("alert").textContent();
  say("refused", { message: refusal });
  await page.getByLabel("Password").fill(options.password);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  const cookies = await page.context().cookies();
  const session = cookies.find((cookie) => cookie.name === "anabranch_session");
  check(session?.httpOnly && session.sameSite === "Strict", "the session cookie is HttpOnly and SameSite=Strict");
  say("signed-in", { title: await page.title() });
  await page.locator('[data-stat="Received"]').waitFor();
  const background = async (scheme) => {
    await page.emulateMedia({ colorScheme: scheme });
    await page.waitForFunction((wanted) => document.documentElement.dataset.theme === wanted, scheme);
    await shot(page, `login-${scheme}`);
    return page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  };
  const light = await background("light");
  const dark = await background("dark");
  check(light !== dark, "light and dark differ");
  say("themes", { light, dark });
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByRole("button", { name: "Sign in" }).waitFor();
  const status = await page.evaluate(async () => (await fetch("/api/v1/whoami")).status);
  check(status === 401, "the session has ended");
  say("signed-out");
}

async function manage(page) {
  await signIn(page);
  const name = options["new-user"];
  await page.getByRole("link", { name: "Users", exact: true }).click();
  await page.getByRole("button", { name: "New user" }).click();
  const form = page.getByRole("dialog");
  await form.getByLabel("Name", { exact: true }).fill(name);
  await form.getByLabel("Password").fill(options["new-password"]);
  await form.getByRole("button", { name: "Create user" }).click();
  await page.locator(`tr[data-key="${name}"]`).waitFor();
  await shot(page, "manage-users");
  say("user", { name });

  await page.getByRole("link", { name: "Rules", exact: true }).click();
  const keys = () => page.locator("li.rule[data-key]").evaluateAll((rows) => rows.map((row) => row.dataset.key));
  await page.locator("li.rule.last").waitFor();
  const before = new Set(await keys());
  await page.getByRole("button", { name: "New rule" }).first().click();
  const editor = page.getByRole("dialog");
  await editor.getByRole("button", { name: "Publish to topics" }).click();
  await editor.getByLabel("Subject", { exact: true }).fill(name);
  await editor.getByLabel("Pattern").fill(options.pattern);
  await editor.getByLabel("Comment").fill("made by the browser test");
  await shot(page, "manage-rule");
  await editor.getByRole("button", { name: "Create rule" }).click();
  await editor.waitFor({ state: "detached" });
  await page.waitForFunction((count) => document.querySelectorAll("li.rule[data-key]").length > count, before.size);
  const id = (await keys()).find((key) => !before.has(key));
  say("rule", { id });

  const inside = options.pattern.replace("${user}", name).replace("#", "x").replace("+", "x");
  for (const [address, expected] of [[inside, true], ["elsewhere/x", false]]) {
    const ask = page.getByRole("region", { name: "Explain" });
    await ask.getByLabel("User").fill(name);
    await ask.getByLabel("Action").selectOption("publish");
    await ask.getByLabel("Kind").selectOption("topic");
    await ask.getByLabel("Name").fill(address);
    await ask.getByRole("button", { name: "Explain" }).click();
    const verdict = page.locator(`.verdict.${expected ? "allow" : "deny"}`);
    await verdict.waitFor();
    const rule = await verdict.getAttribute("data-rule");
    check(!expected || rule === id, `rule ${id} decides, not ${rule}`);
    say("explained", { address, allowed: expected, rule, reason: await verdict.textContent() });
    await shot(page, `manage-explain-${expected ? "yes" : "no"}`);
  }
}

async function policies(page) {
  check(options.queue && options.topic, "--queue and --topic are needed");
  await signIn(page);
  await page.getByRole("link", { name: "Policies", exact: true }).click();
  await page.getByRole("button", { name: "New policy" }).click();
  const form = page.getByRole("dialog");
  // From here to the end of the form with the keyboard alone, once the dialog has put it into its first field.
  await form.locator("input:focus").waitFor();
  await page.keyboard.type("bounds");
  await form.getByLabel("Pattern").press("Control+a");
  await page.keyboard.type(`^${options.queue}$`);
  const preview = form.locator("[data-preview]");
  await form.locator('[data-preview="1"]').waitFor();
  check((await preview.textContent()).includes(options.queue), "the preview names the queue");
  say("preview", { matches: Number(await preview.getAttribute("data-preview")) });
  await form.getByLabel("Readers share it").selectOption("failover");
  await form.getByLabel("Messages that may wait").fill("5");
  await shot(page, "policies-form");
  await form.getByLabel("Messages that may wait").press("Enter");
  await form.waitFor({ state: "detached" });
  const row = page.locator(`tr[data-key="${options.vhost} bounds"]`);
  await row.waitFor();
  await shot(page, "policies");
  say("policy", { row: (await row.innerText()).replaceAll("\n", " ") });

  await page.goto(`${options.base}/#/streams/${encodeURIComponent(options.vhost)}/${encodeURIComponent(options.queue)}`);
  await page.getByText("5 messages", { exact: true }).waitFor();
  await page.getByRole("link", { name: "bounds" }).waitFor();
  await page.getByText("failover", { exact: true }).first().waitFor();
  await shot(page, "policies-queue");
  say("limits");

  await page.getByRole("link", { name: "Policies", exact: true }).click();
  await page.getByRole("button", { name: "Delete policy bounds" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete policy" }).click();
  await row.waitFor({ state: "detached" });
  say("policy-deleted");

  await page.getByRole("link", { name: "Retained", exact: true }).click();
  const ask = page.getByRole("search", { name: "Retained messages" });
  await ask.getByLabel("Filter").fill(options.topic.replace(/[^/]+$/, "+"));
  await ask.getByLabel("Filter").press("Enter");
  const value = page.locator(`tr[data-key="${options.topic}"]`);
  await value.waitFor();
  say("retained", { value: await value.locator("code.value").textContent() });
  await shot(page, "retained");
  await value.press("Enter");
  const look = page.getByRole("dialog");
  await look.locator("pre").waitFor();
  await shot(page, "retained-value");
  await look.getByRole("button", { name: "Clear" }).click();
  await page.getByRole("dialog", { name: "Clear this value?" }).getByRole("button", { name: "Clear", exact: true }).click();
  await value.waitFor({ state: "detached" });
  say("cleared");
}

async function watch(page) {
  check(options.queue, "--queue is needed");
  await signIn(page);
  await page.getByRole("link", { name: "Connections", exact: true }).click();
  await page.getByRole("heading", { name: "Connections" }).waitFor();
  say("watching");
  for (const protocol of options.protocols.split(",")) {
    const seen = await page.waitForFunction(
      (wanted) => {
        const memory = (window.seenTotals ??= {});
        for (const row of document.querySelectorAll("tr[data-key]")) {
          if (row.querySelector(".tag.protocol")?.textContent !== wanted) continue;
          const totals = [...row.querySelectorAll("[data-total]")].map((cell) => Number(cell.dataset.total));
          const total = totals.reduce((sum, one) => sum + one, 0);
          const first = (memory[row.dataset.key] ??= total);
          if (total > first) return { total, first, row: row.innerText.replaceAll("\n", " ") };
        }
        return null;
      },
      protocol,
      { timeout: deadlineMs, polling: 100 },
    );
    say("connection", { protocol, ...(await seen.jsonValue()) });
  }
  await shot(page, "watch-connections");
  await page.goto(`${options.base}/#/streams/${encodeURIComponent(options.vhost)}/${encodeURIComponent(options.queue)}`);
  await page.locator('[data-stat="Ready"]').waitFor({ timeout: deadlineMs });
  const moved = await page.waitForFunction(
    () => {
      const depth = ["Ready", "Unacknowledged"].map((name) => document.querySelector(`[data-stat="${name}"]`)?.textContent).join(" + ");
      window.firstDepth ??= depth;
      return depth === window.firstDepth ? null : { from: window.firstDepth, to: depth };
    },
    undefined,
    { timeout: deadlineMs, polling: 100 },
  );
  say("depth", { queue: options.queue, ...(await moved.jsonValue()) });
  await page.locator(".chart canvas").waitFor();
  await shot(page, "watch-queue");
}

async function ruleChange(page) {
  check(options.rule, "--rule is needed");
  await signIn(page);
  await page.getByRole("link", { name: "Rules", exact: true }).click();
  await page.getByRole("button", { name: `Edit rule ${options.rule}`, exact: true }).click();
  const editor = page.getByRole("dialog");
  await editor.getByText("deny", { exact: true }).first().click();
  say("ready");
  for await (const _ of createInterface({ input: process.stdin })) break;
  const saved = page.waitForResponse((response) => response.request().method() === "PUT" && response.url().includes("/api/v1/rules/"));
  await editor.getByRole("button", { name: "Save rule" }).click();
  const response = await saved;
  check(response.ok(), `the rule was not saved: ${response.status()}`);
  say("changed", { rule: options.rule, at_ms: Date.now() });
  await page.locator(`li.rule[data-key="${options.rule}"] .tag.deny`).waitFor();
  await shot(page, "rule-changed");
}

const scenarios = { login, manage, policies, watch, "rule-change": ruleChange };
const scenario = scenarios[options.scenario];
if (!scenario || !options.base || !options.user || !options.password) {
  say("failed", { error: "--base, --user, --password and --scenario (login, manage, policies, watch, rule-change) are needed" });
  process.exit(2);
}
const { chromium } = await playwright();
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
});
let status = 0;
try {
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
  page.setDefaultTimeout(Math.min(deadlineMs, 20000));
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => {
    // Refused logins show as failed requests; scripts and styles that the policy stops do not.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) errors.push(message.text());
  });
  await scenario(page);
  check(errors.length === 0, `errors in the page: ${errors.join("; ")}`);
  say("done");
} catch (error) {
  say("failed", { error: String(error.message ?? error) });
  status = 1;
} finally {
  await browser.close();
}
process.exit(status);
