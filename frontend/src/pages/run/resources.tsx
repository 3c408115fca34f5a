/* What the hosts of a run had to do over time: CPU, memory, network, GPUs. */
import { useMemo } from "preact/hooks";

import { get, runPath } from "../../lib/api.ts";
import { figure, size } from "../../lib/format.ts";
import { useEvery, useLoad } from "../../lib/load.ts";
import { Empty, ErrorCard, Waiting } from "../../parts/bits.tsx";
import { Chart, type Line } from "../../parts/chart.tsx";
import type { Series } from "../../types.ts";

type Hosts = Record<string, Series>;

interface Measure {
  title: string;
  lines: Line[];
  format: (value: number) => string;
  range: [number, number] | null;
}

const percent = (value: number): string => `${figure(Math.round(value * 100))} %`;
const rate = (value: number): string => `${size(value)}/s`;

function measures(hosts: Hosts): Measure[] {
  const all = Object.entries(hosts);
  const lines = (of: (host: Series) => (number | null)[]): Line[] =>
    all.map(([label, host], hue) => ({ label, hue, x: host.time, y: of(host) }));
  const most = Math.max(0, ...all.map(([, host]) => host.memory_total ?? 0));
  const found: Measure[] = [
    { title: "CPU (of all cores)", lines: lines((host) => host.cpu), format: percent, range: [0, 1] },
    { title: "Memory", lines: lines((host) => host.memory), format: size, range: most ? [0, most] : null },
    { title: "Network, received", lines: lines((host) => host.receive), format: rate, range: null },
    { title: "Network, sent", lines: lines((host) => host.send), format: rate, range: null },
  ];
  const gpus = all.flatMap(([name, host], hue) =>
    (host.gpus ?? []).map((gpu) => ({ label: `${name} GPU ${gpu.index}`, hue, x: host.time, gpu })),
  );
  if (gpus.length) {
    const memory = Math.max(0, ...gpus.map(({ gpu }) => gpu.memory_total ?? 0));
    found.push(
      {
        title: "GPU",
        lines: gpus.map(({ gpu, ...line }) => ({ ...line, y: gpu.utilization })),
        format: percent,
        range: [0, 1],
      },
      {
        title: "GPU memory",
        lines: gpus.map(({ gpu, ...line }) => ({ ...line, y: gpu.memory })),
        format: size,
        range: memory ? [0, memory] : null,
      },
    );
  }
  return found;
}

export function Resources({ id, on }: { id: string; on: boolean }) {
  const loaded = useLoad<{ hosts: Hosts }>(id, (abort) => get(`${runPath(id)}/resources`, { points: 500 }, abort));
  useEvery(5, on, loaded.reload);
  const charts = useMemo(() => measures(loaded.value?.hosts ?? {}), [loaded.value]);
  if (loaded.error && !loaded.value) return <ErrorCard error={loaded.error} again={loaded.reload} />;
  if (!loaded.value) return <Waiting what="Loading resources…" />;
  if (!Object.values(loaded.value.hosts).some((host) => host.time.length)) {
    return (
      <Empty title="Nothing was measured yet">
        <p>Each host of a run is measured every few seconds while the run is on.</p>
      </Empty>
    );
  }
  return (
    <div class="charts">
      {charts.map((chart) => (
        <div class="card chart-card" key={chart.title}>
          <Chart {...chart} x="clock" height={190} />
        </div>
      ))}
    </div>
  );
}
