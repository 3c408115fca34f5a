/* The form of a new run, as the platforms had it. It shows the command that it is worth. */
import { useEffect, useRef, useState } from "preact/hooks";

import { type ApiError, asApiError, change, get, runPath } from "../lib/api.ts";
import { useLoad, useSettled } from "../lib/load.ts";
import { go, params, runLink } from "../lib/router.ts";
import { say } from "../lib/say.ts";
import { mayChange } from "../lib/session.ts";
import { Command, Empty, ErrorCard, useTitle, Waiting } from "../parts/bits.tsx";
import type { Form, FormPreview, Source, Suggestions } from "../types.ts";
import { Field, List, numberOf, type Problem } from "./formparts.tsx";
import { optionsOf, TargetOptions, targetOf } from "./targetoptions.tsx";

const TYPING = 250; // ms
/* The code of a kind at a place. */
const sourceOf = (kind: Source["kind"], place: string | null | undefined): Source =>
  kind === "git" ? { kind, url: place ?? "", path: null } : { kind, path: place ?? "", url: null };

const NEW: Form = {
  name: null,
  source: sourceOf("folder", ""),
  image: null,
  machine_type: null,
  machines: null,
  ranks: null,
  master_type: null,
  on: null,
  command: "mpirun -bind-to none -map-by slot python train.py",
  mpi: null,
  time_limit: null,
  mounts: [],
  env: {},
  tags: [],
  retries: null,
  priority: null,
  options: {},
};
const FIELDS = new Set(Object.keys(NEW));

function Choices({ id, values }: { id: string; values: readonly string[] }) {
  return (
    <datalist id={id}>
      {values.map((value) => (
        <option key={value} value={value} />
      ))}
    </datalist>
  );
}

/* Variables while they are typed: two of one name are one in the end. */
type Draft = Omit<Form, "env"> & { variables: [string, string][] };
const draftOf = ({ env, ...form }: Form): Draft => ({ ...form, variables: Object.entries(env) });
const formFrom = ({ variables, ...draft }: Draft, suggestions: Suggestions | null): Form => ({
  ...draft,
  options: optionsOf(targetOf(suggestions?.targets, draft.on), draft.options),
  mounts: draft.mounts.filter((mount) => mount.source || mount.target),
  env: Object.fromEntries(variables.filter(([name]) => name)),
});

function changes(before: Form, after: Form): Partial<Form> {
  const differs = ([name, value]: [string, unknown]): boolean =>
    JSON.stringify(value) !== JSON.stringify(before[name as keyof Form]);
  return Object.fromEntries(Object.entries(after).filter(differs)) as Partial<Form>;
}

