// A server made with the TypeScript SDK 1.x (@modelcontextprotocol/sdk), which knows the legacy era only. See README.md.

import { randomUUID } from "node:crypto";

import { tool } from "./lib.mjs";
import { answer, bodyOf, listen, parseArguments, sessionful, text, CAPABILITIES, INFO, METHODS, Session } from "./server-lib.mjs";

const { Server } = tool("@modelcontextprotocol/sdk/server/index.js");
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
else {
  const serve = sessionful(open);
  listen(async (request, response) => serve(request, response, await bodyOf(request)));
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
  const server = new Server(INFO, { capabilities: { ...CAPABILITIES, tasks }, taskStore: new InMemoryTaskStore() });
  const session = new Session((notification) => void server.notification(notification).catch(() => {}));
  server.onclose = () => session.end();
  for (const method of METHODS) {
    server.setRequestHandler(REQUESTS[method], (request, extra) => answer(method, request.params, contextOf(request, extra, session)));
  }
  server.setRequestHandler(types.SubscribeRequestSchema, ({ params }) => session.subscribe(params));
  server.setRequestHandler(types.UnsubscribeRequestSchema, ({ params }) => session.unsubscribe(params));
  server.setRequestHandler(types.SetLevelRequestSchema, ({ params }) => session.setLevel(params));
  return server;
}

function contextOf({ params }, extra, session) {
  return {
    signal: extra.signal,
    tools: (tools) => tools,
    notFound: (uri) => new types.McpError(-32002, "Resource not found", { uri }),
    ask: (_, request) => extra.sendRequest(request, ANSWERS[request.method]),
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
