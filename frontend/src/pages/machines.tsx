/* Hosts and machine types: what is free, who uses what, what is wrong; and the queue. */
import { useState } from "preact/hooks";

import { change, get } from "../lib/api.ts";
import { count } from "../lib/format.ts";
import { useEvery, useLoad } from "../lib/load.ts";
import { runLink } from "../lib/router.ts";
import { say, sayError } from "../lib/say.ts";
import { mayChange } from "../lib/session.ts";
import { Bar, Empty, ErrorCard, Time, useTitle, Waiting } from "../parts/bits.tsx";
import type { HostFinding, Machine, Machines as Answer, MachineType } from "../types.ts";

const EVERY = 5; // s

function Free({ free, total, name }: { free: number | null; total: number | null; name: string }) {
  if (total === null || free === null) return <span class="muted">not known</span>;
  return (
    <span class="free">
      <Bar part={total ? (total - free) / total : 0} label={`Slots of ${name} in use`} />
      <span class="number">
        {free} of {total} free
      </span>
    </span>
  );
}

const GRAVE: Record<string, string> = { error: "✕", warning: "!", info: "i" };

function Findings({ findings }: { findings: readonly HostFinding[] }) {
  if (!findings.length) return null;
  return (
    <ul class="findings">
      {findings.map((finding, index) => (
        <li key={index} class={`finding-${finding.severity}`}>
          <span class="mark" aria-hidden="true">
            {GRAVE[finding.severity] ?? "!"}
          </span>
          <div>
            <span class="unseen">{finding.severity}: </span>
            {finding.what} <code class="muted">{finding.code}</code>
            {finding.fix && (
              <p class="fix">
                <strong>Fix:</strong> {finding.fix}
              </p>
            )}
          </div>
        </li>
      ))}
    </ul>
  );
}

function Check({ group, reload }: { group: string | null; reload: () => void }) {
  const [busy, setBusy] = useState(false);
  const check = async (): Promise<void> => {
    setBusy(true);
    try {
      await change("POST", "/machines/check", { group });
      say(`Checked ${group ?? "this machine"}`);
    } catch (error) {
      sayError(error);
    }
    setBusy(false);
    reload();
  };
  if (!mayChange.value) return null;
  return (
    <button type="button" class="small" disabled={busy} onClick={() => void check()}>
      {busy ? "Checking…" : "Run the doctor"}
    </button>
  );
}