function NewForm({ first, from, suggestions }: { first: Form; from: string | null; suggestions: Suggestions | null }) {
  const [draft, setDraft] = useState(() => draftOf(first));
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const [preview, setPreview] = useState<FormPreview | null>(null);
  const [touched, setTouched] = useState(from !== null);
  const settled = useSettled(draft, TYPING);
  const summary = useRef<HTMLDivElement>(null);

  useEffect(() => {
    let old = false;
    change<FormPreview>("POST", "/preview", formFrom(settled, suggestions))
      .then((answer) => {
        if (old) return;
        setPreview(answer);
        setError(null);
      })
      .catch((reason: unknown) => {
        if (!old) setError(asApiError(reason));
      });
    return () => {
      old = true;
    };
  }, [settled, suggestions]);

  const set = (values: Partial<Draft>): void => {
    setTouched(true);
    setDraft((now) => ({ ...now, ...values }));
  };
  const problems: readonly Problem[] = touched ? (preview?.problems ?? []) : [];
  const start = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      const form = formFrom(draft, suggestions);
      // After another run only what was changed is sent: the rest is kept, secrets too.
      const { id } = from
        ? await change<{ id: string }>("POST", `${runPath(from)}/rerun`, { changes: changes(formFrom(draftOf(first), suggestions), form) })
        : await change<{ id: string }>("POST", "/runs", form);
      say(`Started as ${id}`);
      go(runLink(id));
    } catch (reason) {
      setError(asApiError(reason));
      setTouched(true);
      summary.current?.scrollIntoView({ block: "nearest" });
    }
    setBusy(false);
  };
  const { source } = draft;
  const target = targetOf(suggestions?.targets, draft.on);
  const git = source.kind === "git";
  const text = (name: "name" | "image" | "machine_type" | "master_type" | "on" | "mpi" | "time_limit") => ({
    type: "text" as const,
    value: draft[name] ?? "",
    onInput: (event: { currentTarget: HTMLInputElement }) => set({ [name]: event.currentTarget.value.trim() || null }),
  });
  const number = (name: "machines" | "ranks" | "retries" | "priority", min?: number) => ({
    type: "number" as const,
    min,
    value: draft[name] ?? "",
    onInput: (event: { currentTarget: HTMLInputElement }) => set({ [name]: numberOf(event.currentTarget.value) }),
  });
  return (
    <form
      class="new-form"
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        void start();
      }}
    >
      <div class="form-fields">
        <section class="card" aria-label="What">
          <h2>What</h2>
          <Field name="command" label="Command" problems={problems} hint="A line of mpirun, or a script: train.py --epochs 3">
            <textarea
              rows={3}
              spellcheck={false}
              class="code"
              value={draft.command}
              onInput={(event) => set({ command: event.currentTarget.value })}
            />
          </Field>
          <fieldset class="radios">
            <legend>Code</legend>
            {(["folder", "git"] as const).map((kind) => (
              <label key={kind} class="inline">
                <input
                  type="radio"
                  name="source-kind"
                  checked={source.kind === kind}
                  onChange={() => set({ source: sourceOf(kind, kind === "git" ? source.url : source.path) })}
                />
                {kind === "git" ? "from git" : "a folder here"}
              </label>
            ))}
          </fieldset>
          <Field name="source" label={git ? "Address of the repository" : "Folder"} problems={problems}>
            <input
              type="text"
              class="code"
              list="workspaces"
              spellcheck={false}
              placeholder={git ? "https://github.com/horovod/horovod.git" : "/home/me/project"}
              value={(git ? source.url : source.path) ?? ""}
              onInput={(event) => set({ source: sourceOf(source.kind, event.currentTarget.value.trim()) })}
            />
          </Field>
          <Field name="image" label="Container image" problems={problems} hint="None: the Python environment that is here.">
            <input {...text("image")} list="images" spellcheck={false} class="code" />
          </Field>
          <div class="pair">
            <Field name="name" label="Name" problems={problems}>
              <input {...text("name")} />
            </Field>
            <Field name="tags" label="Tags" problems={problems} hint="With commas between them.">
              <input
                type="text"
                value={draft.tags.join(", ")}
                onChange={(event) =>
                  set({ tags: event.currentTarget.value.split(",").map((tag) => tag.trim()).filter(Boolean) })
                }
              />
            </Field>
          </div>
        </section>
        <section class="card" aria-label="Where">
          <h2>Where</h2>
          <div class="pair">
            <Field name="machine_type" label="Machine type" problems={problems} hint="Waits until they are free.">
              <input {...text("machine_type")} list="types" />
            </Field>
            <Field name="machines" label="Machines" problems={problems}>
              <input {...number("machines", 1)} />
            </Field>
          </div>
          <div class="pair">
            <Field name="on" label="Or on hosts" problems={problems} hint="A group, a,b:4, slurm or k8s; none: this machine.">
              <input {...text("on")} list="groups" />
            </Field>
            <Field name="ranks" label="Ranks" problems={problems} hint="None: one a slot.">
              <input {...number("ranks", 1)} />
            </Field>
          </div>
          <div class="pair">
            <Field name="master_type" label="Machine type of the master" problems={problems} hint="None: that of the others.">
              <input {...text("master_type")} list="types" />
            </Field>
            <Field name="mpi" label="MPI" problems={problems}>
              <select value={draft.mpi ?? ""} onChange={(event) => set({ mpi: event.currentTarget.value || null })}>
                <option value="">the usual one</option>
                {[...new Set([...(suggestions?.mpis ?? []), ...(draft.mpi ? [draft.mpi] : [])])].map((mpi) => (
                  <option key={mpi} value={mpi}>
                    {mpi}
                  </option>
                ))}
              </select>
            </Field>
          </div>
        </section>
        {target && (
          <TargetOptions target={target} options={draft.options} problems={problems} change={(options) => set({ options })} />
        )}
        <section class="card" aria-label="How">
          <h2>How</h2>
          <div class="triple">
            <Field name="time_limit" label="Time limit" problems={problems} hint="90s, 15m, 2h">
              <input {...text("time_limit")} />
            </Field>
            <Field name="retries" label="Retries" problems={problems} hint="If a host is lost.">
              <input {...number("retries", 0)} />
            </Field>
            <Field name="priority" label="Priority" problems={problems} hint="Higher comes first.">
              <input {...number("priority")} />
            </Field>
          </div>
          <List
            title="Variables"
            items={draft.variables}
            fresh={() => ["", ""] as [string, string]}
            change={(variables) => set({ variables })}
            problems={problems.filter((problem) => problem.field.split(".")[0] === "env")}
            row={([name, value], put, index) => (
              <>
                <input
                  type="text"
                  class="code"
                  aria-label={`Name of variable ${index + 1}`}
                  placeholder="NAME"
                  value={name}
                  onInput={(event) => put([event.currentTarget.value.trim(), value])}
                />
                <input
                  type="text"
                  class="code"
                  aria-label={`Value of variable ${index + 1}`}
                  placeholder="value"
                  value={value}
                  onInput={(event) => put([name, event.currentTarget.value])}
                />
              </>
            )}
          />
          <List
            title="Data mounts"
            hint="Folders of each host that are put into the container."
            items={draft.mounts}
            fresh={() => ({ source: "", target: "", read_only: true })}
            change={(mounts) => set({ mounts })}
            problems={problems.filter((problem) => problem.field.split(".")[0] === "mounts")}
            row={(mount, put, index) => (
              <>
                <input
                  type="text"
                  class="code"
                  aria-label={`Folder of mount ${index + 1}`}
                  placeholder="/data"
                  value={mount.source}
                  onInput={(event) => put({ ...mount, source: event.currentTarget.value })}
                />
                <input
                  type="text"
                  class="code"
                  aria-label={`Place of mount ${index + 1} in the container`}
                  placeholder="/data in the container"
                  value={mount.target}
                  onInput={(event) => put({ ...mount, target: event.currentTarget.value })}
                />
                <label class="inline">
                  <input
                    type="checkbox"
                    checked={mount.read_only}
                    onChange={() => put({ ...mount, read_only: !mount.read_only })}
                  />
                  read only
                </label>
              </>
            )}
          />
        </section>
      </div>
      <div class="form-side">
        <section class="card form-command" aria-label="The command">
          <h2>The same in a terminal</h2>
          {preview?.command ? <Command text={preview.command} label="Equivalent command" /> : <p class="muted">…</p>}
          {from && <p class="muted">Options that are not in this form are kept as they were.</p>}
          <div ref={summary} role="status" class="problems">
            {problems
              .filter((problem) => !FIELDS.has(problem.field.split(".")[0] ?? ""))
              .map((problem, index) => (
                <p class="problem" key={index}>
                  {problem.what}
                  {problem.fix && <span class="fix">; {problem.fix}</span>}
                </p>
              ))}
            {problems.length > 0 && <p class="muted">{problems.length} to be put right</p>}
          </div>
          {error && <ErrorCard error={error} />}
          <button type="submit" class="primary wide-button" disabled={busy || !draft.command.trim()}>
            {busy ? "Starting…" : "Start the run"}
          </button>
        </section>
      </div>
      <Choices id="types" values={(suggestions?.types ?? []).map((type) => type.name)} />
      <Choices id="groups" values={suggestions?.groups ?? []} />
      <Choices id="images" values={suggestions?.images ?? []} />
      <Choices id="workspaces" values={suggestions?.workspaces ?? []} />
    </form>
  );
}

