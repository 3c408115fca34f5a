/* What the HTTP API answers, and what its description leaves open. */

import type { Detail as Described, Form, Summary } from "./api.ts";

export type * from "./api.ts";

export type State = Summary["state"];
export type OptionValue = Form["options"][string];

export interface Progress {
  done?: number | null;
  total?: number | null;
  label?: string | null;
  seconds?: number | null;
}

export interface Detail extends Omit<Described, "progress"> {
  progress: Progress | null;
}

export const FINAL: ReadonlySet<State> = new Set<State>(["succeeded", "failed", "stopped", "lost"]);
export const STATES: readonly State[] = [
  "running",
  "starting",
  "pending",
  "failed",
  "succeeded",
  "stopped",
  "lost",
];
