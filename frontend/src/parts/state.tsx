/* How a run stands: a shape, a word and a colour. */
import type { RankState, State, Summary } from "../types.ts";

const SHAPES: Record<State, string> = {
  pending: "M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 0 0 0-11M8 5v3.2l2.2 1.3",
  starting: "M8 2.5a5.5 5.5 0 0 1 5.5 5.5",
  running: "M5.5 3.8l6.5 4.2l-6.5 4.2z",
  succeeded: "M3.5 8.5l3 3l6-7",
  failed: "M4.2 4.2l7.6 7.6M11.8 4.2l-7.6 7.6",
  stopped: "M4.5 4.5h7v7h-7z",
  lost: "M5.8 6a2.2 2.2 0 1 1 3.2 2c-.7.4-1 .8-1 1.5M8 12v.2",
};

export function StateShape({ state }: { state: State }) {
  return (
    <svg class="shape" viewBox="0 0 16 16" aria-hidden="true">
      <path d={SHAPES[state] ?? SHAPES.lost} />
    </svg>
  );
}

export function StateBadge({ run }: { run: Pick<Summary, "state" | "stalled"> }) {
  const stalled = Boolean(run.stalled) && run.state === "running";
  return (
    <span class={`badge state-${run.state}${stalled ? " is-stalled" : ""}`}>
      <StateShape state={run.state} />
      {run.state}
      {stalled && <span class="stalled-word"> · stalled</span>}
    </span>
  );
}

const MARKS: Record<RankState["state"], string> = {
  waiting: "·",
  up: "↑",
  joined: "▸",
  ended: "✓",
  failed: "✕",
};

export const rankMark = (rank: RankState): string =>
  rank.first_failure ? "✕" : (MARKS[rank.state] ?? "?");

/** How far a run is when it ended, or which exit code it had. */
export function exitWords(code: number | null): string {
  if (code === null) return "";
  if (code < 0) return `ended by signal ${-code}`;
  if (code > 128 && code < 160) return `exit code ${code} (signal ${code - 128})`;
  return `exit code ${code}`;
}
