// The server of the conformance suite with the TypeScript SDK 2.x (@modelcontextprotocol/server), in both eras.

import { randomUUID } from "node:crypto";

import { tool } from "../../clients/lib.mjs";
import { bodyOf, listen, sessionful } from "../../clients/server-lib.mjs";
import { call, complete, getPrompt, listPrompts, listTools, read, resourceTemplates, resources, text, world, Events, RETRY_MS, WATCHED } from "./fixtures.mjs";

const { createMcpHandler, createRequestStateCodec, fromJsonSchema, isLegacyRequest, McpServer, MissingRequiredClientCapabilityError, ProtocolError } =
  tool("@modelcontextprotocol/server");
const { localhostHostValidation, localhostOriginValidation, NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } =
  tool("@modelcontextprotocol/node");

const CAPABILITIES = {
  tools: { listChanged: true },
  prompts: { listChanged: true },
  resources: { subscribe: true },
  completions: {},
  logging: {},
};
/** The key of `requestState`. It need not be secret, because it only protects test conversations. */
const codec = createRequestStateCodec({ key: "goblin-conformance: the seal of requestState" });

const modern = createMcpHandler(() => newServer("modern"), { legacy: "reject" });
world.listeners.add((subject) => {
  if (subject === "tools") modern.notify.toolsChanged();
  else if (subject === "prompts") modern.notify.promptsChanged();
  else modern.notify.resourceUpdated(WATCHED);
});
const serveModern = toNodeHandler(modern);
const serveLegacy = sessionful(open);
const [hasLocalHost, hasLocalOrigin] = [localhostHostValidation(), localhostOriginValidation()];
listen(async (request, response) => {
  if (!hasLocalHost(request, response) || !hasLocalOrigin(request, response)) return;
  const body = await bodyOf(request);
  const legacy = await isLegacyRequest(await toWebRequest(request, body), body);
  await (legacy ? serveLegacy : serveModern)(request, response, body);
});

async function open(sessions) {
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    eventStore: new Events(),
    retryInterval: RETRY_MS,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await newServer("legacy").connect(transport);
  return transport;
}

function newServer(era) {
  const options = { capabilities: CAPABILITIES, requestState: { verify: codec.verify } };
  const product = new McpServer({ name: "goblin-conformance-ts2", version: "0" }, options);
  const { server } = product;
  // The SDK checks the mirrored headers of registered tools. The handlers below replace its own.
  for (const { name, description, inputSchema } of listTools()) {
    product.registerTool(name, { description, inputSchema: fromJsonSchema(inputSchema) }, () => text("done"));
  }
  handleLists(server, era);
  server.setRequestHandler("tools/call", async ({ params }, context) => {
    const result = await call(params.name, params.arguments ?? {}, contextOf(server, era, context));
    if (result === undefined) throw new ProtocolError(-32602, `unknown tool: ${params.name}`);
    return result;
  });
  server.setRequestHandler("prompts/get", async ({ params }, context) => {
    const result = await getPrompt(params.name, params.arguments ?? {}, contextOf(server, era, context));
    if (result === undefined) throw new ProtocolError(-32602, `unknown prompt: ${params.name}`);
    return result;
  });
  if (era === "legacy") handleSession(server);
  return product;
}

function handleLists(server, era) {
  server.setRequestHandler("tools/list", () => ({ tools: listTools() }));
  server.setRequestHandler("prompts/list", () => ({ prompts: listPrompts() }));
  server.setRequestHandler("resources/list", () => ({ resources }));
  server.setRequestHandler("resources/templates/list", () => ({ resourceTemplates }));
  server.setRequestHandler("completion/complete", ({ params }) => complete(params.argument));
  server.setRequestHandler("resources/read", ({ params: { uri } }) => {
    const result = read(uri);
    if (result === undefined) throw new ProtocolError(era === "modern" ? -32602 : -32002, "Resource not found", { uri });
    return result;
  });
}

function handleSession(server) {
  const subscribed = new Set();
  const listener = (subject) => {
    if (subject === "tools") server.sendToolListChanged().catch(() => {});
    else if (subject === "prompts") server.sendPromptListChanged().catch(() => {});
    else if (subscribed.has(WATCHED)) server.sendResourceUpdated({ uri: WATCHED }).catch(() => {});
  };
  world.listeners.add(listener);
  server.onclose = () => world.listeners.delete(listener);
  server.setRequestHandler("resources/subscribe", ({ params }) => {
    subscribed.add(params.uri);
    return {};
  });
  server.setRequestHandler("resources/unsubscribe", ({ params }) => {
    subscribed.delete(params.uri);
    return {};
  });
}

function contextOf(server, era, context) {
  const { http, mcpReq } = context;
  const declared = mcpReq.envelope?.["io.modelcontextprotocol/clientCapabilities"];
  return {
    capabilities: (era === "modern" ? declared : server.getClientCapabilities()) ?? {},
    missingCapability: (requiredCapabilities) => new MissingRequiredClientCapabilityError({ requiredCapabilities }),
    closeStream: () => http?.closeSSE?.(),
    log: (data) => mcpReq.log("info", data),
    async progress(progress) {
      const progressToken = mcpReq._meta?.progressToken;
      if (progressToken === undefined) return;
      await mcpReq.notify({ method: "notifications/progress", params: { progressToken, ...progress } });
    },
    // The SDK sends the requests to a legacy client and then calls the handler again.
    async ask(take) {
      const { done, refused, requests, state } = take(mcpReq.inputResponses, mcpReq.requestState());
      if (done !== undefined) return done;
      if (refused) return { ...text("the user refused"), isError: true };
      const sealed = state === undefined ? {} : { requestState: await codec.mint(state, context) };
      return { resultType: "input_required", inputRequests: requests, ...sealed };
    },
  };
}
