// What both TypeScript clients share: arguments, the journal of notifications, the loop over the steps, and the one
// JSON object on stdout. Knows nothing of any SDK; `play(connect)` is the door.
//
// README.md in this directory describes the arguments, the steps and the output.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { parseArgs } from "node:util";

import { playFeature, Begun, FEATURES } from "./features.mjs";

export const DEFAULT_STEP_TIMEOUT_MS = 30_000;
/** The SDKs wait 2 s for a child to end by itself, 2 s more after SIGTERM. */
const CLOSE_TIMEOUT_MS = 10_000;
const POLL_MS = 20;

const STEPS = [
  "initialize", "list_tools", "await_tool", "await_prompt", "await_resource", "await_template", "call_tool", "list_prompts", "get_prompt", "list_resources", "list_templates",
  "read_resource", "subscribe", "unsubscribe", "listen", "complete", "set_level", "ping", "wait_notification", "request", "notify",
  "begin_call", "await_progress", "await_text", "cancel_call", "call_as_task",
];
/** Steps that list again and again until an entry is there: by which list, in which member, known by what. */
const AWAITED = {
  await_tool: ["list_tools", "tools", "name"],
  await_prompt: ["list_prompts", "prompts", "name"],
  await_resource: ["list_resources", "resources", "uri"],
  await_template: ["list_templates", "resourceTemplates", "uriTemplate"],
};
/** Of a step of a feature: those that fail must not use up the patience of a whole test. */
const FEATURE_TIMEOUT_MS = 45_000;
/** Of a call that is to be cancelled. */
const LONG_MS = 120_000;

/**
 * Loads an installed package. The packages stand in target/tools, where `cargo xtask tools` puts them, and not beside
 * this file, so `import` would not find them.
 */
export const tool = createRequire(new URL("../../target/tools/package.json", import.meta.url));

/**
 * Plays the script named on the command line and ends the process.
 *
 * `connect(options, journal)` gives `{ handshake, steps, close }`, where `steps[name](step, context)` resolves to
 * `{ result, pages? }`, and `describe(error)` gives `{ code, data }` of an error that came from the server.
 */
export async function play({ sdk, eras, connect, describe }) {
  const options = parseArguments(eras);
  const journal = new Journal();
  // Node ends with code 0, and without a word, when nothing is left that could wake a promise we wait for.
  const awake = setInterval(() => {}, 1000);
  process.exitCode = 1;
  try {
    const connection = await connect(options, journal);
    if (options.features !== undefined) return await playFeatures({ sdk, options, connection, journal, describe });
    const [steps, state] = [[], {}];
    for (const [index, step] of options.steps.entries()) {
      steps.push(await playStep(connection.steps, journal, describe, step, index, state));
    }
    // The report stands whether or not the end is peaceful.
    await within(CLOSE_TIMEOUT_MS, connection.close()).catch((error) => console.error(`client: close: ${error.message}`));
    const { progress, asks, trace } = journal;
    const report = { sdk, ...connection.handshake, steps, progress, asks, notifications: journal.contents(), trace };
    // Exit from the callback: process.exit() does not wait for a pipe.
    process.stdout.write(`${JSON.stringify(report)}\n`, () => process.exit(0));
  } catch (error) {
    console.error(`client: ${error?.name ?? "error"}: ${error?.message ?? error}`, error?.cause?.message ?? "");
    process.exit(1);
  } finally {
    clearInterval(awake);
  }
}

/** One line on stdout for each feature: what came of it. */
async function playFeatures({ sdk, options, connection, journal, describe }) {
  const state = {};
  const playOne = (step) => playStep(connection.steps, journal, describe, { timeoutMs: FEATURE_TIMEOUT_MS, ...step }, step.do, state);
  for (const feature of options.features) {
    const verdict = await playFeature(feature, { era: options.era, mark: options.answer, sdk }, playOne);
    process.stdout.write(`${JSON.stringify(verdict)}\n`);
  }
  await within(CLOSE_TIMEOUT_MS, connection.close()).catch((error) => console.error(`client: close: ${error.message}`));
  process.stdout.write("", () => process.exit(0));
}

/** What a client declares that answers for its user. */
export const ANSWERING = { sampling: { tools: {}, context: {} }, elicitation: { form: {}, url: {} }, roots: {} };

