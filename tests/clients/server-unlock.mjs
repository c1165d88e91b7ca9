// A server with one server object per session, made with the TypeScript SDK 1.x. The tool `unlock` registers the tool
// `secret` for its own session alone, and the SDK announces the changed list. See README.md.
//
//     node server-unlock.mjs stdio|http|sse

import { randomUUID } from "node:crypto";

import { tool } from "./lib.mjs";
import { bodyOf, listen, sessionful, text } from "./server-lib.mjs";

const { McpServer } = tool("@modelcontextprotocol/sdk/server/mcp.js");
const { StdioServerTransport } = tool("@modelcontextprotocol/sdk/server/stdio.js");
const { StreamableHTTPServerTransport } = tool("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { SSEServerTransport } = tool("@modelcontextprotocol/sdk/server/sse.js");

const transport = process.argv[2];
if (transport === "stdio") await newServer().connect(new StdioServerTransport());
else if (transport === "http") {
  const serve = sessionful(open);
  listen(async (request, response) => serve(request, response, await bodyOf(request)));
} else {
  const sessions = new Map();
  listen(async (request, response) => {
    const url = new URL(request.url, "http://localhost");
    if (request.method === "GET") {
      const opened = new SSEServerTransport("/messages", response);
      sessions.set(opened.sessionId, opened);
      return newServer().connect(opened);
    }
    const found = sessions.get(url.searchParams.get("sessionId"));
    if (found === undefined) return void response.writeHead(url.pathname === "/mcp" ? 405 : 404).end();
    return found.handlePostMessage(request, response);
  });
}

async function open(sessions) {
  const opened = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: (id) => void sessions.set(id, opened),
    onsessionclosed: (id) => void sessions.delete(id),
  });
  await newServer().connect(opened);
  return opened;
}

function newServer() {
  const server = new McpServer({ name: "unlock", version: "0" });
  server.registerTool("unlock", { description: "Registers the secret tool" }, () => {
    server.registerTool("secret", { description: "The secret tool" }, () => text("the secret"));
    return text("unlocked");
  });
  return server;
}
