// Plays a script of MCP steps through the TypeScript SDK 2.x (@modelcontextprotocol/client). See README.md.

import { Lacking } from "./features.mjs";
import { answers, play, tool, ANSWERING, DEFAULT_STEP_TIMEOUT_MS } from "./lib.mjs";

const { Client, LOG_LEVEL_META_KEY, ProtocolError, SdkHttpError, SSEClientTransport, StreamableHTTPClientTransport } = tool(
  "@modelcontextprotocol/client",
);
const { StdioClientTransport } = tool("@modelcontextprotocol/client/stdio");
const { z } = tool("zod");
const SDK_VERSION = tool("./node_modules/@modelcontextprotocol/client/package.json").version;

const NEGOTIATION = { legacy: "legacy", auto: "auto", modern: { pin: "2026-07-28" } };
/** The SDK gives up at 64 pages; tests make small pages. */
const MAX_PAGES = 10_000;

play({ sdk: `typescript-${SDK_VERSION}`, eras: Object.keys(NEGOTIATION), connect, describe });

async function connect(options, journal) {
  const client = new Client(
    { name: "goblin-test-client-typescript", version: SDK_VERSION },
    {
      capabilities: options.answer === undefined ? {} : ANSWERING,
      versionNegotiation: { mode: NEGOTIATION[options.era] },
      listMaxPages: MAX_PAGES,
    },
  );
  if (options.answer !== undefined) {
    const { other, ...handlers } = answers(options.answer, journal);
    for (const [method, answer] of Object.entries(handlers)) client.setRequestHandler(method, answer);
    client.fallbackRequestHandler = async (request) => other(request);
  }
  client.fallbackNotificationHandler = async (notification) => journal.record(notification);
  client.onerror = (error) => console.error(`client: transport: ${error.message}`);
  const transport = openTransport(options);
  await client.connect(transport, { timeout: DEFAULT_STEP_TIMEOUT_MS });
  const subscriptions = [];
  return {
    handshake: {
      protocolVersion: client.getNegotiatedProtocolVersion(),
      serverInfo: client.getServerVersion() ?? null,
      capabilities: client.getServerCapabilities(),
      instructions: client.getInstructions() ?? null,
    },
    steps: stepsOf(client, subscriptions),
    async close() {
      for (const subscription of subscriptions) await subscription.close();
      await transport.terminateSession?.().catch((error) => console.error(`client: DELETE: ${error.message}`));
      await client.close();
    },
  };
}

function openTransport({ transport, url, headers, command }) {
  if (transport === "sse") return new SSEClientTransport(url, { requestInit: { headers } });
  if (transport === "http") return new StreamableHTTPClientTransport(url, { requestInit: { headers } });
  // The SDK would hand down a few variables only; tests speak to their server through the environment.
  return new StdioClientTransport({ command: command[0], args: command.slice(1), env: process.env });
}

function stepsOf(client, subscriptions) {
  const result = async (promise) => ({ result: await promise });
  // Without a cursor this SDK follows the pages itself. A step asks the server, not the SDK's memory.
  const pages = (list, { options }) => result(list.call(client, undefined, { ...options, cacheMode: "refresh" }));
  return {
    initialize: () => result({}),
    list_tools: (_, context) => pages(client.listTools, context),
    list_prompts: (_, context) => pages(client.listPrompts, context),
    list_resources: (_, context) => pages(client.listResources, context),
    list_templates: (_, context) => pages(client.listResourceTemplates, context),
    call_tool: ({ name, arguments: args, progress, level }, { options, onProgress }) => {
      const meta = level === undefined ? {} : { _meta: { [LOG_LEVEL_META_KEY]: level } };
      return result(client.callTool({ name, arguments: args, ...meta }, progress ? { ...options, onprogress: onProgress } : options));
    },
    call_as_task: () => Promise.reject(new Lacking(`SDK ${SDK_VERSION} refuses the results of tasks`)),
    get_prompt: ({ name, arguments: args }, { options }) => result(client.getPrompt({ name, arguments: args }, options)),
    read_resource: ({ uri }, { options }) => result(client.readResource({ uri }, { ...options, cacheMode: "refresh" })),
    subscribe: ({ uri }, { options }) => result(client.subscribeResource({ uri }, options)),
    unsubscribe: ({ uri }, { options }) => result(client.unsubscribeResource({ uri }, options)),
    listen: async ({ notifications }, { options }) => {
      const subscription = await client.listen(notifications, options);
      subscriptions.push(subscription);
      return { result: { notifications: subscription.honoredFilter } };
    },
    complete: ({ ref, argument, context }, { options }) => result(client.complete({ ref, argument, context }, options)),
    set_level: ({ level }, { options }) => result(client.setLoggingLevel(level, options)),
    ping: (_, { options }) => result(client.ping(options)),
    // The schema leaves the result as it is.
    request: ({ method, params, progress }, { options, onProgress }) =>
      result(client.request({ method, params }, z.looseObject({}), progress ? { ...options, onprogress: onProgress } : options)),
    notify: ({ method, params }) => result(client.notification({ method, params }).then(() => ({}))),
  };
}

function describe(error) {
  if (error instanceof SdkHttpError) return { httpStatus: error.status };
  // Other errors of the SDK have a word where a protocol error has its number: not the server's answer.
  return error instanceof ProtocolError ? { code: error.code, data: error.data ?? null } : {};
}
