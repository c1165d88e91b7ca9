// An authorization server made with npm `oidc-provider`. It approves each login of a browser that follows redirects.

import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

import { require } from "./packages.mjs";

const { default: Provider, errors } = await import(pathToFileURL(require.resolve("oidc-provider")));

/** The account that every browser logs in to. */
const ACCOUNT = "ada";
const SCOPES = ["read", "admin"];
/** The client metadata document that the server knows without a request. Other documents do not exist. */
const DOCUMENT = "https://goblin.invalid/client.json";
const DAY = 24 * 3600;

/** Starts the server. `resource` is the URL of the MCP server. */
export async function startIdp({ resource, ledger, machineKeys, onControl }) {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, configuration({ issuer, resource, ledger, machineKeys }));
  watch(provider, ledger);
  const serve = provider.callback();
  server.on("request", (request, response) => {
    const path = new URL(request.url, issuer).pathname;
    if (path.startsWith("/control")) return void onControl(request, response).catch((error) => fail(response, error));
    if (path.startsWith("/interaction/")) return void approve(provider, resource, request, response).catch((error) => fail(response, error));
    serve(request, response);
  });
  return { issuer, provider };
}

function fail(response, error) {
  console.error(`idp: ${error.stack}`);
  if (!response.headersSent) response.writeHead(500);
  response.end(String(error.message));
}

function configuration({ issuer, resource, ledger, machineKeys }) {
  const machine = { grant_types: ["client_credentials"], response_types: [], redirect_uris: [], scope: SCOPES.join(" ") };
  const person = {
    application_type: "native", grant_types: ["authorization_code", "refresh_token"], response_types: ["code"],
    redirect_uris: ["http://127.0.0.1/callback", "http://localhost/callback"],
  };
  return {
    clients: [
      { ...machine, client_id: "machine", client_secret: "canary-machine-secret-0123456789abcdef" },
      { ...machine, client_id: "machine-key", token_endpoint_auth_method: "private_key_jwt", token_endpoint_auth_signing_alg: machineKeys.algorithm, jwks: { keys: [machineKeys.jwk] } },
      { ...person, client_id: "registered", client_secret: "canary-registered-secret-0123456789ab" },
    ],
    clientDefaults: { id_token_signed_response_alg: "ES256" },
    jwks: { keys: [machineKeys.serverJwk] },
    cookies: { keys: ["only for tests"] },
    clockTolerance: 0,
    scopes: ["openid", "offline_access", ...SCOPES],
    routes: { registration: "/register", authorization: "/authorize", revocation: "/revoke", introspection: "/introspect" },
    features: {
      devInteractions: { enabled: false },
      registration: { enabled: true, issueRegistrationAccessToken: false },
      revocation: { enabled: true },
      introspection: { enabled: true },
      clientCredentials: { enabled: true },
      rpInitiatedLogout: { enabled: false },
      pushedAuthorizationRequests: { enabled: false },
      dPoP: { enabled: false },
      clientIdMetadataDocument: { enabled: true, ack: "draft-02" },
      deviceFlow: {
        enabled: true,
        userCodeInputSource: page, userCodeConfirmSource: page,
        successSource: (ctx) => page(ctx, "<p>done</p>"),
      },
      resourceIndicators: {
        enabled: true,
        defaultResource: (_, __, oneOf) => oneOf ?? resource,
        useGrantedResource: () => true,
        getResourceServerInfo(_, indicator) {
          if (indicator !== resource) throw new errors.InvalidTarget();
          return { scope: SCOPES.join(" "), audience: resource, accessTokenTTL: ledger.faults.lifetime, accessTokenFormat: "opaque" };
        },
      },
    },
    pkce: { required: () => true },
    issueRefreshToken: (_, client) => client.grantTypeAllowed("refresh_token"),
    expiresWithSession: () => false,
    rotateRefreshToken: true,
    ttl: { AuthorizationCode: 60, DeviceCode: 600, Grant: 30 * DAY, Interaction: 600, RefreshToken: 30 * DAY, Session: DAY, IdToken: 600 },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    fetch: fetchDocument,
    async renderError(ctx, out) {
      ctx.type = "json";
      ctx.body = out;
    },
  };

  async function fetchDocument(url) {
    if (String(url) !== DOCUMENT) throw new Error(`there is no ${url}`);
    const document = { ...person, client_id: DOCUMENT, client_name: "Goblin", token_endpoint_auth_method: "none" };
    return new Response(JSON.stringify(document), { headers: { "content-type": "application/json" } });
  }
}

/** A page with the form of the library, and nothing else. */
function page(ctx, form) {
  ctx.type = "html";
  ctx.body = form;
}