/** By method, the answers of a user who puts `mark` into each; the journal keeps what was asked. */
export function answers(mark, journal) {
  const keeping = (answer) => (request) => {
    const ask = { method: request.method, params: request.params };
    journal.asks.push(ask);
    journal.trace.push({ ask });
    // A server of the tests may name the answer that it wants.
    const { error, result } = request.params?._meta?.["test/answer"] ?? {};
    if (error !== undefined) throw Object.assign(new Error(error.message), error);
    return result ?? answer(request.params ?? {});
  };
  return {
    /** For any other method. */
    other: keeping((params) => ({ echo: params })),
    "sampling/createMessage": keeping(() => ({
      role: "assistant",
      content: { type: "text", text: mark },
      model: "none",
    })),
    "elicitation/create": keeping(({ mode }) =>
      mode === "url" ? { action: "accept" } : { action: "accept", content: { name: mark } },
    ),
    "roots/list": keeping(() => ({ roots: [{ uri: `file:///${mark}` }] })),
  };
}

/** Calls `listPage(cursor)` until there is no next cursor, and joins the pages in the first. */
export async function followPages(listPage, member) {
  const joined = await listPage(undefined);
  let pages = 1;
  while (joined.nextCursor !== undefined) {
    const page = await listPage(joined.nextCursor);
    joined[member].push(...page[member]);
    joined.nextCursor = page.nextCursor;
    pages += 1;
  }
  return { result: joined, pages };
}

function parseArguments(eras) {
  const usage = (problem) => {
    console.error(`client: ${problem}`);
    console.error("usage: [--era legacy|auto|modern] [--answer MARK] [--header 'NAME: VALUE'] http|sse URL SCRIPT.json");
    console.error("       [--era legacy|auto|modern] [--answer MARK] stdio SCRIPT.json -- COMMAND ARGS...");
    console.error("       --features all|NAME,... instead of SCRIPT.json");
    process.exit(2);
  };
  const given = process.argv.slice(2);
  const cut = given.includes("--") ? given.indexOf("--") : given.length;
  const command = given.slice(cut + 1);
  let parsed;
  try {
    parsed = parseArgs({
      args: given.slice(0, cut),
      allowPositionals: true,
      options: {
        era: { type: "string", default: "legacy" },
        answer: { type: "string" },
        features: { type: "string" },
        header: { type: "string", multiple: true, default: [] },
      },
    });
  } catch (error) {
    usage(error.message);
  }
  const [transport, ...rest] = parsed.positionals;
  const features = featuresOf(parsed.values.features, usage);
  if (features !== undefined) {
    parsed.values.answer ??= "mark";
    rest.push(undefined); // where the script would be
  }
  const wellFormed =
    (["http", "sse"].includes(transport) && rest.length === 2 && command.length === 0) ||
    (transport === "stdio" && rest.length === 1 && command.length > 0);
  if (!wellFormed) usage("wrong arguments");
  if (!eras.includes(parsed.values.era)) usage(`this SDK knows the eras ${eras.join(", ")}`);

  const steps = features === undefined ? JSON.parse(readFileSync(rest.at(-1), "utf8")) : [];
  const unknown = steps.map((step) => step.do).filter((name) => !STEPS.includes(name));
  if (unknown.length > 0) usage(`unknown steps ${unknown.join(", ")}; known are ${STEPS.join(", ")}`);
  return {
    era: parsed.values.era,
    answer: parsed.values.answer,
    transport,
    headers: Object.fromEntries(parsed.values.header.map((header) => header.split(/: (.*)/s).slice(0, 2))),
    url: transport === "stdio" ? undefined : new URL(rest[0]),
    command,
    steps,
    features,
  };
}

function featuresOf(given, usage) {
  if (given === undefined) return undefined;
  const features = given === "all" ? Object.keys(FEATURES) : given.split(",");
  const unknown = features.filter((name) => FEATURES[name] === undefined);
  if (unknown.length > 0) usage(`unknown features ${unknown.join(", ")}; known are ${Object.keys(FEATURES).join(", ")}`);
  return features;
}

