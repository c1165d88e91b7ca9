// An MCP server made with the TypeScript SDK 2.x that demands tokens. It serves both eras at one URL.

import { randomUUID } from "node:crypto";
import { createServer } from "node:http";

import { bodyOf } from "./ledger.mjs";
import { require } from "./packages.mjs";

const { createMcpHandler, isLegacyRequest, Server } = require("@modelcontextprotocol/server");
const { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } = require("@modelcontextprotocol/node");

const METADATA = "/.well-known/oauth-protected-resource/mcp";
/** The scope that each tool needs. */
const NEEDED = { whoami: "read", admin: "admin" };
const TOOLS = Object.keys(NEEDED).map((name) => ({ name, description: `Needs the scope ${NEEDED[name]}.`, inputSchema: { type: "object" } }));

/** Starts the server. `findToken(token)` returns the token of the authorization server, or undefined. */
export async function startResource({ ledger, idp }) {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const origin = `http://127.0.0.1:${server.address().port}`;
  const url = `${origin}/mcp`;
  /** The holder of the token, by request. The SDK hands the headers to the tool, not the request. */
  const holders = new Map();
  const serve = mcp(ledger, holders);
  const handle = async (request, response) => {
    const path = new URL(request.url, origin).pathname;
    if (path === METADATA) return sendMetadata(response, url, idp);
    if (path !== "/mcp") return void response.writeHead(404).end();
    const text = await bodyOf(request);
    const body = text === "" ? undefined : JSON.parse(text);
    record(ledger, request, body);
    const challenge = (status, parameters) => {
      const all = { ...parameters, resource_metadata: `${origin}${METADATA}` };
      const pairs = Object.entries(all).map(([name, value]) => `${name}="${value}"`);
      response.writeHead(status, { "www-authenticate": `Bearer ${pairs.join(", ")}` }).end();
    };
    if (ledger.faults.unavailable) return void response.writeHead(503).end();
    const holder = await holderOf(request, ledger, idp, url);
    if (holder === undefined) {
      ledger.count("unauthorized");
      const hasToken = request.headers.authorization !== undefined;
      return challenge(401, { ...(hasToken ? { error: "invalid_token" } : {}), scope: ledger.faults.challengeScope });
    }
    const needed = neededScope(body, ledger);
    if (needed !== undefined && !holder.scopes.includes(needed)) {
      ledger.count("forbidden");
      return challenge(403, { error: "insufficient_scope", scope: needed, error_description: `needs ${needed}` });
    }
    holders.set(request.headers.authorization, holder);
    await serve(request, response, body);
  };
  server.on("request", (request, response) => {
    handle(request, response).catch((error) => {
      console.error(`resource: ${error.stack}`);
      if (!response.headersSent) response.writeHead(500);
      response.end();
    });
  });
  return { origin, url };
}

function neededScope(body, ledger) {
  if (ledger.faults.neededScope !== null) return ledger.faults.neededScope;
  if (body?.method === "prompts/list") return ledger.faults.promptsScope ?? undefined;
  return body?.method === "tools/call" ? NEEDED[body.params?.name] : undefined;
}

function sendMetadata(response, url, idp) {
  const metadata = { resource: url, authorization_servers: [idp.issuer], scopes_supported: Object.values(NEEDED), bearer_methods_supported: ["header"] };
  response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(metadata));
}

function record(ledger, request, body) {
  const { method, url, rawHeaders } = request;
  ledger.add("requests", { line: `${method} ${url}`, headers: rawHeaders, method: body?.method ?? null, tool: body?.params?.name ?? null });
}

/** Returns the holder of the token in a request. Returns undefined if the token is not valid for this server. */
async function holderOf(request, ledger, { provider }, url) {
  const token = /^Bearer (\S+)$/.exec(request.headers.authorization ?? "")?.[1];
  if (token === undefined || ledger.faults.rejectAll || ledger.expired.has(token)) return undefined;
  const late = { ignoreExpiration: true };
  const found = (await provider.AccessToken.find(token, late)) ?? (await provider.ClientCredentials.find(token, late));
  if (found === undefined || Date.now() >= ledger.ends.get(token) || ![found.aud].flat().includes(url)) return undefined;
  return { subject: found.accountId ?? found.clientId, client: found.clientId, scopes: (found.scope ?? "").split(" ") };
}

/** Returns a handler of requests of either era. */
function mcp(ledger, holders) {
  const newServer = () => {
    const hasPrompts = ledger.faults.promptsScope !== null;
    const capabilities = { tools: {}, ...(hasPrompts ? { prompts: {} } : {}) };
    const server = new Server({ name: "goblin-test-protected-server", version: "0" }, { capabilities });
    if (hasPrompts) server.setRequestHandler("prompts/list", () => ({ prompts: [{ name: "greeting" }] }));
    server.setRequestHandler("tools/list", () => ({ tools: TOOLS }));
    server.setRequestHandler("tools/call", ({ params: { name } }, context) => {
      ledger.calls[name] = (ledger.calls[name] ?? 0) + 1;
      const holder = holders.get(context.http?.req?.headers.get("authorization"));
      return { content: [{ type: "text", text: JSON.stringify(name === "whoami" ? holder : { administers: holder?.subject }) }] };
    });
    return server;
  };
  const serveModern = toNodeHandler(createMcpHandler(newServer, { legacy: "reject" }));
  const sessions = new Map();
  const serveLegacy = async (request, response, body) => {
    const id = request.headers["mcp-session-id"];
    const transport = id === undefined ? await open(sessions, newServer) : sessions.get(id);
    if (transport === undefined) response.writeHead(404).end();
    else await transport.handleRequest(request, response, body);
  };
  return async (request, response, body) => {
    const isLegacy = await isLegacyRequest(await toWebRequest(request, body), body);
    await (isLegacy ? serveLegacy : serveModern)(request, response, body);
  };
}

async function open(sessions, newServer) {
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => void sessions.set(id, transport),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await newServer().connect(transport);
  return transport;
}
