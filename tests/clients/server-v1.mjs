// A server made with the TypeScript SDK 1.x (@modelcontextprotocol/sdk), which knows the legacy era only. See README.md.

import { randomUUID } from "node:crypto";

import { tool } from "./lib.mjs";
import { answer, bodyOf, listen, parseArguments, sessionful, takeNote, text, CAPABILITIES, CUSTOM_METHODS, CUSTOM_NOTIFICATION, INFO, INSTRUCTIONS, METHODS, Session } from "./server-lib.mjs";

const { Server } = tool("@modelcontextprotocol/sdk/server/index.js");
const { SSEServerTransport } = tool("@modelcontextprotocol/sdk/server/sse.js");
const { StdioServerTransport } = tool("@modelcontextprotocol/sdk/server/stdio.js");
const { StreamableHTTPServerTransport } = tool("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { InMemoryTaskStore } = tool("@modelcontextprotocol/sdk/experimental/tasks");
const types = tool("@modelcontextprotocol/sdk/types.js");

const REQUESTS = {
  "tools/list": types.ListToolsRequestSchema,
  "tools/call": types.CallToolRequestSchema,
  "prompts/list": types.ListPromptsRequestSchema,
  "prompts/get": types.GetPromptRequestSchema,
  "resources/list": types.ListResourcesRequestSchema,
  "resources/templates/list": types.ListResourceTemplatesRequestSchema,
  "resources/read": types.ReadResourceRequestSchema,
  "completion/complete": types.CompleteRequestSchema,
};
const ANSWERS = {
  "elicitation/create": types.ElicitResultSchema,
  "sampling/createMessage": types.CreateMessageResultSchema,
  "roots/list": types.ListRootsResultSchema,
};

const { transport } = parseArguments(["legacy"]);
if (transport === "stdio") await newServer().connect(new StdioServerTransport());
else if (transport === "sse") serveSse();
else {
  const serve = sessionful(open);
  listen(async (request, response) => serve(request, response, await bodyOf(request)));
}

function serveSse() {
  const transports = new Map();
  listen(async (request, response) => {
    if (request.method === "GET") {
      const transport = new SSEServerTransport("/messages", response);
      transports.set(transport.sessionId, transport);
      await newServer().connect(transport);
    } else {
      const id = new URL(request.url, "http://127.0.0.1").searchParams.get("sessionId");
      await transports.get(id).handlePostMessage(request, response);
    }
  });
}

async function open(sessions) {
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await newServer().connect(transport);
  return transport;
}

function newServer() {
  const tasks = { requests: { tools: { call: {} } }, cancel: {}, list: {} };
  const options = { capabilities: { ...CAPABILITIES, tasks }, instructions: INSTRUCTIONS, taskStore: new InMemoryTaskStore() };
  const server = new Server(INFO, options);
  const session = new Session((notification) => void server.notification(notification).catch(() => {}));
  server.onclose = () => session.end();
  for (const method of METHODS) {
    server.setRequestHandler(REQUESTS[method], (request, extra) => answer(method, request.params, contextOf(request, extra, session)));
  }
  server.fallbackRequestHandler = async (request, extra) => {
    if (!CUSTOM_METHODS.includes(request.method)) throw new types.McpError(-32601, "Method not found");
    return answer(request.method, request.params, contextOf(request, extra, session));
  };
  server.fallbackNotificationHandler = async ({ method, params }) => {
    if (method === CUSTOM_NOTIFICATION) takeNote(params ?? null);
  };
  server.setRequestHandler(types.SubscribeRequestSchema, ({ params }) => session.subscribe(params));
  server.setRequestHandler(types.UnsubscribeRequestSchema, ({ params }) => session.unsubscribe(params));
  server.setRequestHandler(types.SetLevelRequestSchema, ({ params }) => session.setLevel(params));
  return server;
}

function contextOf({ params }, extra, session) {
  return {
    signal: extra.signal,
    tools: (tools) => tools,
    meta: params?._meta,
    notFound: (uri) => new types.McpError(-32002, "Resource not found", { uri }),
    error: ({ code, message, data }) => Object.assign(new Error(message), { code, data }),
    ask: (_, request) => extra.sendRequest(request, ANSWERS[request.method] ?? types.ResultSchema),
    notify: (notification) => extra.sendNotification(notification),
    async log(level, data, logger) {
      if (session.wants(level)) await extra.sendNotification({ method: "notifications/message", params: { level, data, logger } });
    },
    async progress(progress) {
      const progressToken = params._meta?.progressToken;
      if (progressToken === undefined) return;
      await extra.sendNotification({ method: "notifications/progress", params: { progressToken, ...progress } });
    },
    async later() {
      if (params.task === undefined) return text("done later");
      const task = await extra.taskStore.createTask({ ttl: params.task.ttl });
      setImmediate(() => extra.taskStore.storeTaskResult(task.taskId, "completed", text("done later")));
      return { task };
    },
  };
}
