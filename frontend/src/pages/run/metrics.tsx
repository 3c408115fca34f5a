/* Metrics of a run as charts, with those of other runs over them. */
import type { ComponentChildren } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";

import { get, runPath } from "../../lib/api.ts";
import { figure } from "../../lib/format.ts";
import { useLive } from "../../lib/live.ts";
import { useLoad } from "../../lib/load.ts";
import { params, setParams } from "../../lib/router.ts";
import { Empty, ErrorCard, Waiting } from "../../parts/bits.tsx";
import { Chart, type Line } from "../../parts/chart.tsx";
import type { RunList, MetricSeries, Summary } from "../../types.ts";

const SOON = 1500; // ms from new values to the next look
const LINES = 24; // of one chart

export interface RunSeries {
  id: string;
  name: string;
  series: MetricSeries[];
}

/** The metrics of runs; where a name is not given, it is asked for. */
export async function seriesOf(
  runs: readonly { id: string; name?: string | null }[],
  abort: AbortSignal,
): Promise<RunSeries[]> {
  return Promise.all(
    runs.map(async ({ id, name }) => {
      const [answer, run] = await Promise.all([
        get<{ series: MetricSeries[] }>(`${runPath(id)}/metrics`, { points: 1000 }, abort),
        name === undefined ? get<Summary>(runPath(id), {}, abort) : null,
      ]);
      return { id, name: name ?? run?.name ?? id, series: answer.series };
    }),
  );
}

type Axis = "step" | "time";

function linesOf(runs: readonly RunSeries[], metric: string, axis: Axis): Line[] {
  const lines: Line[] = [];
  for (const [hue, run] of runs.entries()) {
    const own = run.series.filter((series) => series.name === metric);
    const began = Math.min(
      ...run.series.flatMap((series) => series.points.map(([, time]) => time)).filter(Number.isFinite),
    );
    for (const series of own) {
      const rank = own.length > 1 && series.rank !== null ? `rank ${series.rank}` : "";
      const label = [runs.length > 1 ? run.name : "", rank].filter(Boolean).join(" · ") || metric;
      lines.push({
        label,
        hue: runs.length > 1 ? hue : lines.length,
        x: series.points.map(([step, time], index) => (axis === "time" ? time - began : (step ?? index))),
        y: series.points.map(([, , value]) => value),
      });
    }
  }
  return lines.slice(0, LINES);
}

const last = (line: Line): number | null => line.y.findLast((value) => value !== null) ?? null;
const extreme = (line: Line, which: "min" | "max"): number | null =>
  line.y.reduce<number | null>(
    (best, value) => (value === null ? best : best === null ? value : Math[which](best, value)),
    null,
  );

function Values({ lines, title }: { lines: readonly Line[]; title: string }) {
  return (
    <details class="values">
      <summary>Values</summary>
      <table class="plain-table" aria-label={`Values of ${title}`}>
        <thead>
          <tr>
            <th scope="col">Line</th>
            <th scope="col">Last</th>
            <th scope="col">Least</th>
            <th scope="col">Most</th>
          </tr>
        </thead>
        <tbody>
          {lines.map((line, index) => (
            <tr key={index}>
              <th scope="row">{line.label}</th>
              <td class="number">{figure(last(line))}</td>
              <td class="number">{figure(extreme(line, "min"))}</td>
              <td class="number">{figure(extreme(line, "max"))}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}

export function MetricCharts({ runs, children }: { runs: readonly RunSeries[]; children?: ComponentChildren }) {
  const [axis, setAxis] = useState<Axis>("step");
  const [logarithmic, setLogarithmic] = useState(false);
  const [smooth, setSmooth] = useState(0);
  const names = useMemo(
    () => [...new Set(runs.flatMap((run) => run.series.map((series) => series.name)))],
    [runs],
  );
  const charts = useMemo(
    () => names.map((name) => [name, linesOf(runs, name, axis)] as const),
    [names, runs, axis],
  );
  return (
    <>
      <div class="toolbar">
        {children}
        <label class="inline">
          Over
          <select value={axis} onChange={(event) => setAxis(event.currentTarget.value as Axis)}>
            <option value="step">steps</option>
            <option value="time">time</option>
          </select>
        </label>
        <label class="inline">
          <input type="checkbox" checked={logarithmic} onChange={() => setLogarithmic(!logarithmic)} />
          Logarithmic
        </label>
        <label class="inline">
          Smoothing
          <input
            type="range"
            min={0}
            max={0.98}
            step={0.02}
            value={smooth}
            onInput={(event) => setSmooth(Number(event.currentTarget.value))}
          />
        </label>
        <span class="muted small-text">Drag over a chart to zoom in, double-click to zoom out.</span>
      </div>
      <div class="charts">
        {charts.map(([name, lines]) => (
          <div class="card chart-card" key={name}>
            <Chart
              title={name}
              lines={lines}
              x={axis === "time" ? "seconds" : "step"}
              logarithmic={logarithmic && lines.every((line) => line.y.every((value) => value === null || value > 0))}
              smooth={smooth}
            />
            <Values lines={lines} title={name} />
          </div>
        ))}
      </div>
    </>
  );
}

function Over({ run, others }: { run: string; others: readonly string[] }) {
  const recent = useLoad<RunList>("recent", (abort) => get("/runs", { limit: 50 }, abort));
  const choice = (recent.value?.runs ?? []).filter((each) => each.id !== run && !others.includes(each.id));
  return (
    <label class="inline">
      Beside it
      <select
        value=""
        onChange={(event) => {
          const id = event.currentTarget.value;
          event.currentTarget.value = "";
          if (id) setParams({ with: [...others, id] });
        }}
      >
        <option value="">another run…</option>
        {choice.map((each) => (
          <option key={each.id} value={each.id}>
            {each.name ? `${each.name} (${each.id})` : each.id}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Metrics({ id, name }: { id: string; name: string | null }) {
  const others = params.value.getAll("with").slice(0, 7);
  const runs = [{ id, name }, ...others.map((each) => ({ id: each }))];
  const loaded = useLoad(runs.map((each) => each.id).join(" "), (abort) => seriesOf(runs, abort));
  const timer = useRef(0);
  const soon = (): void => {
    if (timer.current) return;
    timer.current = window.setTimeout(() => {
      timer.current = 0;
      loaded.reload();
    }, SOON);
  };
  useLive({ metrics: soon, status: soon, again: soon });
  if (loaded.error && !loaded.value) return <ErrorCard error={loaded.error} again={loaded.reload} />;
  if (!loaded.value) return <Waiting what="Loading metrics…" />;
  const some = loaded.value.some((run) => run.series.length > 0);
  return (
    <>
      {some ? (
        <MetricCharts runs={loaded.value}>
          <Over run={id} others={others} />
          {others.map((other) => (
            <button
              type="button"
              key={other}
              class="small"
              onClick={() => setParams({ with: others.filter((each) => each !== other) })}
            >
              {loaded.value?.find((run) => run.id === other)?.name ?? other}
              <span aria-hidden="true">✕</span>
              <span class="unseen">, take away</span>
            </button>
          ))}
        </MetricCharts>
      ) : (
        <Empty title="No metrics yet" command={"import shanty\nshanty.log(loss=loss, step=step)"}>
          <p>A script logs what it wants to see here:</p>
        </Empty>
      )}
    </>
  );
}
