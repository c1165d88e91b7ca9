// The part that both TypeScript servers share: the fixtures of the suite and the behaviour of its tools. This file uses
// no SDK. README.md in the parent directory describes the servers, and fixtures.json has the definitions.

import { readFileSync } from "node:fs";

const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const TONE = "UklGRiwAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQgAAAAAAEAfAADA4A==";
/** The pause between two messages of a tool, so that they are separate writes. */
const PAUSE_MS = 20;
/** The pause after a stream was closed. The client resumes it after RETRY_MS. */
const CLOSED_MS = 300;
export const RETRY_MS = 200;
export const WATCHED = "test://watched-resource";
const EMPTY_SCHEMA = { type: "object", properties: {} };

const source = readFileSync(new URL("fixtures.json", import.meta.url), "utf8");
const fixtures = JSON.parse(source.replaceAll("$PIXEL", PIXEL).replaceAll("$TONE", TONE));

/** The state that outlives a session. Each listener gets `tools`, `prompts` or `watched` after a change. */
export const world = { changes: { tools: 0, prompts: 0, watched: 0 }, listeners: new Set() };

function change(subject) {
  world.changes[subject] += 1;
  for (const listener of world.listeners) listener(subject);
  return text("changed");
}

export function listTools() {
  return fixtures.tools.map((tool) => ({ inputSchema: EMPTY_SCHEMA, ...changing(tool, "test_changing_tool", "tools") }));
}

export function listPrompts() {
  return fixtures.prompts.map((prompt) => changing(prompt, "test_changing_prompt", "prompts"));
}

/** Adds the number of changes to the description of the entry `name`. */
function changing(entry, name, subject) {
  return entry.name === name ? { ...entry, description: `${entry.description} (${world.changes[subject]})` } : entry;
}

export const { resources, resourceTemplates } = fixtures;

/** Returns the result of a read, or undefined if there is no such resource. */
export function read(uri) {
  const content = fixtures.contents[uri];
  if (content !== undefined) return { contents: [{ uri, ...content }] };
  const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
  if (id === undefined) return undefined;
  return { contents: [{ uri, mimeType: "application/json", text: JSON.stringify({ id, data: `data of ${id}` }) }] };
}

export function complete({ value }) {
  const values = fixtures.completions.filter((word) => word.startsWith(value));
  return { completion: { values, total: values.length, hasMore: false } };
}

export const text = (words) => ({ content: [{ type: "text", text: words }] });

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/**
 * Returns the result of a tool. Returns undefined if there is no such tool.
 *
 * `context` is the part of the SDK: `progress(progress)`, `log(data)`, `closeStream()`, `ask(step)`, `capabilities` and
 * `missingCapability(required)`. `ask` runs the steps of a tool with server requests.
 */
export async function call(name, args, context) {
  if (fixtures.results[name] !== undefined) return filled(fixtures.results[name], args);
  switch (name) {
    case "test_tool_with_progress":
      for (const progress of [0, 50, 100]) {
        await context.progress({ progress, total: 100, message: `step ${progress}` });
        await pause(PAUSE_MS);
      }
      return text("three steps");
    case "test_tool_with_logging":
    case "test_logging_tool":
      for (const message of ["started", "working", "finished"]) {
        await context.log(message);
        await pause(PAUSE_MS);
      }
      return text("three messages");
    case "test_reconnection":
      context.closeStream();
      await pause(CLOSED_MS);
      return text("answered after the stream was closed");
    case "test_trigger_tool_change":
      return change("tools");
    case "test_trigger_prompt_change":
      return change("prompts");
    case "test_trigger_resource_change":
      return change("watched");
    case "test_missing_capability":
      if (context.capabilities.sampling === undefined) throw context.missingCapability({ sampling: {} });
      return text("the client samples");
  }
  if (fixtures.asking[name] === undefined) return undefined;
  return await context.ask((responses, state) => {
    const { done, ...rest } = step(name, args, context.capabilities, responses, state);
    return done === undefined ? rest : { done: text(`state-ok ${JSON.stringify(done)}`) };
  });
}

