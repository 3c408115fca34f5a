/* What the HTTP API answers (prefix /api/v1). Times are seconds since 1970, sizes bytes. */

export type State =
  | "pending"
  | "starting"
  | "running"
  | "succeeded"
  | "failed"
  | "stopped"
  | "lost";

export interface Me {
  name: string;
  role: "admin" | "user" | "viewer";
  version: string;
  home: string;
  read_only: boolean;
}

export interface Summary {
  id: string;
  name: string | null;
  state: State;
  exit_code: number | null;
  ranks: number | null;
  joined: number | null;
  created: number;
  started: number | null;
  ended: number | null;
  took: number | null;
  target: string | null;
  on: string | null;
  machine_type: string | null;
  tags: string[];
  command: string;
  owner: string | null;
  stalled: number | null; // since when
  alone: string | null;
  reason: string | null;
  failure: string | null;
  attempt: number;
  url: string;
}

export interface Facets {
  states: Record<string, number>;
  tags: Record<string, number>;
  targets: Record<string, number>;
  machine_types: Record<string, number>;
}

export interface RunList {
  total: number;
  runs: Summary[];
  facets: Facets;
}

export interface Finding {
  what: string;
  why?: string | null;
  fix?: string | null;
  rank?: number | null;
  host?: string | null;
  lines?: string[] | null;
}

export interface HostOfRun {
  name: string;
  address: string | null;
  slots: number | null;
  ranks: number[];
}

export interface RankOfRun {
  rank: number;
  host: string | null;
  state: "waiting" | "up" | "joined" | "ended" | "failed";
  exit_code: number | null;
  first_failure: boolean;
  log_size: number | null;
}

export interface Progress {
  done?: number | null;
  total?: number | null;
  label?: string | null;
  seconds?: number | null;
}

export interface Detail extends Summary {
  status: Record<string, unknown>;
  job: Record<string, unknown>;
  hosts: HostOfRun[];
  ranks_of: RankOfRun[];
  finding: Finding | null;
  waits: string | null;
  progress: Progress | null;
  attempts: number[];
  stalls: Record<string, unknown>[];
  events: Record<string, unknown>[];
  command_line: string;
  environment: Record<string, unknown>;
  workspace: string | null;
  code_version: { commit: string; dirty: boolean } | null;
  artifacts_count: number;
  metrics: string[];
}

export interface LogLine {
  offset: number;
  time: number | null;
  stream: "stdout" | "stderr" | string;
  text: string;
  whole: boolean;
}

export interface LogPart {
  rank: number | string;
  attempt: number;
  begin: number;
  end: number;
  size: number;
  lines: LogLine[];
}

export interface LogMatches {
  matches: { offset: number; time: number | null; text: string }[];
  next: number | null;
  scanned: number;
}

export interface Series {
  name: string;
  rank: number | null;
  points: [number | null, number, number | null][];
}

export interface Gpu {
  index: number;
  name: string;
  utilization: (number | null)[];
  memory: (number | null)[];
  memory_total: number | null;
}

export interface HostResources {
  time: number[];
  cpu: (number | null)[];
  memory: (number | null)[];
  memory_total: number | null;
  receive: (number | null)[];
  send: (number | null)[];
  gpus: Gpu[];
}

export interface ArtifactEntry {
  name: string;
  kind: "file" | "folder";
  size: number | null;
  modified: number | null;
  preview: "text" | "image" | "table" | null;
}

export interface Preview {
  kind: "text" | "image" | "table" | string;
  text?: string | null;
  rows?: string[][] | null;
  columns?: string[] | null;
  next?: number | null;
  size?: number;
}

export interface Comparison {
  runs: Summary[];
  parameters: { name: string; values: unknown[]; differs: boolean }[];
  metrics: {
    name: string;
    last: (number | null)[];
    best_min: (number | null)[];
    best_max: (number | null)[];
  }[];
}

export interface HostFinding {
  code: string;
  severity: string;
  what: string;
  fix: string | null;
}

export interface Host {
  name: string;
  group: string | null;
  address: string | null;
  types: string[];
  slots: number | null;
  free: number | null;
  runs: { id: string | null; slots: number | null }[]; // no id: another user's
  findings: HostFinding[];
  checked: number | null;
}

export interface MachineType {
  name: string;
  on: string | null;
  kind: "hosts" | "slurm" | "k8s" | string;
  slots: number | null;
  gpus: number | null;
  total: number | null;
  free: number | null;
}

export interface Machines {
  hosts: Host[];
  types: MachineType[];
  queue: { id: string; name: string | null; needs: string; priority: number; place: number }[];
}

/* A machine type, or a group or MPI, may come as a name or as an object that has one. */
export type Named = string | { name: string };

export interface Suggestions {
  types: Named[];
  groups: Named[];
  mpis: Named[];
  images: string[];
  workspaces: string[];
}

export interface Form {
  name: string | null;
  source: { kind: "folder" | "git"; path?: string; url?: string };
  image: string | null;
  machine_type: string | null;
  machines: number | null;
  ranks: number | null;
  master_type: string | null;
  on: string | null;
  command: string;
  mpi: string | null;
  time_limit: string | null;
  mounts: { source: string; target: string; read_only: boolean }[];
  env: Record<string, string>;
  tags: string[];
  retries: number | null;
  priority: number | null;
}

export interface FormPreview {
  command: string;
  problems: { field: string; what: string; fix: string | null }[];
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
