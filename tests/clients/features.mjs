// The `--features` mode of both TypeScript clients: plays what features.json says of a feature and judges it.
// Adds the steps that only features have; knows nothing of any SDK.

import { readFileSync } from "node:fs";

export const FEATURES = JSON.parse(readFileSync(new URL("features.json", import.meta.url), "utf8"));

/** Thrown by a step that the SDK has no means for. */
export class Lacking extends Error {
  name = "Lacking";
}

/** `playStep(step)` gives the outcome of a step as it would stand in a report. */
export async function playFeature(name, { era, mark, sdk }, playStep) {
  const script = Array.isArray(FEATURES[name]) ? FEATURES[name] : FEATURES[name][era];
  for (const [index, step] of JSON.parse(JSON.stringify(script).replaceAll("$MARK", mark)).entries()) {
    const outcome = await playStep(step);
    if (outcome.error?.kind === "Lacking") return { feature: name, skipped: outcome.error.message };
    const problem = judge(outcome, expectations(step, sdk));
    if (problem !== undefined) return { feature: name, ok: false, detail: `step ${index} ${step.do}: ${problem}` };
  }
  return { feature: name, ok: true };
}

/** One SDK may have expectations of its own: `expect typescript-2`. */
function expectations(step, sdk) {
  const own = Object.keys(step).find((key) => key.startsWith("expect ") && sdk.startsWith(key.slice("expect ".length)));
  return step[own ?? "expect"] ?? {};
}

function judge(outcome, expected) {
  const pointers = Object.entries(expected);
  if (!pointers.some(([pointer]) => pointer.startsWith("/error"))) pointers.unshift(["/ok", true]);
  for (const [pointer, value] of pointers) {
    const found = pointer.slice(1).split("/").reduce((part, key) => part?.[key], outcome);
    if (JSON.stringify(found) !== JSON.stringify(value)) {
      return `${pointer} is ${JSON.stringify(found)}, not ${JSON.stringify(value)}, in ${JSON.stringify(outcome)}`;
    }
  }
}

/** A call that goes on while other steps are played. */
export class Begun {
  #controller = new AbortController();
  #progress = [];
  #arrived = () => {};

  /** `call(signal, onProgress)` makes the call. */
  constructor(call) {
    const onProgress = (progress) => {
      this.#progress.push(progress);
      this.#arrived();
    };
    this.ended = call(this.#controller.signal, onProgress).then(
      () => "answered",
      () => "failed",
    );
  }

  /** Waits until so much progress was told. */
  progress(count) {
    return new Promise((resolve) => {
      this.#arrived = () => this.#progress.length >= count && resolve({ result: this.#progress });
      this.#arrived();
    });
  }

  async cancel() {
    this.#controller.abort("no longer wanted");
    return { result: await this.ended };
  }
}