/** Returns the result of `prompts/get`. Returns undefined if there is no such prompt. */
export async function getPrompt(name, args, context) {
  const messages = fixtures.messages[name];
  if (messages === undefined) return undefined;
  const result = { messages: filled(messages, args) };
  if (fixtures.asking[name] === undefined) return result;
  return await context.ask((responses, state) => {
    const { done, ...rest } = step(name, args, context.capabilities, responses, state);
    return done === undefined ? rest : { done: result };
  });
}

/** Replaces `{argument}` in all texts. */
function filled(value, args) {
  return JSON.parse(JSON.stringify(value), (_, member) =>
    typeof member === "string" ? member.replaceAll(/\{(\w+)\}/g, (match, key) => args[key] ?? match) : member,
  );
}

/**
 * Takes the next step of a tool with server requests: `{ done: answers }`, `{ refused: true }` or
 * `{ requests, state }`. A sealed tool accepts responses only together with its state.
 */
function step(name, args, capabilities, responses, state) {
  const { rounds, sealed, supportedOnly } = fixtures.asking[name];
  const { round, answers } = state ?? { round: 0, answers: {} };
  const given = sealed && state === undefined ? {} : responses;
  const wanted = Object.entries(filled(rounds[round], args)).map(([key, short]) => [key, request(short)]);
  const asked = wanted.filter(([, { method }]) => !supportedOnly || supports(capabilities, method));
  const judged = asked.map(([key, request]) => [key, judge(request, given?.[key])]);
  if (judged.some(([, answer]) => answer === "refused")) return { refused: true };
  if (judged.some(([, answer]) => answer === undefined)) {
    return { requests: Object.fromEntries(asked), state: sealed ? { round, answers } : undefined };
  }
  const all = { ...answers, ...Object.fromEntries(judged) };
  if (round + 1 === rounds.length) return { done: all };
  return step(name, args, capabilities, {}, { round: round + 1, answers: all });
}

function supports(capabilities, method) {
  const names = { "elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots" };
  return capabilities[names[method]] !== undefined;
}

/** Returns the request for its short form in the fixtures. */
function request(short) {
  if (short.roots) return { method: "roots/list", params: {} };
  if (short.sample !== undefined) {
    const messages = [{ role: "user", content: { type: "text", text: short.sample } }];
    return { method: "sampling/createMessage", params: { messages, maxTokens: 100 } };
  }
  const properties = fixtures.forms[short.form];
  const required = Object.keys(properties).filter((key) => properties[key].default === undefined);
  const requestedSchema = { type: "object", properties, required };
  return { method: "elicitation/create", params: { message: short.elicit, requestedSchema } };
}

/** Returns the useful part of an answer, `refused`, or undefined for an invalid answer. */
function judge({ method, params }, answer) {
  if (typeof answer !== "object" || answer === null) return undefined;
  switch (method) {
    case "roots/list":
      return Array.isArray(answer.roots) ? answer.roots.map(({ uri }) => uri) : undefined;
    case "sampling/createMessage":
      return [answer.content].flat()[0]?.text;
    case "elicitation/create": {
      if (answer.action === "decline" || answer.action === "cancel") return "refused";
      const { required } = params.requestedSchema;
      const isComplete = answer.action === "accept" && required.every((key) => answer.content?.[key] !== undefined);
      return isComplete ? answer.content ?? {} : undefined;
    }
  }
}

/** Keeps the events of all streams of a session, as the transports of the SDKs require. */
export class Events {
  #events = [];

  async storeEvent(streamId, message) {
    this.#events.push({ streamId, message });
    return `${streamId}/${this.#events.length}`;
  }

  async getStreamIdForEventId(eventId) {
    return this.#events[this.#indexAfter(eventId) - 1]?.streamId;
  }

  async replayEventsAfter(lastEventId, { send }) {
    const first = this.#indexAfter(lastEventId);
    const streamId = await this.getStreamIdForEventId(lastEventId);
    for (const [index, event] of this.#events.entries()) {
      // A priming event has no message.
      const isMessage = event.message?.jsonrpc !== undefined;
      if (index >= first && event.streamId === streamId && isMessage) await send(`${streamId}/${index + 1}`, event.message);
    }
    return streamId;
  }

  #indexAfter(eventId) {
    return Number(eventId.slice(eventId.lastIndexOf("/") + 1));
  }
}
