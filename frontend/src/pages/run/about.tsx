/* What was asked for: the command to be copied, where it ran, environment, version of the code. */
import type { ComponentChildren } from "preact";

import { plain, took } from "../../lib/format.ts";
import { Command, Facts, Time } from "../../parts/bits.tsx";
import { type Detail, FINAL } from "../../types.ts";
import { exitWords } from "../../parts/state.tsx";

export function About({ run }: { run: Detail }) {
  const rows: (readonly [string, ComponentChildren])[] = [
    ["Created", <Time at={run.created} />],
    ["Started", <Time at={run.started} />],
    [FINAL.has(run.state) ? "Ended" : "On for", FINAL.has(run.state) ? <Time at={run.ended} /> : took(run.started ? Date.now() / 1000 - run.started : null)],
    ["Ranks", run.ranks.length || "–"],
    ["Where", run.machine_type ?? run.on ?? run.target ?? "–"],
  ];
  if (FINAL.has(run.state)) rows.splice(3, 0, ["Took", took(run.took)]);
  if (run.exit_code !== null) rows.push(["Result", exitWords(run.exit_code)]);
  if (run.owner) rows.push(["Owner", run.owner]);
  if (run.attempts.length > 1) rows.push(["Attempt", `${run.attempt} of ${run.attempts.length}`]);
  if (run.workspace) rows.push(["Workspace", <code>{run.workspace}</code>]);
  if (run.code_version) {
    rows.push([
      "Code version",
      <>
        <code title={run.code_version.commit}>{run.code_version.commit.slice(0, 12)}</code>
        {run.code_version.dirty && <span class="tag">with changes</span>}
      </>,
    ]);
  }
  return (
    <section class="card" aria-label="Facts">
      <h2>About</h2>
      <Facts rows={rows} />
      <h3>Command</h3>
      <Command text={run.command_line} label="Command of this run" />
    </section>
  );
}

function Values({ title, values }: { title: string; values: Record<string, unknown> }) {
  const rows = Object.entries(values).filter(([, value]) => value !== null && value !== "" && value !== false);
  if (!rows.length) return null;
  return (
    <section class="card">
      <h2>{title}</h2>
      <div class="table-wrap" tabIndex={0} role="region" aria-label={title}>
        <table class="plain-table">
          <thead class="unseen">
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Value</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(([name, value]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td>
                  <code class="breaks">{plain(value)}</code>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

export function Environment({ run }: { run: Detail }) {
  return (
    <div class="stack">
      <Values title="What was asked for" values={run.job} />
      <Values title="Environment" values={run.environment} />
      {Object.keys(run.environment).length === 0 && <p class="muted">No variable was set for this run.</p>}
    </div>
  );
}

export function Events({ run }: { run: Detail }) {
  const events = [...run.events].reverse();
  if (!events.length) return <p class="muted">Nothing has happened yet.</p>;
  return (
    <div class="table-wrap" tabIndex={0} role="region" aria-label="Events">
      <table class="plain-table">
        <thead>
          <tr>
            <th scope="col">Time</th>
            <th scope="col">Event</th>
            <th scope="col">What</th>
          </tr>
        </thead>
        <tbody>
          {events.map((event, index) => {
            const { time, event: name, ...rest } = event;
            return (
              <tr key={index}>
                <td>
                  <Time at={typeof time === "number" ? time : null} />
                </td>
                <td class="no-wrap">{plain(name)}</td>
                <td>
                  <code class="breaks">{eventWords(rest)}</code>
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function eventWords(rest: Record<string, unknown>): string {
  const failure = rest.failure as Record<string, unknown> | null | undefined;
  if (failure) return [failure.what, failure.why].filter(Boolean).join(": ");
  const report = (rest.report ?? rest.status) as Record<string, unknown> | undefined;
  if (rest.status && report) return `${plain(report.state)}: ${plain(report.up)} up, ${plain(report.joined)} joined`;
  return Object.entries(report ?? rest)
    .filter(([name, value]) => value !== null && value !== "" && name !== "event")
    .map(([name, value]) => `${name} ${plain(value)}`)
    .join(" · ");
}