function Group({ name, hosts, reload }: { name: string | null; hosts: readonly Machine[]; reload: () => void }) {
  const title = name ?? "This machine";
  const checked = hosts.find((host) => host.checked !== null)?.checked ?? null;
  return (
    <section class="card" aria-label={`Hosts of ${title}`}>
      <div class="card-head">
        <h2>
          {title} <span class="muted small-text">{count(hosts.length, "host")}</span>
        </h2>
        <span class="actions">
          <span class="muted small-text">{checked === null ? "not checked yet" : <>checked <Time at={checked} /></>}</span>
          <Check group={name} reload={reload} />
        </span>
      </div>
      <div class="table-wrap" tabIndex={0} role="region" aria-label={`Table of ${title}`}>
        <table class="plain-table roomy">
          <thead>
            <tr>
              <th scope="col">Host</th>
              <th scope="col">Machine types</th>
              <th scope="col">Slots</th>
              <th scope="col">Used by</th>
              <th scope="col">Findings</th>
            </tr>
          </thead>
          <tbody>
            {hosts.map((host) => (
              <tr key={host.name}>
                <th scope="row">
                  {host.name}
                  {host.address && host.address !== host.name && (
                    <div class="muted small-text">{host.address}</div>
                  )}
                </th>
                <td>{host.types.join(", ") || "–"}</td>
                <td>
                  <Free free={host.free} total={host.slots} name={host.name} />
                </td>
                <td>
                  {host.runs.length
                    ? host.runs.map((run, index) => (
                        <div key={run.id ?? index}>
                          {run.id ? <a href={runLink(run.id)}>{run.id}</a> : "another user"}
                          {run.slots !== null && <span class="muted"> {count(run.slots, "slot")}</span>}
                        </div>
                      ))
                    : "–"}
                </td>
                <td>
                  {host.findings.length ? (
                    <Findings findings={host.findings} />
                  ) : (
                    <span class="muted">{host.checked === null ? "not checked" : "✓ none"}</span>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

const KINDS: Record<string, string> = { hosts: "hosts", slurm: "Slurm", k8s: "Kubernetes" };

function Types({ types }: { types: readonly MachineType[] }) {
  return (
    <section class="card" aria-label="Machine types">
      <h2>Machine types</h2>
      {types.length ? (
        <div class="table-wrap" tabIndex={0} role="region" aria-label="Table of machine types">
          <table class="plain-table roomy">
            <thead>
              <tr>
                <th scope="col">Name</th>
                <th scope="col">Where</th>
                <th scope="col">Kind</th>
                <th scope="col">Slots each</th>
                <th scope="col">GPUs each</th>
                <th scope="col">Machines</th>
              </tr>
            </thead>
            <tbody>
              {types.map((type) => (
                <tr key={type.name}>
                  <th scope="row">{type.name}</th>
                  <td>
                    <code>{type.on ?? "–"}</code>
                  </td>
                  <td>{KINDS[type.kind] ?? type.kind}</td>
                  <td class="number">{type.slots ?? "–"}</td>
                  <td class="number">{type.gpus ?? "–"}</td>
                  <td>
                    <Free free={type.free} total={type.total} name={type.name} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <Empty title="No machine types yet" command="shanty machines add small --on gpu[1-4] --gpus 1">
          <p>A machine type is a name for hosts of one kind, as the platforms had them:</p>
        </Empty>
      )}
    </section>
  );
}

function Queue({ queue }: { queue: Answer["queue"] }) {
  return (
    <section class="card" aria-label="Queue">
      <h2>
        Queue <span class="muted small-text">{count(queue.length, "run")} waiting</span>
      </h2>
      {queue.length ? (
        <div class="table-wrap" tabIndex={0} role="region" aria-label="Table of the queue">
          <table class="plain-table roomy">
            <thead>
              <tr>
                <th scope="col">Place</th>
                <th scope="col">Run</th>
                <th scope="col">Needs</th>
                <th scope="col">Priority</th>
              </tr>
            </thead>
            <tbody>
              {queue.map((entry) => (
                <tr key={entry.id}>
                  <td class="number">{entry.place}</td>
                  <th scope="row">
                    <a href={runLink(entry.id)}>{entry.name ?? entry.id}</a>
                  </th>
                  <td>{entry.needs}</td>
                  <td class="number">{entry.priority}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <p class="muted">Nothing waits: a run begins as soon as it is made.</p>
      )}
    </section>
  );
}

export function Machines() {
  useTitle("Machines");
  const loaded = useLoad<Answer>("machines", (abort) => get("/machines", {}, abort));
  useEvery(EVERY, true, loaded.reload);
  if (loaded.error && !loaded.value) return <ErrorCard error={loaded.error} again={loaded.reload} />;
  if (!loaded.value) return <Waiting what="Loading machines…" />;
  const { hosts, types, queue } = loaded.value;
  const groups = new Map<string | null, Machine[]>();
  for (const host of hosts) groups.set(host.group, [...(groups.get(host.group) ?? []), host]);
  return (
    <div class="page">
      <div class="page-head">
        <h1>Machines</h1>
      </div>
      <div class="stack">
        {[...groups].map(([name, members]) => (
          <Group key={name ?? ""} name={name} hosts={members} reload={loaded.reload} />
        ))}
        {![...groups.keys()].some((name) => name !== null) && (
          <Empty title="No hosts beside this machine" command="shanty hosts add lab 10.0.0.2 10.0.0.3">
            <p>Keep the machines that you reach by ssh under a name; they are checked and shown here:</p>
          </Empty>
        )}
        <Types types={types} />
        <Queue queue={queue} />
      </div>
    </div>
  );
}
