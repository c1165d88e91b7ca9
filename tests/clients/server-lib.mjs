// What both TypeScript servers share: the catalog, what its tools do, the arguments of the program and the listener.
// Knows nothing of any SDK. README.md in this directory describes the arguments, catalog.json what is served.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { parseArgs } from "node:util";

const catalog = JSON.parse(readFileSync(new URL("catalog.json", import.meta.url), "utf8"));

export const INFO = { name: "goblin-test-server-typescript", version: "0" };
export const INSTRUCTIONS = "Call the tools in any order.";
export const CAPABILITIES = {
  tools: { listChanged: true },
  prompts: { listChanged: true },
  resources: { subscribe: true, listChanged: true },
  completions: {},
  logging: {},
  experimental: { "test/feature": { version: 1 } },
};
/** How many entries of a list a page has. */
const PAGE = 5;
const LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/** What outlives a session, or a request where there are no sessions. */
export const world = {
  grown: [],
  /** By key, how many calls of `slow` have been started and cancelled. */
  calls: new Map(),
  /** Told of each change, `{ uri }` or `{ list }`. */
  listeners: new Set(),
  /** What `notifications/test/note` brought. */
  notes: [],
  /** The requests for the notes that came before the first note. */
  waiting: [],
};

export function takeNote(note) {
  world.notes.push(note);
  for (const resolve of world.waiting.splice(0)) resolve();
}

/** The SDK may handle a request before the note that came first, so the answer waits for a note. */
async function notes() {
  if (world.notes.length === 0) await new Promise((resolve) => world.waiting.push(resolve));
  return { notes: world.notes };
}

function changed(change) {
  for (const listener of world.listeners) listener(change);
}

/** Answers a request; undefined if there is no such thing. `context` is the SDK's side, see `call`. */
export function answer(method, params, context) {
  switch (method) {
    case "tools/list":
      return page("tools", [...context.tools(catalog.tools), ...world.grown], params, context);
    case "tools/call":
      return call(params.name, params.arguments ?? {}, context);
    case "prompts/list":
      return page("prompts", catalog.prompts, params, context);
    case "prompts/get":
      if (params.name === "wide") return { ...catalog.widePrompt, description: JSON.stringify(params.arguments ?? {}) };
      if (params.name !== "greet") throw context.error({ code: -32602, message: "no such prompt", data: { prompt: params.name } });
      return { messages: [{ role: "user", content: { type: "text", text: `Hello, ${params.arguments.name}!` } }] };
    case "resources/list":
      return page("resources", catalog.resources, params, context);
    case "resources/templates/list":
      return page("resourceTemplates", catalog.resourceTemplates, params, context);
    case "resources/read":
      return read(params.uri, context);
    case "completion/complete":
      return complete(params);
    case "test/echo":
      if (params?.error !== undefined) throw context.error(params.error);
      return { echo: params?.value ?? null, meta: labels(params?._meta), _meta: { "test/label": "echo" } };
    case "test/notes":
      return notes();
  }
}

/** The page of a list that the cursor names. */
function page(member, entries, params, context) {
  const start = params?.cursor === undefined ? 0 : Number(params.cursor.replace("at-", ""));
  if (!(start < Math.max(entries.length, 1))) throw context.error({ code: -32602, message: "no such cursor", data: { cursor: params.cursor } });
  const next = start + PAGE < entries.length ? { nextCursor: `at-${start + PAGE}` } : {};
  return { [member]: entries.slice(start, start + PAGE), ...next, _meta: { "test/label": member } };
}

function complete({ argument, context }) {
  const values = catalog.names.filter((name) => name.startsWith(argument.value));
  const given = Object.values(context?.arguments ?? {});
  return { completion: { values: [...values, ...given], total: values.length, hasMore: false } };
}

/** The members of `_meta` that are the test's own. */
function labels(meta) {
  return Object.fromEntries(Object.entries(meta ?? {}).filter(([key]) => key.startsWith("test/")));
}

export const METHODS = [
  "tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list", "resources/templates/list", "resources/read",
  "completion/complete",
];
export const CUSTOM_METHODS = ["test/echo", "test/notes"];
export const CUSTOM_NOTIFICATION = "notifications/test/note";

function read(uri, context) {
  if (uri === "note://a" || uri === "note://b") return { contents: [{ uri, text: `note ${uri.at(-1)}` }] };
  if (uri === "note://wide") return { contents: catalog.wideContents, _meta: { "test/label": "read" } };
  const id = /^note:\/\/t\/(.+)$/.exec(uri)?.[1];
  if (id !== undefined) return { contents: [{ uri, text: `note t ${id}` }] };
  throw context.notFound(uri);
}

export const text = (words) => ({ content: [{ type: "text", text: words }] });

/**
 * `context` has `ask(key, request)`, `log(level, data, logger)`, `progress(progress)`, `notify(notification)`,
 * `error({ code, message, data })`, `later()`, `meta` and `signal`.
 */
