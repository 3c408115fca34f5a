/* What one wants to know of a run first: what it waits for, or why it failed and what to do. */
import { count, plain, took } from "../../lib/format.ts";
import { setParams } from "../../lib/router.ts";
import { Bar, Time } from "../../parts/bits.tsx";
import { exitWords, StateShape } from "../../parts/state.tsx";
import { type Detail, FINAL, type Finding, type Progress } from "../../types.ts";

function Cause({ run, finding }: { run: Detail; finding: Finding }) {
  const known = finding.rank !== null && finding.rank !== undefined;
  return (
    <section class={`card cause cause-${run.state}`} aria-label={FINAL.has(run.state) ? "Why it ended" : "What is wrong"}>
      <h2>
        {FINAL.has(run.state) && <StateShape state={run.state} />}
        {finding.what}
      </h2>
      {(known || finding.host) && (
        <p class="muted">
          {known && `rank ${finding.rank}`}
          {known && finding.host && " on "}
          {finding.host && <strong>{finding.host}</strong>}
          {known && (
            <>
              {" · "}
              <button
                type="button"
                class="link"
                onClick={() => setParams({ tab: "logs", ranks: String(finding.rank) }, "push")}
              >
                its log
              </button>
            </>
          )}
        </p>
      )}
      {finding.why && <p class="why">{finding.why}</p>}
      {finding.lines && finding.lines.length > 0 && (
        <pre class="cause-lines" tabIndex={0} aria-label="Its last lines">
          {finding.lines.join("\n")}
        </pre>
      )}
      {finding.fix && (
        <p class="fix">
          <strong>Fix:</strong> {finding.fix}
        </p>
      )}
    </section>
  );
}

function Advance({ progress }: { progress: Progress }) {
  const { done, total, label } = progress;
  if (done === null || done === undefined) return null;
  const text = total ? `${plain(done)} of ${plain(total)}` : plain(done);
  return (
    <div class="advance">
      <span>
        {label || "Progress"}: <span class="number">{text}</span>
      </span>
      {total ? <Bar part={done / total} label={label || "Progress"} /> : null}
    </div>
  );
}

export function First({ run, progress }: { run: Detail; progress: Progress | null }) {
  const on = !FINAL.has(run.state);
  const waits = run.waits || (on ? run.reason : null);
  const ended = run.state === "failed" || run.state === "lost" || run.state === "stopped";
  const stalled = run.state === "running" && run.stalled;
  return (
    <>
      {run.finding ? (
        <Cause run={run} finding={run.finding} />
      ) : (
        ended && (
          <section class={`card cause cause-${run.state}`} aria-label="Why it ended">
            <h2>
              <StateShape state={run.state} />
              {run.failure || run.reason || `The run ${run.state === "stopped" ? "was stopped" : run.state}`}
            </h2>
            {run.exit_code !== null && <p class="muted">{exitWords(run.exit_code)}</p>}
          </section>
        )
      )}
      {stalled ? (
        <section class="card notice" aria-label="Stall">
          <h2>No rank makes progress</h2>
          <p>
            The ranks are all there, and since <Time at={run.stalled} /> none of them moves. The stacks say where each
            stands.
          </p>
          <button type="button" onClick={() => setParams({ tab: "stacks" }, "push")}>
            Show the stacks
          </button>
        </section>
      ) : null}
      {run.alone && !run.finding ? (
        <section class="card notice" aria-label="Ranks alone">
          <h2>{run.alone}</h2>
        </section>
      ) : null}
      {on && run.state !== "running" && (
        <section class="card waits" aria-label="What it waits for">
          <h2>
            <StateShape state={run.state} />
            {waits || (run.state === "starting" ? "Ranks are starting" : "It waits to be started")}
          </h2>
          {run.state === "starting" && run.ranks.length ? (
            <>
              <p class="muted">
                {run.joined ?? 0} of {count(run.ranks.length, "rank")} joined
              </p>
              <Bar part={(run.joined ?? 0) / run.ranks.length} label="Ranks that joined" />
            </>
          ) : null}
        </section>
      )}
      {run.state === "running" && run.waits && <p class="muted">{run.waits}</p>}
      {on && progress && <Advance progress={progress} />}
      {run.stalls.length > 0 && !stalled && (
        <p class="muted">
          It stood still {count(run.stalls.length, "time")}
          {typeof run.stalls.at(-1)?.["time"] === "number" && (
            <>
              , last at <Time at={run.stalls.at(-1)!["time"] as number} />
            </>
          )}
          {typeof run.stalls.at(-1)?.["seconds"] === "number" &&
            ` for ${took(run.stalls.at(-1)!["seconds"] as number)}`}
          .
        </p>
      )}
    </>
  );
}
