/* One run as the API answers it, with what may be missing filled in. */
import type { Detail, Form, HostOfRun, RankOfRun } from "../types.ts";
import { get, runPath } from "./api.ts";

export async function detail(id: string, abort?: AbortSignal): Promise<Detail> {
  const raw = await get<Record<string, unknown>>(runPath(id), {}, abort);
  // The list of ranks has the name that their number has in a summary.
  const ranks = Array.isArray(raw.ranks) ? (raw.ranks as RankOfRun[]) : [];
  const status = (raw.status ?? {}) as { ranks?: number | null };
  const list = <T>(value: unknown): T[] => (Array.isArray(value) ? (value as T[]) : []);
  return {
    ...(raw as unknown as Detail),
    tags: list<string>(raw.tags),
    status,
    job: (raw.job ?? {}) as Record<string, unknown>,
    ranks: typeof raw.ranks === "number" ? raw.ranks : (status.ranks ?? ranks.length),
    ranks_of: ranks,
    hosts: list<HostOfRun>(raw.hosts),
    attempts: list<number>(raw.attempts),
    stalls: list<Record<string, unknown>>(raw.stalls),
    events: list<Record<string, unknown>>(raw.events),
    metrics: list<string>(raw.metrics),
    environment: (raw.environment ?? {}) as Record<string, unknown>,
  };
}

const quoted = (word: string): string =>
  /^[\w@%+=:,./^~-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;

interface Command {
  kind?: string;
  path?: string;
  name?: string;
  args?: string[];
  argv?: string[];
  shell?: boolean;
}

function commandOf(command: Command): string {
  const args = command.args ?? [];
  if (command.kind === "script") return [command.path ?? "", ...args].map(quoted).join(" ");
  if (command.kind === "module") return ["-m", command.name ?? "", ...args].map(quoted).join(" ");
  if (command.shell) return (command.argv ?? [])[0] ?? "";
  return (command.argv ?? []).map(quoted).join(" ");
}

export const EMPTY_FORM: Form = {
  name: null,
  source: { kind: "folder", path: "" },
  image: null,
  machine_type: null,
  machines: null,
  ranks: null,
  master_type: null,
  on: null,
  command: "",
  mpi: null,
  time_limit: null,
  mounts: [],
  env: {},
  tags: [],
  retries: null,
  priority: null,
};

/** What the form of a new run has to hold to make this one again. */
export function formOf(run: Detail): Form {
  const job = run.job as Record<string, unknown> & { command?: Command };
  const text = (name: string): string | null => (typeof job[name] === "string" ? (job[name] as string) : null);
  const number = (name: string): number | null => (typeof job[name] === "number" ? (job[name] as number) : null);
  const source = text("source");
  const seconds = number("time_limit");
  return {
    ...EMPTY_FORM,
    name: run.name,
    source: source
      ? { kind: "git", url: source }
      : { kind: "folder", path: text("workdir") ?? run.workspace ?? "" },
    image: text("image"),
    machine_type: run.machine_type,
    machines: number("nodes"),
    ranks: number("ranks"),
    on: run.machine_type ? null : text("on"),
    command: job.command ? commandOf(job.command) : "",
    mpi: text("mpi"),
    time_limit: seconds ? `${seconds}s` : null,
    mounts: (Array.isArray(job.mounts) ? (job.mounts as string[][]) : []).map(([from, to, how]) => ({
      source: from ?? "",
      target: to ?? "",
      read_only: how === "ro",
    })),
    env: (job.env ?? {}) as Record<string, string>,
    tags: run.tags,
    retries: number("retries"),
  };
}