async function call(name, args, context) {
  switch (name) {
    case "add":
      return text(String(args.a + args.b));
    case "greet_elicit": {
      const requestedSchema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
      const params = { message: "Who are you?", requestedSchema };
      const { action, content } = await context.ask("name", { method: "elicitation/create", params });
      return text(action === "accept" ? `Hello, ${content.name}!` : `the user said ${action}`);
    }
    case "sample_it": {
      const messages = [{ role: "user", content: { type: "text", text: "Say something" } }];
      const request = { method: "sampling/createMessage", params: { messages, maxTokens: 100 } };
      const { content } = await context.ask("sample", request);
      return text(`sampled ${[content].flat()[0].text}`);
    }
    case "list_my_roots": {
      const { roots } = await context.ask("roots", { method: "roots/list" });
      return text(`roots ${roots.map((root) => root.uri).join(" ")}`);
    }
    case "slow":
      return slow(args, context);
    case "cancelled_count": {
      const { started, cancelled } = world.calls.get(args.key) ?? { started: 0, cancelled: 0 };
      return text(`${started} started, ${cancelled} cancelled`);
    }
    case "chatty":
      await context.log("debug", "a debug line", "chatty");
      await context.log("info", "an info line", "chatty");
      await context.log("warning", "a warning line", "chatty");
      return text("said it");
    case "touch":
      changed({ uri: "note://a" });
      return text("touched");
    case "grow":
      world.grown.push({ name: args.name, inputSchema: { type: "object" } });
      changed({ list: "tools" });
      return text("grown");
    case "later":
      return context.later();
    case "perform":
      return perform(args, context);
    default:
      return { ...text(`there is no tool ${name}`), isError: true };
  }
}

/** Performs what the caller lists, in order. The answers to requests are the text of the result. */
async function perform({ do: actions = [], result, error }, context) {
  const answers = [];
  for (const [index, { log, progress, notify, ask, change, update, meta }] of actions.entries()) {
    if (log !== undefined) await context.log(log.level, log.data, log.logger);
    if (progress !== undefined) await context.progress(progress);
    if (notify !== undefined) await context.notify(notify);
    if (meta !== undefined) answers.push(labels(context.meta));
    if (change !== undefined) changed({ list: change });
    if (update !== undefined) changed({ uri: update });
    if (ask !== undefined) {
      try {
        answers.push(await context.ask(`ask${index}`, ask));
      } catch (problem) {
        if (problem.result !== undefined) throw problem;
        answers.push({ code: problem.code, message: problem.message, data: problem.data });
      }
    }
  }
  if (error !== undefined) throw context.error(error);
  return result ?? text(JSON.stringify(answers));
}

async function slow({ key, ms }, context) {
  const count = world.calls.get(key) ?? { started: 0, cancelled: 0 };
  world.calls.set(key, count);
  count.started += 1;
  for (const progress of [1, 2, 3]) await context.progress({ progress, total: 3, message: `step ${progress}` });
  await new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    const cancel = () => {
      count.cancelled += 1;
      clearTimeout(timer);
      resolve();
    };
    if (context.signal.aborted) cancel();
    else context.signal.addEventListener("abort", cancel);
  });
  return text("waited");
}

/** A session of a legacy client: what it is subscribed to, from which level on it wants log lines. */
export class Session {
  #subscribed = new Set();
  #level = "debug";

  /** `tell(notification)` sends to the client. */
  constructor(tell) {
    const listener = ({ uri, list }) => {
      if (list !== undefined) tell({ method: `notifications/${list}/list_changed` });
      else if (this.#subscribed.has(uri)) tell({ method: "notifications/resources/updated", params: { uri } });
    };
    world.listeners.add(listener);
    this.end = () => world.listeners.delete(listener);
  }

  subscribe({ uri }) {
    this.#subscribed.add(uri);
    return {};
  }

  unsubscribe({ uri }) {
    this.#subscribed.delete(uri);
    return {};
  }

  setLevel({ level }) {
    this.#level = level;
    return {};
  }

  wants(level) {
    return LEVELS.indexOf(level) >= LEVELS.indexOf(this.#level);
  }
}

/** `[--era legacy|modern|both] stdio|http`. */
export function parseArguments(eras) {
  const { values, positionals } = parseArgs({ allowPositionals: true, options: { era: { type: "string", default: eras[0] } } });
  if (!["stdio", "http", "sse"].includes(positionals[0]) || positionals.length !== 1 || !eras.includes(values.era)) {
    console.error(`usage: [--era ${eras.join("|")}] stdio|http`);
    process.exit(2);
  }
  return { era: values.era, transport: positionals[0] };
}

/** Serves on a free port of 127.0.0.1 and says where. */
export function listen(handle) {
  const server = createServer((request, response) => {
    Promise.resolve(handle(request, response)).catch((error) => {
      console.error(`server: ${error.stack}`);
      if (!response.headersSent) response.writeHead(500);
      response.end();
    });
  });
  server.listen(0, "127.0.0.1", () => console.log(`listening http://127.0.0.1:${server.address().port}/mcp`));
}

/** The whole body of a POST, parsed; undefined for other methods. */
export async function bodyOf(request) {
  if (request.method !== "POST") return undefined;
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return JSON.parse(Buffer.concat(chunks).toString("utf8"));
}

/** Serves legacy sessions: `open(sessions)` gives the transport of a new one, which puts itself into `sessions`. */
export function sessionful(open) {
  const sessions = new Map();
  return async (request, response, body) => {
    const id = request.headers["mcp-session-id"];
    const transport = id === undefined ? await open(sessions) : sessions.get(id);
    if (transport === undefined) response.writeHead(404).end();
    else await transport.handleRequest(request, response, body);
  };
}
