// The state that the tests read and switch over `/control`: counters, the recorded requests, and the faults.

/** The limit of recorded requests and events. A soak run stays below it. */
const MAX_ENTRIES = 200_000;

export class Ledger {
  /** What a test switches with `POST /control`. */
  faults = {
    /** The answer of the token endpoint: null, "500", "html", "hang", "drop" (after it handled the request), "invalid_client" or "invalid_grant". */
    token: null,
    /** Milliseconds before and after the token endpoint handles a request. */
    delayBefore: 0,
    delayAfter: 0,
    /** Whether the MCP server rejects every token. */
    rejectAll: false,
    /** Whether the MCP server answers 503. */
    unavailable: false,
    /** The scope that every request to the MCP server needs, or null. */
    neededScope: null,
    /** The lifetime of access tokens in seconds. */
    lifetime: 3600,
    /** The scopes in the challenge of a request without a usable token. */
    challengeScope: "read",
    /** The scope that the list of prompts needs. With null the MCP server has no prompts. */
    promptsScope: null,
  };
  counters = {
    registrations: 0, authorizations: 0, deviceAuthorizations: 0, tokenRequests: 0, refreshes: 0, refreshErrors: 0,
    revocations: 0, revokedGrants: 0, reusedTokens: 0, unauthorized: 0, forbidden: 0, handledRefreshes: 0,
  };
  /** By name, the tool calls that were performed. */
  calls = {};
  /** One entry for each request to the token endpoint. */
  tokens = [];
  /** One entry for each authorization request: its parameters. */
  authorizations = [];
  /** One entry for each HTTP request to the MCP server. */
  requests = [];
  /** Every token, code, verifier and secret that was issued or received, with its kind. */
  secrets = new Map();
  /** Access tokens that the MCP server treats as expired. */
  expired = new Set();
  access = new Set();
  /** By access token, the time of its end in milliseconds. The library rounds to seconds. */
  ends = new Map();
  grants = new Set();

  count(name) {
    this.counters[name] += 1;
  }

  secret(kind, value) {
    if (typeof value !== "string" || value === "") return;
    if (this.secrets.size < MAX_ENTRIES) this.secrets.set(value, kind);
    if (kind === "access_token") this.access.add(value);
  }

  add(list, entry) {
    if (this[list].length < MAX_ENTRIES) this[list].push(entry);
  }

  /** Lets the MCP server reject all access tokens that exist. */
  expireAll() {
    for (const token of this.access) this.expired.add(token);
  }
}

/** Answers `/control` and the paths below it. */
export function control(ledger, actions) {
  return async (request, response) => {
    const answer = (value) => response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(value));
    const path = new URL(request.url, "http://127.0.0.1").pathname;
    if (path === "/control/requests") return answer(ledger.requests);
    if (path === "/control/secrets") return answer([...ledger.secrets].map(([value, kind]) => ({ kind, value })));
    if (path === "/control/tokens") return answer(ledger.tokens);
    if (path === "/control/authorizations") return answer(ledger.authorizations);
    if (request.method === "POST") {
      const { expireAll, revokeAll, ...faults } = JSON.parse((await bodyOf(request)) || "{}");
      const unknown = Object.keys(faults).filter((name) => !(name in ledger.faults));
      if (unknown.length > 0) return response.writeHead(400).end(`unknown faults: ${unknown}`);
      Object.assign(ledger.faults, faults);
      if (expireAll) ledger.expireAll();
      if (revokeAll) await actions.revokeAll();
    }
    answer({ ...ledger.counters, calls: ledger.calls, faults: ledger.faults });
  };
}

/** The whole body of a request. */
export async function bodyOf(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks).toString("utf8");
}
