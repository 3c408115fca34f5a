/* One run: first how it stands and why, then all that is known of it. */
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { get, runPath } from "../../lib/api.ts";
import { Live, LiveContext } from "../../lib/live.ts";
import { useEvery, useLoad } from "../../lib/load.ts";
import { params, setParams } from "../../lib/router.ts";
import { ErrorCard, useTitle, Waiting } from "../../parts/bits.tsx";
import { type Detail, FINAL, type Progress } from "../../types.ts";
import { About, Environment, Events } from "./about.tsx";
import { Artifacts } from "./artifacts.tsx";
import { First } from "./first.tsx";
import { Head } from "./head.tsx";
import { FirstLog, Logs } from "./logs.tsx";
import { Metrics } from "./metrics.tsx";
import { Ranks } from "./ranks.tsx";
import { Resources } from "./resources.tsx";
import { Stacks } from "./stacks.tsx";

const TABS: readonly [string, string][] = [
  ["overview", "Overview"],
  ["logs", "Logs"],
  ["metrics", "Metrics"],
  ["resources", "Resources"],
  ["stacks", "Stacks"],
  ["artifacts", "Artifacts"],
  ["environment", "Environment"],
  ["events", "Events"],
];
const SOON = 400; // ms from an event to the next look

function Tabs({ now, counts }: { now: string; counts: Record<string, number> }) {
  const list = useRef<HTMLDivElement>(null);
  const choose = (name: string): void => setParams({ tab: name === "overview" ? null : name }, "push");
  const move = (by: number): void => {
    const index = TABS.findIndex(([name]) => name === now);
    const next = TABS[(index + by + TABS.length) % TABS.length]!;
    choose(next[0]);
    list.current?.querySelector<HTMLElement>(`#tab-${next[0]}`)?.focus();
  };
  return (
    <div
      class="tabs"
      role="tablist"
      aria-label="About this run"
      ref={list}
      onKeyDown={(event) => {
        if (event.key === "ArrowRight") move(1);
        else if (event.key === "ArrowLeft") move(-1);
      }}
    >
      {TABS.map(([name, title]) => (
        <button
          type="button"
          role="tab"
          id={`tab-${name}`}
          key={name}
          aria-selected={name === now}
          aria-controls="tab-panel"
          tabIndex={name === now ? 0 : -1}
          onClick={() => choose(name)}
        >
          {title}
          {counts[name] ? <span class="count">{counts[name]}</span> : null}
        </button>
      ))}
    </div>
  );
}

function panel(run: Detail, tab: string): ComponentChildren {
  const on = !FINAL.has(run.state);
  switch (tab) {
    case "logs":
      return <Logs run={run} />;
    case "metrics":
      return <Metrics id={run.id} name={run.name} />;
    case "resources":
      return <Resources id={run.id} on={on} />;
    case "stacks":
      return <Stacks id={run.id} on={run.state === "running" || run.state === "starting"} />;
    case "artifacts":
      return <Artifacts id={run.id} />;
    case "environment":
      return <Environment run={run} />;
    case "events":
      return <Events run={run} />;
    default:
      return (
        <div class="overview">
          <div class="stack">
            <Ranks run={run} />
            <FirstLog run={run} />
          </div>
          <About run={run} />
        </div>
      );
  }
}

export function Run({ id }: { id: string }) {
  const loaded = useLoad(id, (abort) => get<Detail>(runPath(id), {}, abort));
  const run = loaded.value;
  const [progress, setProgress] = useState<Progress | null>(null);
  const live = useMemo(() => new Live(id), [id]);
  const on = run !== null && !FINAL.has(run.state);
  const tab = TABS.some(([name]) => name === params.value.get("tab")) ? params.value.get("tab")! : "overview";
  useTitle(run ? `${run.name ?? run.id} ${run.state}` : id);

  const latest = useRef(run);
  latest.current = run;
  useEffect(() => {
    let timer = 0;
    const soon = (): void => {
      window.clearTimeout(timer);
      timer = window.setTimeout(loaded.reload, SOON);
    };
    const end = live.watch({
      status: (summary) => {
        const { current } = latest;
        if (current) loaded.set({ ...current, ...summary, ranks: current.ranks }); // a list, in the summary a number
        soon();
      },
      progress: setProgress,
      again: soon,
    });
    return () => {
      window.clearTimeout(timer);
      end();
    };
  }, [live]);
  useEffect(() => {
    if (!on) return;
    live.start();
    return () => live.stop();
  }, [live, on]);
  // For what no event reports: how long it has run, and ranks that joined.
  useEvery(5, on, loaded.reload);

  if (loaded.error && (!run || loaded.error.status === 404)) return <ErrorCard error={loaded.error} again={loaded.reload} />;
  if (!run) return <Waiting what="Loading the run…" />;
  return (
    <LiveContext.Provider value={live}>
      <div class="page run-page">
        <Head run={run} reload={loaded.reload} />
        <First run={run} progress={progress ?? run.progress} />
        <p class="unseen" role="status">
          {run.name ?? "The run"} is {run.state}
        </p>
        <Tabs now={tab} counts={{ artifacts: run.artifacts_count, metrics: run.metrics.length }} />
        <div id="tab-panel" role="tabpanel" aria-labelledby={`tab-${tab}`} class="tab-panel">
          {panel(run, tab)}
        </div>
      </div>
    </LiveContext.Provider>
  );
}
