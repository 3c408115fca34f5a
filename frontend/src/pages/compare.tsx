/* Up to eight runs side by side: what differs between them, and what came of it. */
import { useState } from "preact/hooks";

import { get } from "../lib/api.ts";
import { below } from "../lib/base.ts";
import { figure, plain, took } from "../lib/format.ts";
import { useLoad } from "../lib/load.ts";
import { params, runLink, setParams } from "../lib/router.ts";
import { Empty, ErrorCard, useTitle, Waiting } from "../parts/bits.tsx";
import { StateBadge } from "../parts/state.tsx";
import { HUES } from "../parts/chart.tsx";
import type { Comparison, Summary } from "../types.ts";
import { MetricCharts, seriesOf } from "./run/metrics.tsx";

const MOST = 8;

function Heads({ runs, all }: { runs: readonly Summary[]; all: readonly string[] }) {
  return (
    <tr>
      <th scope="col">
        <span class="unseen">What</span>
      </th>
      {runs.map((run, index) => (
        <th scope="col" key={run.id}>
          <span class={`key hue-${index % HUES}`} aria-hidden="true" />
          <a href={runLink(run.id)}>{run.name ?? run.id}</a>
          {runs.length > 1 && (
            <button
              type="button"
              class="small plain"
              aria-label={`Take ${run.name ?? run.id} away`}
              onClick={() => setParams({ run: all.filter((id) => id !== run.id) })}
            >
              ✕
            </button>
          )}
        </th>
      ))}
    </tr>
  );
}

/* The best of a row is not known: least and most are both said, and neither is praised. */
function Values({ name, values }: { name: string; values: readonly (number | null)[] }) {
  return (
    <tr>
      <th scope="row">{name}</th>
      {values.map((value, index) => (
        <td key={index} class="number">
          {figure(value)}
        </td>
      ))}
    </tr>
  );
}

export function Compare() {
  useTitle("Compare");
  const ids = params.value.getAll("run").slice(0, MOST);
  const key = ids.join(" ");
  const loaded = useLoad<Comparison>(key || null, (abort) => get("/compare", { run: ids }, abort));
  const runs = loaded.value?.runs ?? [];
  const series = useLoad(
    runs.length ? `${key} series` : null,
    (abort) => seriesOf(runs.map((run) => ({ id: run.id, name: run.name })), abort),
  );
  const [all, setAll] = useState(false);
  if (!ids.length) {
    return (
      <div class="page">
        <h1>Compare</h1>
        <Empty title="No runs to compare">
          <p>
            Select up to {MOST} of <a href={below("/")}>the runs</a> (the boxes at the left, or <kbd>x</kbd>), then Compare.
          </p>
        </Empty>
      </div>
    );
  }
  if (loaded.error && !loaded.value) return <ErrorCard error={loaded.error} again={loaded.reload} />;
  if (!loaded.value) return <Waiting what="Comparing…" />;
  const { parameters, metrics } = loaded.value;
  const shown = all ? parameters : parameters.filter((parameter) => parameter.differs);
  const columns = runs.length;
  return (
    <div class="page">
      <div class="page-head">
        <h1>Compare</h1>
        <p class="muted">{columns} runs</p>
      </div>
      <section class="card" aria-label="Parameters">
        <div class="card-head">
          <h2>Parameters</h2>
          <label class="inline">
            <input type="checkbox" checked={all} onChange={() => setAll(!all)} />
            Those that are the same too
          </label>
        </div>
        <div class="table-wrap" tabIndex={0} role="region" aria-label="Table of parameters">
          <table class="plain-table compare-table">
            <thead>
              <Heads runs={runs} all={ids} />
            </thead>
            <tbody>
              <tr>
                <th scope="row">state</th>
                {runs.map((run) => (
                  <td key={run.id}>
                    <StateBadge run={run} />
                  </td>
                ))}
              </tr>
              <tr>
                <th scope="row">took</th>
                {runs.map((run) => (
                  <td key={run.id} class="number">
                    {took(run.took)}
                  </td>
                ))}
              </tr>
              {shown.map((parameter) => (
                <tr key={parameter.name} class={parameter.differs ? "differs" : undefined}>
                  <th scope="row">
                    {parameter.name}
                    {parameter.differs && all && <span class="tag">differs</span>}
                  </th>
                  {parameter.values.map((value, index) => (
                    <td key={index}>
                      <code class="breaks">{plain(value)}</code>
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        {!shown.length && <p class="muted">They were asked for alike: no parameter differs.</p>}
      </section>
      {metrics.length > 0 && (
        <section class="card" aria-label="Metrics">
          <h2>Metrics</h2>
          <div class="table-wrap" tabIndex={0} role="region" aria-label="Table of metrics">
            <table class="plain-table compare-table">
              <thead>
                <Heads runs={runs} all={ids} />
              </thead>
              {metrics.map((metric) => (
                <tbody key={metric.name}>
                  <Values name={`${metric.name}, last`} values={metric.last} />
                  <Values name={`${metric.name}, least`} values={metric.best_min} />
                  <Values name={`${metric.name}, most`} values={metric.best_max} />
                </tbody>
              ))}
            </table>
          </div>
        </section>
      )}
      {series.value?.some((run) => run.series.length) && <MetricCharts runs={series.value} />}
    </div>
  );
}
