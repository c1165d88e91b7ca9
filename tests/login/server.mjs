// An authorization server and an MCP server that demands its tokens. Prints their addresses as one line of JSON.

import { generateKeyPairSync } from "node:crypto";

import { startIdp } from "./idp.mjs";
import { control, Ledger } from "./ledger.mjs";
import { startResource } from "./resource.mjs";

// The library prints notices, and stdout has one line only.
console.info = console.warn = console.error;

const ledger = new Ledger();
const machine = generateKeyPairSync("ec", { namedCurve: "P-256" });
const signing = generateKeyPairSync("ec", { namedCurve: "P-256" });
const machineKeys = {
  algorithm: "ES256",
  jwk: { ...machine.publicKey.export({ format: "jwk" }), kid: "machine-1", use: "sig" },
  serverJwk: { ...signing.privateKey.export({ format: "jwk" }), kid: "server-1", use: "sig" },
};

// Each server needs the address of the other, so the MCP server gets the issuer later.
const idp = {};
const resource = await startResource({ ledger, idp });
const revokeAll = async () => {
  for (const grant of ledger.grants) {
    await idp.provider.RefreshToken.revokeByGrantId(grant);
    await idp.provider.AccessToken.revokeByGrantId(grant);
  }
};
const onControl = control(ledger, { revokeAll });
Object.assign(idp, await startIdp({ resource: resource.url, ledger, machineKeys, onControl }));

const machineKey = machine.privateKey.export({ type: "pkcs8", format: "pem" });
console.log(JSON.stringify({ issuer: idp.issuer, url: resource.url, machineKey }));
// The servers end with the test, whose process holds the other end of stdin.
process.stdin.on("end", () => process.exit(0)).resume();