export function New() {
  return mayChange.value ? <Fill /> : <NotAllowed />;
}

function NotAllowed() {
  useTitle("New run");
  return (
    <div class="page">
      <h1>New run</h1>
      <Empty title="You may look, and start nothing">
        <p>The person who started this dashboard can give you a token that may.</p>
      </Empty>
    </div>
  );
}

function Fill() {
  const from = params.value.get("from");
  useTitle("New run");
  const suggestions = useLoad<Suggestions>("suggest", (abort) => get("/suggest", {}, abort));
  const old = useLoad<Form | null>(from, async (abort) => (from ? get(`${runPath(from)}/form`, {}, abort) : null));
  if (old.error) return <ErrorCard error={old.error} again={old.reload} />;
  if (from && !old.value) return <Waiting what="Loading the run…" />;
  const workspace = suggestions.value?.workspaces[0];
  if (!from && suggestions.busy && !suggestions.value) return <Waiting what="Loading the form…" />;
  const first = old.value ?? { ...NEW, source: sourceOf("folder", workspace) };
  return (
    <div class="page">
      <div class="page-head">
        <h1>{from ? "Change and run" : "New run"}</h1>
        {from && (
          <p class="muted">
            after <a href={runLink(from)}>{from}</a>
          </p>
        )}
      </div>
      <NewForm key={from ?? ""} first={first} from={from} suggestions={suggestions.value} />
    </div>
  );
}
