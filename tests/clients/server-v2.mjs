// A server made with the TypeScript SDK 2.x (@modelcontextprotocol/server), of either era or both. See README.md.

import { randomUUID } from "node:crypto";

import { tool } from "./lib.mjs";
import { answer, bodyOf, listen, parseArguments, sessionful, takeNote, text, world, CAPABILITIES, CUSTOM_METHODS, CUSTOM_NOTIFICATION, INFO, INSTRUCTIONS, METHODS, Session } from "./server-lib.mjs";

const { createMcpHandler, isLegacyRequest, ProtocolError, Server } = tool("@modelcontextprotocol/server");
const { serveStdio, StdioServerTransport } = tool("@modelcontextprotocol/server/stdio");
const { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } = tool("@modelcontextprotocol/node");
const { z } = tool("zod");

/** This SDK knows nothing of tasks; their methods are ours. */
const TASKS = "io.modelcontextprotocol/tasks";
const tasks = new Map();

/** Thrown where a tool has to ask; a client of either era is then asked by the SDK, and the tool is run again. */
class Asking extends Error {
  constructor(key, request) {
    super("the client must be asked");
    this.result = { resultType: "input_required", inputRequests: { [key]: request } };
  }
}

const { era, transport } = parseArguments(["both", "legacy", "modern"]);
if (transport === "http") serveHttp();
else if (era === "legacy") await newServer("legacy").connect(new StdioServerTransport());
else serveStdio(({ era }) => newServer(era), { legacy: era === "both" ? "serve" : "reject" });

function serveHttp() {
  const modern = createMcpHandler(({ era }) => newServer(era), { legacy: "reject" });
  const notify = { tools: "toolsChanged", prompts: "promptsChanged", resources: "resourcesChanged" };
  world.listeners.add(({ uri, list }) => (list === undefined ? modern.notify.resourceUpdated(uri) : modern.notify[notify[list]]()));
  const serveModern = toNodeHandler(modern);
  const serveLegacy = sessionful(open);
  listen(async (request, response) => {
    const body = await bodyOf(request);
    const legacy = era === "legacy" || (era === "both" && (await isLegacyRequest(await toWebRequest(request, body), body)));
    await (legacy ? serveLegacy : serveModern)(request, response, body);
  });
}

async function open(sessions) {
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await newServer("legacy").connect(transport);
  return transport;
}

function newServer(era) {
  const extensions = era === "modern" ? { extensions: { [TASKS]: {} } } : {};
  const server = new Server(INFO, { capabilities: { ...CAPABILITIES, ...extensions }, instructions: INSTRUCTIONS });
  const handle = async (request, context) => {
    try {
      return await answer(request.method, request.params, contextOf(era, request, context));
    } catch (error) {
      if (error instanceof Asking) return error.result;
      throw error;
    }
  };
  for (const method of METHODS) server.setRequestHandler(method, handle);
  server.fallbackRequestHandler = async (request, context) => {
    if (!CUSTOM_METHODS.includes(request.method)) throw new ProtocolError(-32601, "Method not found");
    return handle(request, context);
  };
  server.fallbackNotificationHandler = async ({ method, params }) => {
    if (method === CUSTOM_NOTIFICATION) takeNote(params ?? null);
  };
  if (era === "modern") {
    serveTasks(server);
    // One instance serves a connection over stdio; over HTTP, where it serves a request, the handler tells of changes.
    if (transport === "stdio") tellOfChanges(server);
    return server;
  }
  const session = new Session((notification) => void server.notification(notification).catch(() => {}));
  server.onclose = () => session.end();
  server.setRequestHandler("resources/subscribe", ({ params }) => session.subscribe(params));
  server.setRequestHandler("resources/unsubscribe", ({ params }) => session.unsubscribe(params));
  return server;
}

function tellOfChanges(server) {
  const send = { tools: "sendToolListChanged", prompts: "sendPromptListChanged", resources: "sendResourceListChanged" };
  const listener = ({ uri, list }) => {
    const told = list === undefined ? server.sendResourceUpdated({ uri }) : server[send[list]]();
    told.catch(() => {});
  };
  world.listeners.add(listener);
  server.onclose = () => world.listeners.delete(listener);
}

function serveTasks(server) {
  const params = z.looseObject({ taskId: z.string() });
  server.setRequestHandler("tasks/get", { params }, ({ taskId }) => {
    const task = tasks.get(taskId);
    if (task === undefined) throw new ProtocolError(-32602, "there is no such task");
    return { ...task, status: "completed", result: text("done later") };
  });
}

function contextOf(era, { params }, { mcpReq }) {
  return {
    signal: mcpReq.signal,
    // The field is of 2025-11-25 only.
    tools: (tools) => tools.map(({ execution, ...tool }) => tool),
    meta: mcpReq._meta,
    error: ({ code, message, data }) => new ProtocolError(code, message, data),
    notify: (notification) => mcpReq.notify(notification),
    notFound: (uri) => new ProtocolError(era === "modern" ? -32602 : -32002, "Resource not found", { uri }),
    ask(key, request) {
      const given = mcpReq.inputResponses?.[key];
      if (given === undefined) throw new Asking(key, request);
      return given;
    },
    log: (level, data, logger) => mcpReq.log(level, data, logger),
    async progress(progress) {
      const progressToken = mcpReq._meta?.progressToken;
      if (progressToken === undefined) return;
      await mcpReq.notify({ method: "notifications/progress", params: { progressToken, ...progress } });
    },
    later() {
      const capabilities = mcpReq.envelope?.["io.modelcontextprotocol/clientCapabilities"];
      if (capabilities?.extensions?.[TASKS] === undefined) return text("done later");
      const now = new Date().toISOString();
      const task = { taskId: randomUUID(), status: "working", ttlMs: 60_000, pollIntervalMs: 20, createdAt: now, lastUpdatedAt: now };
      tasks.set(task.taskId, task);
      return { resultType: "task", ...task };
    },
  };
}
