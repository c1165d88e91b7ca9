// What both TypeScript servers share: the catalog, what its tools do, the arguments of the program and the listener.
// Knows nothing of any SDK. README.md in this directory describes the arguments, catalog.json what is served.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { parseArgs } from "node:util";

const catalog = JSON.parse(readFileSync(new URL("catalog.json", import.meta.url), "utf8"));

export const INFO = { name: "goblin-test-server-typescript", version: "0" };
export const CAPABILITIES = {
  tools: { listChanged: true },
  prompts: {},
  resources: { subscribe: true },
  completions: {},
  logging: {},
};
const LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/** What outlives a session, or a request where there are no sessions. */
export const world = {
  grown: [],
  /** By key, how many calls of `slow` have been started and cancelled. */
  calls: new Map(),
  /** Told of each change, `{ uri }` or `{}` for the list of tools. */
  listeners: new Set(),
};

function changed(change) {
  for (const listener of world.listeners) listener(change);
}

/** Answers a request; undefined if there is no such thing. `context` is the SDK's side, see `call`. */
export function answer(method, params, context) {
  switch (method) {
    case "tools/list":
      return { tools: [...context.tools(catalog.tools), ...world.grown] };
    case "tools/call":
      return call(params.name, params.arguments ?? {}, context);
    case "prompts/list":
      return { prompts: catalog.prompts };
    case "prompts/get":
      return { messages: [{ role: "user", content: { type: "text", text: `Hello, ${params.arguments.name}!` } }] };
    case "resources/list":
      return { resources: catalog.resources };
    case "resources/templates/list":
      return { resourceTemplates: catalog.resourceTemplates };
    case "resources/read":
      return read(params.uri, context);
    case "completion/complete":
      return { completion: { values: catalog.names.filter((name) => name.startsWith(params.argument.value)) } };
  }
}

export const METHODS = [
  "tools/list", "tools/call", "prompts/list", "prompts/get", "resources/list", "resources/templates/list", "resources/read",
  "completion/complete",
];

function read(uri, context) {
  if (uri === "note://a") return { contents: [{ uri, text: "note a" }] };
  const id = /^note:\/\/t\/(.+)$/.exec(uri)?.[1];
  if (id !== undefined) return { contents: [{ uri, text: `note t ${id}` }] };
  throw context.notFound(uri);
}

export const text = (words) => ({ content: [{ type: "text", text: words }] });

/** `context` has `ask(key, request)`, `log(level, data, logger)`, `progress(progress)`, `later()` and `signal`. */
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
      changed({});
      return text("grown");
    case "later":
      return context.later();
    default:
      return { ...text(`there is no tool ${name}`), isError: true };
  }
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
    const listener = ({ uri }) => {
      if (uri === undefined) tell({ method: "notifications/tools/list_changed" });
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
  if (!["stdio", "http"].includes(positionals[0]) || positionals.length !== 1 || !eras.includes(values.era)) {
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
