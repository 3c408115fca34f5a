/* A chart of lines over steps or time, by uPlot. Lines differ by colour and by dashes. */
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

import "uplot/dist/uPlot.min.css";

import { figure, ofDay, when } from "../lib/format.ts";
import { colour, theme } from "../lib/theme.ts";

export interface Line {
  label: string;
  x: (number | null)[];
  y: (number | null)[];
  /** Which of the palette's colours; lines of one run or host have one. */
  hue: number;
}

export interface ChartProps {
  title: string;
  lines: readonly Line[];
  x: "step" | "seconds" | "clock";
  height?: number;
  logarithmic?: boolean;
  smooth?: number; // 0: as it is; towards 1: smoother
  range?: [number, number] | null;
  format?: (value: number) => string;
}

export const HUES = 8;
const DASHES: (number[] | undefined)[] = [undefined, [7, 4], [2, 3], [10, 3, 2, 3]];

function smoothed(values: (number | null)[], weight: number): (number | null)[] {
  if (!weight) return values;
  let mean: number | null = null;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean === null ? value : mean * weight + value * (1 - weight);
    return mean;
  });
}

function joined(lines: readonly Line[], weight: number): uPlot.AlignedData {
  const tables = lines.map((line): uPlot.AlignedData => {
    const pairs = line.x
      .map((x, index): [number | null, number | null] => [x, line.y[index] ?? null])
      .filter((pair): pair is [number, number | null] => pair[0] !== null)
      .sort((a, b) => a[0] - b[0]);
    const xs: number[] = [];
    const ys: (number | null)[] = [];
    for (const [x, y] of pairs) {
      if (xs.at(-1) === x) ys[ys.length - 1] = y; // an attempt went over a step again
      else {
        xs.push(x);
        ys.push(y);
      }
    }
    return [xs, smoothed(ys, weight)];
  });
  return tables.length ? uPlot.join(tables) : [[], []];
}

function summary(props: ChartProps): string {
  const format = props.format ?? figure;
  const said = props.lines.slice(0, 8).map((line) => {
    const values = line.y.filter((value): value is number => value !== null);
    if (!values.length) return `${line.label}: no values`;
    let [least, most] = [values[0]!, values[0]!];
    for (const value of values) {
      if (value < least) least = value;
      if (value > most) most = value;
    }
    return `${line.label}: last ${format(values.at(-1)!)}, least ${format(least)}, most ${format(most)}`;
  });
  const more = props.lines.length > 8 ? `, and ${props.lines.length - 8} more lines` : "";
  return `Chart of ${props.title}. ${said.join("; ")}${more}.`;
}

function options(props: ChartProps, width: number): uPlot.Options {
  const { lines, logarithmic, range } = props;
  const format = props.format ?? figure;
  const ink = colour("muted");
  const grid = { stroke: colour("line"), width: 1 };
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: ink, grid, ticks: { ...grid, size: 4 }, font };
  const written = {
    step: (value: number) => figure(value),
    seconds: (value: number) => `${figure(value)} s`,
    clock: (value: number) => when(value),
  }[props.x];
  const x = {
    values: (_: uPlot, at: number[]) =>
      at.map((value) => (props.x === "clock" ? ofDay(value, (at[1] ?? 60) - (at[0] ?? 0) < 60) : written(value))),
  };
  return {
    width,
    height: props.height ?? 220,
    legend: { live: true },
    cursor: { drag: { x: true, y: false, uni: 20 }, points: { size: 6 } },
    scales: {
      x: { time: props.x === "clock" },
      y: { distr: logarithmic ? 3 : 1, ...(range ? { range: () => range } : {}) },
    },
    axes: [
      { ...axis, size: 34, space: props.x === "clock" ? 80 : 50, ...x },
      { ...axis, size: 64, values: (_, at) => at.map((value) => (value === null ? "" : format(value))) },
    ],
    series: [
      {
        label: props.x === "step" ? "step" : "time",
        value: (_, value) => (value === null ? "–" : written(value)),
      },
      ...lines.map((line, index): uPlot.Series => {
        const hue = line.hue % HUES;
        const turn = lines.slice(0, index).filter((other) => other.hue % HUES === hue).length;
        const dash = DASHES[turn % DASHES.length];
        return {
          label: line.label,
          stroke: colour(`hue-${hue}`),
          width: 1.5,
          ...(dash ? { dash } : {}),
          spanGaps: true,
          points: { show: line.x.length < 25, size: 5 },
          value: (_, value) => (value === null ? "–" : format(value)),
        };
      }),
    ],
  };
}

export function Chart(props: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const colours = theme.value;
  const { lines, smooth = 0 } = props;
  // A change of the shape makes a new chart; new values alone go into the present chart.
  const shape = JSON.stringify([
    lines.map((line) => [line.label, line.hue, line.x.length < 25]),
    props.x,
    props.logarithmic ?? false,
    props.range ?? null,
    props.height ?? 0,
    colours,
  ]);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const width = (): number => Math.max(200, element.clientWidth);
    plot.current = new uPlot(options(props, width()), joined(lines, smooth), element);
    const watch = new ResizeObserver(() => {
      plot.current?.setSize({ width: width(), height: props.height ?? 220 });
    });
    watch.observe(element);
    return () => {
      watch.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => {
    const there = plot.current;
    if (!there || there.series.length !== lines.length + 1) return;
    // While one has zoomed in, new values do not move what one looks at.
    const { min, max } = there.scales.x ?? {};
    const xs = there.data[0];
    const zoomed = xs.length > 1 && min != null && max != null && (min > xs[0]! || max < xs.at(-1)!);
    there.setData(joined(lines, smooth), !zoomed);
  }, [lines, smooth]);
  return (
    <figure class="chart">
      <figcaption>{props.title}</figcaption>
      <div class="plot" ref={box} role="img" aria-label={summary(props)} />
    </figure>
  );
}
