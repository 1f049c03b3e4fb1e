// The line protocol that every foreign client speaks with the tests; described in ../py/agent.py.
import { createInterface } from 'node:readline';

const utf8 = new TextDecoder('utf-8', { fatal: true });

/** Bytes of a JSON value as the tests write it. */
export function toBytes(value) {
  return typeof value === 'string' ? Buffer.from(value, 'utf8') : Buffer.from(value.hex, 'hex');
}

/** A JSON value for bytes: text where they are UTF-8, else hex. */
export function fromBytes(bytes) {
  try {
    return utf8.decode(bytes);
  } catch {
    return { hex: Buffer.from(bytes).toString('hex') };
  }
}

/** A list that operations can wait on. */
export class Inbox {
  #items = [];
  #wake = () => {};

  push(item) {
    this.#items.push(item);
    this.#wake();
  }

  /** Up to `count` items, as soon as that many are there or the time is over. */
  async take(count, withinMs) {
    const deadline = Date.now() + withinMs;
    while (this.#items.length < count && Date.now() < deadline) {
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, deadline - Date.now());
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    return this.#items.splice(0, count);
  }
}

/** Calls `operations[do](arguments)` for each line of stdin, one after the other. */
export async function serve(operations) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { do: name, ...request } = JSON.parse(line);
    let answer;
    try {
      answer = { ok: (await operations[name](request)) ?? {} };
    } catch (error) {
      answer = { error: `${name}: ${error.stack ?? error}` };
    }
    process.stdout.write(JSON.stringify(answer) + '\n');
  }
  process.exit(0);
}
