/* Made by scripts/api_types.py from shanty.dashboard.models: do not edit.
 *
 * What the HTTP API answers (prefix /api/v1). Times are seconds since 1970, sizes bytes. */

export interface Artifact {
  name: string;
  kind: "file" | "folder";
  size: number;
  modified: number;
  preview: "text" | "image" | "table" | null;
}

export interface Artifacts {
  path: string;
  entries: Artifact[];
}

export interface Changes {
  changes: Form;
}

export interface Check {
  group: string | null;
}

export interface Checked {
  healthy: boolean;
  findings: HostFinding[];
  checked: number;
}

export interface CodeVersion {
  commit: string;
  dirty: boolean;
}

export interface Comparison {
  runs: Summary[];
  parameters: Parameter[];
  metrics: MetricOfRuns[];
}

export interface Detail {
  id: string;
  name: string | null;
  state: "pending" | "starting" | "running" | "succeeded" | "failed" | "stopped" | "lost";
  exit_code: number | null;
  ranks: RankState[];
  joined: number;
  created: number;
  started: number | null;
  ended: number | null;
  took: number;
  target: string;
  on: string | null;
  machine_type: string | null;
  tags: string[];
  command: string;
  owner: string;
  stalled: number | null;
  alone: string | null;
  reason: string | null;
  failure: string | null;
  attempt: number;
  url: string;
  status: Record<string, unknown>;
  job: Record<string, unknown>;
  target_options: Record<string, unknown>;
  hosts: HostReport[];
  finding: Finding | null;
  waits: string;
  progress: Record<string, unknown> | null;
  attempts: number[];
  stalls: Record<string, unknown>[];
  events: Record<string, unknown>[];
  command_line: string;
  environment: Record<string, string>;
  workspace: string;
  code_version: CodeVersion | null;
  artifacts_count: number;
  metrics: string[];
}

export interface DownloadAddress {
  url: string;
}

export interface Facets {
  states: Record<string, number>;
  tags: Record<string, number>;
  targets: Record<string, number>;
  machine_types: Record<string, number>;
}

export interface Failed {
  error: Problem;
}

export interface FieldProblem {
  field: string;
  what: string;
  fix: string;
}

export interface Finding {
  what: string;
  why: string;
  fix: string;
  rank: number | null;
  host: string | null;
  lines: string[];
}

export interface Form {
  name: string | null;
  source: Source;
  image: string | null;
  machine_type: string | null;
  machines: number | null;
  ranks: number | null;
  master_type: string | null;
  on: string | null;
  command: string;
  mpi: string | null;
  time_limit: string | null;
  mounts: Mount[];
  env: Record<string, string>;
  tags: string[];
  retries: number | null;
  priority: number | null;
  options: Record<string, boolean | string | string[]>;
}

export interface FormOption {
  name: string;
  flag: string;
  help: string;
  kind: "text" | "number" | "switch" | "list";
  words: string[];
}

export interface FormPreview {
  command: string;
  problems: FieldProblem[];
}

export interface GpuSeries {
  index: number;
  name: string;
  memory_total: number | null;
  utilization: (number | null)[];
  memory: (number | null)[];
}

export interface HostFinding {
  code: string;
  severity: string;
  what: string;
  fix: string;
}

export interface HostReport {
  name: string;
  address: string;
  slots: number | null;
  meant: number | null;
  ranks: number[];
  planned: boolean;
}

export interface Id {
  id: string;
}

export interface LogLine {
  offset: number;
  time: number | null;
  stream: "stdout" | "stderr";
  text: string;
  whole: boolean;
}

export interface LogMatch {
  offset: number;
  time: number | null;
  text: string;
}

export interface LogMatches {
  matches: LogMatch[];
  next: number | null;
  scanned: number;
}

export interface LogWindow {
  rank: number | string;
  attempt: number;
  begin: number;
  end: number;
  size: number;
  lines: LogLine[];
}

export interface Machine {
  name: string;
  group: string | null;
  address: string;
  types: string[];
  slots: number | null;
  free: number | null;
  runs: UsedBy[];
  findings: HostFinding[];
  checked: number | null;
}

export interface MachineType {
  name: string;
  on: string;
  kind: string;
  slots: number | null;
  gpus: number | null;
  total: number | null;
  free: number | null;
}

export interface Machines {
  hosts: Machine[];
  types: MachineType[];
  queue: Waiting[];
}

export interface Me {
  name: string;
  role: "admin" | "user" | "viewer";
  version: string;
  home: string;
  read_only: boolean;
}

export interface MetricOfRuns {
  name: string;
  last: (number | null)[];
  best_min: (number | null)[];
  best_max: (number | null)[];
}

export interface MetricSeries {
  name: string;
  rank: number;
  points: [number, number, number | null][];
}

export interface Metrics {
  series: MetricSeries[];
}

export interface Mount {
  source: string;
  target: string;
  read_only: boolean;
}

export interface Parameter {
  name: string;
  values: unknown[];
  differs: boolean;
}

export interface Preview {
  kind: "text" | "table" | "image";
  size: number;
  text: string | null;
  columns: string[] | null;
  rows: string[][] | null;
  next: number | null;
}

export interface Problem {
  what: string;
  why: string;
  fix: string;
}

export interface RankState {
  rank: number;
  host: string | null;
  state: "waiting" | "up" | "joined" | "ended" | "failed";
  exit_code: number | null;
  first_failure: boolean;
  log_size: number;
}

export interface Resources {
  hosts: Record<string, Series>;
}

export interface RunList {
  total: number;
  runs: Summary[];
  facets: Facets;
}

export interface Series {
  memory_total: number | null;
  time: number[];
  cpu: (number | null)[];
  memory: (number | null)[];
  receive: (number | null)[];
  send: (number | null)[];
  gpus: GpuSeries[];
}

export interface Source {
  kind: "folder" | "git";
  path: string | null;
  url: string | null;
}

export interface Stacks {
  ranks: Record<string, string>;
  missing: number[];
}

export interface Stop {
  kill: boolean;
}

export interface Suggestions {
  targets: TargetForm[];
  types: MachineType[];
  groups: string[];
  mpis: string[];
  images: string[];
  workspaces: string[];
}

export interface Summary {
  id: string;
  name: string | null;
  state: "pending" | "starting" | "running" | "succeeded" | "failed" | "stopped" | "lost";
  exit_code: number | null;
  ranks: number | null;
  joined: number;
  created: number;
  started: number | null;
  ended: number | null;
  took: number;
  target: string;
  on: string | null;
  machine_type: string | null;
  tags: string[];
  command: string;
  owner: string;
  stalled: number | null;
  alone: string | null;
  reason: string | null;
  failure: string | null;
  attempt: number;
  url: string;
}

export interface TagChange {
  add: string[];
  remove: string[];
}

export interface TargetForm {
  scheme: string;
  title: string;
  options: FormOption[];
}

export interface UsedBy {
  id: string | null;
  slots: number;
}

export interface Waiting {
  id: string;
  name: string | null;
  needs: string;
  priority: number;
  place: number;
}