async function playStep(steps, journal, describe, step, index, state = {}) {
  const timeout = step.timeoutMs ?? DEFAULT_STEP_TIMEOUT_MS;
  if (step.do !== "wait_notification") journal.acted();
  let outcome;
  try {
    const context = {
      // Of the SDK's request. Ours is the one below; it fires only if the SDK's does not.
      options: { timeout, maxTotalTimeout: timeout },
      onProgress: (progress) => {
        journal.progress.push({ step: index, ...progress });
        journal.trace.push({ progress });
      },
    };
    const own = {
      wait_notification: () => journal.take(step, timeout),
      count_notifications: () => ({ result: journal.count(step) }),
      await_text: () => awaitText(() => steps.call_tool(step, context), step, timeout),
      begin_call: () => {
        const begin = (signal, onProgress) =>
          steps.call_tool({ ...step, progress: true }, { options: { ...context.options, timeout: LONG_MS, maxTotalTimeout: LONG_MS, signal }, onProgress });
        state.begun = new Begun(begin);
        return {};
      },
      await_progress: () => within(timeout, state.begun.progress(step.count)),
      cancel_call: () => within(timeout, state.begun.cancel()),
    };
    if (step.do in AWAITED) own[step.do] = () => awaitListed((list) => steps[list]({}, context), step, timeout);
    const play = own[step.do] ?? (() => within(timeout + 1000, steps[step.do](step, context)));
    outcome = { do: step.do, ok: true, ...(await play()) };
  } catch (error) {
    const known = { code: null, data: null, ...describe(error) };
    outcome = { do: step.do, ok: false, error: { message: String(error?.message ?? error), kind: error?.name, ...known } };
  }
  // A test that must act between two steps waits for this line.
  console.error(`client: step ${index} ${step.do} ${outcome.ok ? "ok" : "failed"}`);
  return outcome;
}

/** Lists again and again until the entry that the step names is there. */
async function awaitListed(play, step, timeout) {
  const [list, member, key] = AWAITED[step.do];
  const deadline = Date.now() + timeout;
  while (Date.now() < deadline) {
    const listed = await play(list);
    if (listed.result[member].some((entry) => entry[key] === step[key])) return listed;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  throw new Error(`${step.do} did not end within ${timeout} ms`);
}

/** Calls a tool again and again until its first text is this. */
async function awaitText(call, { text }, timeout) {
  const deadline = Date.now() + timeout;
  let last;
  while (Date.now() < deadline) {
    last = await call();
    if (last.result.content[0].text === text) return last;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  throw new Error(`await_text did not end within ${timeout} ms; the last text was ${JSON.stringify(last.result.content)}`);
}

async function within(milliseconds, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`did not end within ${milliseconds} ms`)), milliseconds);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** All notifications and progress of the connection, in order of arrival. */
class Journal {
  entries = [];
  progress = [];
  asks = [];
  /** All of it together. */
  trace = [];
  #actedAt = 0;
  #waiter = () => {};

  record({ method, params }) {
    this.entries.push({ content: { method, params }, taken: false });
    this.trace.push({ notification: { method, params } });
    this.#waiter();
  }

  /** A step that does something begins: what arrives from here on is fresh. */
  acted() {
    this.#actedAt = this.entries.length;
  }

  contents() {
    return this.entries.map((entry) => entry.content);
  }

  /** How many matching notifications have come, whoever took them. */
  count({ method, params = {} }) {
    return this.entries.filter((entry) => matches(entry.content, method, params)).length;
  }

  /** The first matching notification that no earlier step took; waits for it. */
  take({ method, params = {}, fresh = false }, timeout) {
    const since = fresh ? this.#actedAt : 0;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#waiter = () => {};
        reject(new Error(`wait_notification did not end within ${timeout} ms`));
      }, timeout);
      this.#waiter = () => {
        const entry = this.entries.slice(since).find((entry) => !entry.taken && matches(entry.content, method, params));
        if (entry === undefined) return;
        entry.taken = true;
        this.#waiter = () => {};
        clearTimeout(timer);
        resolve({ result: entry.content });
      };
      this.#waiter();
    });
  }
}

function matches(content, method, params) {
  return (
    content.method === method &&
    Object.entries(params).every(([key, value]) => JSON.stringify(content.params?.[key]) === JSON.stringify(value))
  );
}
