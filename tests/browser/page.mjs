// A page in Chromium that speaks MQTT with mqtt.js's browser build over a WebSocket, and prints what
// happened as JSON lines.
//
//   node page.mjs --url ws://127.0.0.1:8083/mqtt [--from HOST] [--seconds N]
//
// The page is served by this script, as if by HOST (127.0.0.1 unless told otherwise). It connects,
// subscribes, and publishes a small and a large message to itself: {"step":"done","protocol":...,
// "subprotocol":...,"received":[lengths]}; or {"step":"refused","error":...} when it cannot connect.
//
// Chromium is found by the environment variable CHROMIUM, else /usr/bin/chromium. playwright-core and
// mqtt are found in ../node.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { parseArgs } from "node:util";
import { pathToFileURL } from "node:url";

const { values: options } = parseArgs({
  options: {
    url: { type: "string" },
    from: { type: "string", default: "127.0.0.1" },
    seconds: { type: "string", default: "30" },
  },
});
const deadlineMs = Number(options.seconds) * 1000;

function say(step, more = {}) {
  process.stdout.write(`${JSON.stringify({ step, ...more })}\n`);
}

const nodeFolder = new URL("../node/package.json", import.meta.url);
const require = createRequire(nodeFolder);
const playwright = (await import(pathToFileURL(require.resolve("playwright-core")))).default;
const library = readFileSync(new URL("node_modules/mqtt/dist/mqtt.min.js", nodeFolder));

const server = createServer((request, response) => {
  const script = request.url === "/mqtt.js";
  response.setHeader("content-type", script ? "text/javascript" : "text/html");
  response.end(script ? library : "<!doctype html><title>page</title><script src='/mqtt.js'></script>");
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));

const browser = await playwright.chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", `--host-resolver-rules=MAP ${options.from} 127.0.0.1`],
});
try {
  const page = await browser.newPage();
  page.setDefaultTimeout(deadlineMs);
  await page.goto(`http://${options.from}:${server.address().port}/`);
  const result = await page.evaluate(
    ([url, withinMs]) =>
      new Promise((resolve) => {
        const client = mqtt.connect(url, { reconnectPeriod: 0, connectTimeout: withinMs });
        const sizes = [5, 300_000];
        const received = [];
        client.on("error", (error) => resolve({ refused: String(error.message ?? error) }));
        client.on("close", () => resolve({ refused: "closed" }));
        client.on("message", (_topic, body) => {
          received.push(body.length);
          if (received.length === sizes.length) {
            const { protocol } = client.stream.socket ?? {};
            resolve({ received, subprotocol: protocol, version: client.options.protocolVersion });
          }
        });
        client.on("connect", async () => {
          await client.subscribeAsync("page/#", { qos: 1 });
          for (const size of sizes) {
            await client.publishAsync("page/own", "x".repeat(size), { qos: 1 });
          }
        });
      }),
    [options.url, deadlineMs],
  );
  if (result.refused) say("refused", { error: result.refused });
  else say("done", result);
} finally {
  await browser.close();
  server.close();
}
