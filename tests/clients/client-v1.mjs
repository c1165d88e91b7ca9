// Plays a script of MCP steps through the TypeScript SDK 1.x (@modelcontextprotocol/sdk). See README.md.

import { Lacking } from "./features.mjs";
import { answers, followPages, play, tool, ANSWERING, DEFAULT_STEP_TIMEOUT_MS } from "./lib.mjs";

const { Client } = tool("@modelcontextprotocol/sdk/client/index.js");
const { SSEClientTransport, SseError } = tool("@modelcontextprotocol/sdk/client/sse.js");
const { StdioClientTransport } = tool("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport, StreamableHTTPError } = tool("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { CreateMessageRequestSchema, ElicitRequestSchema, ListRootsRequestSchema, McpError, ResultSchema } = tool(
  "@modelcontextprotocol/sdk/types.js",
);
const SDK_VERSION = tool("./node_modules/@modelcontextprotocol/sdk/package.json").version;

play({ sdk: `typescript-${SDK_VERSION}`, eras: ["legacy"], connect, describe });

async function connect(options, journal) {
  const capabilities = options.answer === undefined ? {} : ANSWERING;
  const client = new Client({ name: "goblin-test-client-typescript", version: SDK_VERSION }, { capabilities });
  if (options.answer !== undefined) {
    const handlers = answers(options.answer, journal);
    client.setRequestHandler(CreateMessageRequestSchema, handlers["sampling/createMessage"]);
    client.setRequestHandler(ElicitRequestSchema, handlers["elicitation/create"]);
    client.setRequestHandler(ListRootsRequestSchema, handlers["roots/list"]);
    client.fallbackRequestHandler = async (request) => handlers.other(request);
  }
  client.fallbackNotificationHandler = async (notification) => journal.record(notification);
  client.onerror = (error) => console.error(`client: transport: ${error.message}`);
  const transport = openTransport(options);
  // The client does not show the negotiated version: over stdio nothing else asks for it.
  let protocolVersion;
  const setProtocolVersion = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (version) => {
    protocolVersion = version;
    setProtocolVersion?.(version);
  };
  await client.connect(transport, { timeout: DEFAULT_STEP_TIMEOUT_MS });
  return {
    handshake: {
      protocolVersion,
      serverInfo: client.getServerVersion(),
      capabilities: client.getServerCapabilities(),
      instructions: client.getInstructions() ?? null,
    },
    steps: stepsOf(client),
    async close() {
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

function stepsOf(client) {
  const pages = (list, member, { options }) => followPages((cursor) => list.call(client, { cursor }, options), member);
  const result = async (promise) => ({ result: await promise });
  return {
    initialize: () => result({}),
    list_tools: (_, context) => pages(client.listTools, "tools", context),
    list_prompts: (_, context) => pages(client.listPrompts, "prompts", context),
    list_resources: (_, context) => pages(client.listResources, "resources", context),
    list_templates: (_, context) => pages(client.listResourceTemplates, "resourceTemplates", context),
    call_tool: ({ name, arguments: args, progress }, { options, onProgress }) =>
      result(client.callTool({ name, arguments: args }, undefined, progress ? { ...options, onprogress: onProgress } : options)),
    call_as_task: async ({ name, arguments: args }, { options }) => {
      if (client.getServerCapabilities()?.tasks?.requests?.tools?.call === undefined) throw new Lacking("the server declares no tasks");
      const task = { ttl: 60_000 };
      const stream = client.experimental.tasks.callToolStream({ name, arguments: args }, undefined, { ...options, task });
      let status;
      for await (const message of stream) {
        if (message.type === "error") throw message.error;
        if (message.type === "result") return { status, result: message.result };
        status = message.task.status;
      }
    },
    get_prompt: ({ name, arguments: args }, { options }) => result(client.getPrompt({ name, arguments: args }, options)),
    read_resource: ({ uri }, { options }) => result(client.readResource({ uri }, options)),
    subscribe: ({ uri }, { options }) => result(client.subscribeResource({ uri }, options)),
    unsubscribe: ({ uri }, { options }) => result(client.unsubscribeResource({ uri }, options)),
    listen: () => Promise.reject(new Lacking(`SDK ${SDK_VERSION} has no subscriptions/listen`)),
    complete: ({ ref, argument, context }, { options }) => result(client.complete({ ref, argument, context }, options)),
    set_level: ({ level }, { options }) => result(client.setLoggingLevel(level, options)),
    ping: (_, { options }) => result(client.ping(options)),
    request: ({ method, params, progress }, { options, onProgress }) =>
      result(client.request({ method, params }, ResultSchema, progress ? { ...options, onprogress: onProgress } : options)),
    notify: ({ method, params }) => result(client.notification({ method, params }).then(() => ({}))),
  };
}

function describe(error) {
  if (error instanceof SseError) return { kind: "SseError", httpStatus: error.code };
  if (error instanceof StreamableHTTPError) return { kind: "StreamableHTTPError", httpStatus: error.code };
  if (!(error instanceof McpError)) return {};
  // The SDK writes the code into the message; what the server said comes after it.
  const message = error.message.replace(`MCP error ${error.code}: `, "");
  return { code: error.code, message, data: error.data ?? null };
}