/** Logs the account in and grants what the client requests. */
async function approve(provider, resource, request, response) {
  const { params } = await provider.interactionDetails(request, response);
  const grant = new provider.Grant({ accountId: ACCOUNT, clientId: params.client_id });
  const scopes = (params.scope ?? "").split(" ").filter((scope) => scope !== "");
  // The library counts the scopes of the server as its own too, because it lists them in its metadata.
  grant.addOIDCScope(scopes.join(" "));
  grant.addResourceScope(resource, scopes.filter((scope) => SCOPES.includes(scope)).join(" "));
  const consent = { grantId: await grant.save() };
  await provider.interactionFinished(request, response, { login: { accountId: ACCOUNT }, consent });
}

/** Records requests and applies the faults. */
function watch(provider, ledger) {
  provider.on("refresh_token.saved", (token) => ledger.grants.add(token.grantId));
  provider.on("access_token.saved", (token) => ledger.grants.add(token.grantId));
  provider.on("grant.revoked", (ctx) => {
    ledger.count("revokedGrants");
    if (ctx.oidc.route === "token") ledger.count("reusedTokens");
  });
  provider.use(async (ctx, next) => {
    if (ctx.path !== "/token") {
      await next();
      return note(ledger, ctx);
    }
    ledger.count("tokenRequests");
    const entry = { at: Date.now(), handled: false, answered: false, closed: false };
    ledger.add("tokens", entry);
    // The end of a request whose client has died is recorded too.
    try {
      await answerToken(ledger, ctx, next, entry);
    } finally {
      entry.closed = true;
    }
  });
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function answerToken(ledger, ctx, next, entry) {
  const { token: fault, delayBefore, delayAfter } = ledger.faults;
  if (delayBefore > 0) await pause(delayBefore);
  if (fault === "hang") return void (ctx.respond = false);
  if (fault === "500") return void Object.assign(ctx, { status: 500, body: "broken" });
  if (fault === "html") return void Object.assign(ctx, { status: 200, type: "html", body: "<html>busy</html>" });
  if (fault === "invalid_client" || fault === "invalid_grant") {
    return void Object.assign(ctx, { status: fault === "invalid_client" ? 401 : 400, body: { error: fault, error_description: "switched by the test" } });
  }
  await next();
  noteToken(ledger, ctx, entry);
  ctx.res.on("finish", () => (entry.answered = true));
  if (delayAfter > 0) await pause(delayAfter);
  if (fault === "drop") {
    ctx.respond = false;
    ctx.req.socket.destroy();
  }
}

function noteToken(ledger, ctx, entry) {
  const { params = {}, entities = {} } = ctx.oidc ?? {};
  const body = ctx.body ?? {};
  const authorization = ctx.get("authorization");
  if (authorization.startsWith("Basic ")) {
    const [, secret] = Buffer.from(authorization.slice(6), "base64").toString("utf8").split(":");
    ledger.secret("client_secret", decodeURIComponent(secret ?? ""));
  }
  for (const name of ["code", "code_verifier", "refresh_token", "client_secret", "client_assertion", "device_code"]) {
    ledger.secret(name, params[name]);
  }
  ledger.secret("access_token", body.access_token);
  if (body.access_token !== undefined) ledger.ends.set(body.access_token, Date.now() + body.expires_in * 1000);
  ledger.secret("refresh_token", body.refresh_token);
  ledger.secret("id_token", body.id_token);
  const client = entities.Client;
  Object.assign(entry, {
    grant: params.grant_type, resource: params.resource ?? null, scope: body.scope ?? null, error: body.error ?? null,
    handled: body.access_token !== undefined, client: client?.clientId ?? null, method: client?.clientAuthMethod ?? null,
    access: body.access_token ?? null,
  });
  if (params.grant_type !== "refresh_token") return;
  ledger.count("refreshes");
  ledger.count(body.error === undefined ? "handledRefreshes" : "refreshErrors");
}

function note(ledger, ctx) {
  const body = ctx.body ?? {};
  switch (ctx.path) {
    case "/register":
      ledger.count("registrations");
      return ledger.secret("client_secret", body.client_secret);
    case "/authorize": {
      ledger.count("authorizations");
      const { redirect_uri, scope, resource, code_challenge_method, client_id, prompt } = ctx.query;
      return ledger.add("authorizations", { redirect_uri, scope, resource, code_challenge_method, client_id, prompt });
    }
    case "/device/auth":
      ledger.count("deviceAuthorizations");
      // The default interval of 5 s would make tests slow.
      body.interval = 1;
      return ledger.secret("device_code", body.device_code);
    case "/revoke":
      return ledger.count("revocations");
  }
}
