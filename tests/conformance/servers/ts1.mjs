// The server of the conformance suite with the TypeScript SDK 1.x (@modelcontextprotocol/sdk). The SDK has only the
// legacy era.

import { randomUUID } from "node:crypto";

import { tool } from "../../clients/lib.mjs";
import { bodyOf, listen, sessionful } from "../../clients/server-lib.mjs";
import { call, complete, getPrompt, listPrompts, listTools, read, resourceTemplates, resources, text, world, Events, RETRY_MS, WATCHED } from "./fixtures.mjs";

const { Server } = tool("@modelcontextprotocol/sdk/server/index.js");
const { StreamableHTTPServerTransport } = tool("@modelcontextprotocol/sdk/server/streamableHttp.js");
const types = tool("@modelcontextprotocol/sdk/types.js");

const CAPABILITIES = {
  tools: { listChanged: true },
  prompts: { listChanged: true },
  resources: { subscribe: true },
  completions: {},
  logging: {},
};
const ANSWERS = {
  "elicitation/create": types.ElicitResultSchema,
  "sampling/createMessage": types.CreateMessageResultSchema,
  "roots/list": types.ListRootsResultSchema,
};
const LEVELS = ["debug", "info"];
const LOCAL_HOST = /^(127\.0\.0\.1|localhost)(:\d+)?$/;

const serve = sessionful(open);
listen(async (request, response) => {
  // The protection of the SDK is middleware of a web framework, or it needs the port in advance.
  if (!LOCAL_HOST.test(request.headers.host)) response.writeHead(403).end();
  else await serve(request, response, await bodyOf(request));
});

async function open(sessions) {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new Events(),
    retryInterval: RETRY_MS,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await newServer().connect(transport);
  return transport;
}

function newServer() {
  const server = new Server({ name: "goblin-conformance-ts1", version: "0" }, { capabilities: CAPABILITIES });
  const session = { subscribed: new Set(), level: "info" };
  const listener = (subject) => void notify(server, session, subject).catch(() => {});
  world.listeners.add(listener);
  server.onclose = () => world.listeners.delete(listener);
  handleLists(server);
  handleSession(server, session);
  server.setRequestHandler(types.CallToolRequestSchema, async ({ params }, extra) => {
    const result = await call(params.name, params.arguments ?? {}, contextOf(server, session, params, extra));
    if (result === undefined) throw new types.McpError(-32602, `unknown tool: ${params.name}`);
    return result;
  });
  server.setRequestHandler(types.GetPromptRequestSchema, async ({ params }, extra) => {
    const result = await getPrompt(params.name, params.arguments ?? {}, contextOf(server, session, params, extra));
    if (result === undefined) throw new types.McpError(-32602, `unknown prompt: ${params.name}`);
    return result;
  });
  return server;
}

function handleLists(server) {
  server.setRequestHandler(types.ListToolsRequestSchema, () => ({ tools: listTools() }));
  server.setRequestHandler(types.ListPromptsRequestSchema, () => ({ prompts: listPrompts() }));
  server.setRequestHandler(types.ListResourcesRequestSchema, () => ({ resources }));
  server.setRequestHandler(types.ListResourceTemplatesRequestSchema, () => ({ resourceTemplates }));
  server.setRequestHandler(types.CompleteRequestSchema, ({ params }) => complete(params.argument));
  server.setRequestHandler(types.ReadResourceRequestSchema, ({ params: { uri } }) => {
    const result = read(uri);
    if (result === undefined) throw new types.McpError(-32002, "Resource not found", { uri });
    return result;
  });
}

function handleSession(server, session) {
  server.setRequestHandler(types.SetLevelRequestSchema, ({ params }) => {
    session.level = params.level;
    return {};
  });
  server.setRequestHandler(types.SubscribeRequestSchema, ({ params }) => {
    session.subscribed.add(params.uri);
    return {};
  });
  server.setRequestHandler(types.UnsubscribeRequestSchema, ({ params }) => {
    session.subscribed.delete(params.uri);
    return {};
  });
}

async function notify(server, session, subject) {
  if (subject === "tools") await server.sendToolListChanged();
  else if (subject === "prompts") await server.sendPromptListChanged();
  else if (session.subscribed.has(WATCHED)) await server.sendResourceUpdated({ uri: WATCHED });
}

function contextOf(server, session, params, extra) {
  return {
    capabilities: server.getClientCapabilities() ?? {},
    missingCapability: (requiredCapabilities) => new types.McpError(-32021, "the client lacks a capability", { requiredCapabilities }),
    closeStream: () => extra.closeSSEStream?.(),
    async log(data) {
      if (LEVELS.includes(session.level)) await extra.sendNotification({ method: "notifications/message", params: { level: "info", data } });
    },
    async progress(progress) {
      const progressToken = params._meta?.progressToken;
      if (progressToken === undefined) return;
      await extra.sendNotification({ method: "notifications/progress", params: { progressToken, ...progress } });
    },
    ask: (take) => push(take, (request) => extra.sendRequest(request, ANSWERS[request.method])),
  };
}

/** Sends the requests of each step to the client until the tool is done. */
async function push(take, send) {
  let next = take({}, undefined);
  while (next.requests !== undefined) {
    const responses = {};
    for (const [key, request] of Object.entries(next.requests)) responses[key] = await send(request);
    next = take(responses, next.state);
  }
  return next.refused ? { ...text("the user refused"), isError: true } : next.done;
}
