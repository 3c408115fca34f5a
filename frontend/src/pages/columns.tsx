/* The columns of the table of runs. */
import type { ComponentChildren } from "preact";

import { Tags, Time } from "../parts/bits.tsx";
import { exitWords, StateBadge } from "../parts/state.tsx";
import { runLink } from "../lib/router.ts";
import { took } from "../lib/format.ts";
import { FINAL, type Summary } from "../types.ts";

export interface Column {
  name: string;
  title: string;
  width: string;
  /** The width on narrow screens; without one it is left out there. */
  narrow?: string;
  sort?: "created" | "name" | "state" | "took" | "ranks";
  optional: boolean;
  shown: boolean; // unless chosen otherwise
  cell: (run: Summary) => ComponentChildren;
}

const elapsed = (run: Summary): number | null => {
  if (run.took !== null && FINAL.has(run.state)) return run.took;
  return run.started === null ? null : Date.now() / 1000 - run.started;
};

/** One line about a run: why it failed, what it waits for, how its ranks stand. */
export function remark(run: Summary): string {
  if (run.failure) return run.failure;
  if (run.stalled && run.state === "running") return "no rank makes progress";
  if (run.reason) return run.reason;
  if (run.state === "starting") return `${run.joined ?? 0} of ${run.ranks ?? "?"} ranks joined`;
  if (run.state === "failed") return exitWords(run.exit_code);
  return "";
}

export const COLUMNS: readonly Column[] = [
  {
    name: "state",
    title: "State",
    width: "10.5rem",
    narrow: "9.2rem",
    sort: "state",
    optional: false,
    shown: true,
    cell: (run) => <StateBadge run={run} />,
  },
  {
    name: "name",
    title: "Run",
    width: "minmax(11rem, 1.4fr)",
    narrow: "minmax(0, 1fr)",
    sort: "name",
    optional: false,
    shown: true,
    cell: (run) => (
      <a class="run-name" href={runLink(run.id)} tabIndex={-1}>
        {run.name ?? run.id}
      </a>
    ),
  },
  {
    name: "remark",
    title: "What happened",
    width: "minmax(8rem, 1.6fr)",
    optional: true,
    shown: true,
    cell: (run) => <span class={run.failure ? "failure-line" : "muted"}>{remark(run)}</span>,
  },
  {
    name: "command",
    title: "Command",
    width: "minmax(8rem, 1.6fr)",
    optional: true,
    shown: true,
    cell: (run) => <code>{run.command}</code>,
  },
  {
    name: "tags",
    title: "Tags",
    width: "minmax(5rem, .8fr)",
    optional: true,
    shown: true,
    cell: (run) => <Tags tags={run.tags} />,
  },
  {
    name: "ranks",
    title: "Ranks",
    width: "4.5rem",
    sort: "ranks",
    optional: true,
    shown: true,
    cell: (run) => <span class="number">{run.ranks ?? "–"}</span>,
  },
  {
    name: "target",
    title: "Where",
    width: "7rem",
    optional: true,
    shown: true,
    cell: (run) => run.machine_type ?? run.on ?? run.target ?? "–",
  },
  {
    name: "owner",
    title: "Owner",
    width: "6rem",
    optional: true,
    shown: false,
    cell: (run) => run.owner ?? "–",
  },
  {
    name: "took",
    title: "Took",
    width: "6.5rem",
    sort: "took",
    optional: true,
    shown: true,
    cell: (run) => <span class="number">{took(elapsed(run))}</span>,
  },
  {
    name: "created",
    title: "Created",
    width: "7.5rem",
    narrow: "5.2rem",
    sort: "created",
    optional: true,
    shown: true,
    cell: (run) => <Time at={run.created} />,
  },
  {
    name: "id",
    title: "ID",
    width: "11.5rem",
    optional: true,
    shown: false,
    cell: (run) => <code>{run.id}</code>,
  },
];
