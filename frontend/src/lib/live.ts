/* One stream of events for a run's page: how it stands, and the new lines of the logs that are shown. */
import { createContext } from "preact";
import { useContext, useEffect, useRef } from "preact/hooks";

import type { LogLine, Progress, Summary } from "../types.ts";
import { runPath } from "./api.ts";
import { listen } from "./events.ts";

export type RankName = string; // a number, "launcher" or "agent"

interface Follower {
  from: () => number;
  lines: (lines: LogLine[], begin: number, end: number) => void;
  behind: (size: number) => void;
}

interface Watcher {
  status?: (summary: Summary) => void;
  metrics?: () => void;
  progress?: (progress: Progress) => void;
  again?: () => void;
}

export class Live {
  private readonly followers = new Map<RankName, Follower>();
  private readonly watchers = new Set<Watcher>();
  private end: (() => void) | null = null;
  private opening = 0;
  private on = false;

  constructor(private readonly id: string) {}

  /** Starts to listen; until `stop`. */
  start(): void {
    this.on = true;
    this.reopen();
  }

  stop(): void {
    this.on = false;
    window.clearTimeout(this.opening);
    this.end?.();
    this.end = null;
  }

  follow(rank: RankName, follower: Follower): () => void {
    this.followers.set(rank, follower);
    this.reopen();
    return () => {
      if (this.followers.get(rank) !== follower) return;
      this.followers.delete(rank);
      this.reopen();
    };
  }

  watch(watcher: Watcher): () => void {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  }

  /* Several panes come and go at once: one new stream for all of them. */
  private reopen(): void {
    if (!this.on) return;
    window.clearTimeout(this.opening);
    this.opening = window.setTimeout(() => this.open(), 30);
  }

  private open(): void {
    this.end?.();
    const address = (): string => {
      const ranks = [...this.followers.keys()];
      const from = [...this.followers].map(([rank, follower]) => `${rank}:${follower.from()}`);
      const words = new URLSearchParams();
      if (ranks.length) {
        words.set("ranks", ranks.join(","));
        words.set("from", from.join(","));
      }
      const text = words.toString();
      return `${runPath(this.id)}/stream${text && `?${text}`}`;
    };
    const all = (act: (watcher: Watcher) => void): void => {
      for (const watcher of this.watchers) act(watcher);
    };
    this.end = listen(
      address,
      {
        log: (data: { rank: number | string; lines: LogLine[]; begin: number; end: number }) =>
          this.followers.get(String(data.rank))?.lines(data.lines, data.begin, data.end),
        behind: (data: { rank: number | string; size: number }) =>
          this.followers.get(String(data.rank))?.behind(data.size),
        status: (data: Summary) => all((watcher) => watcher.status?.(data)),
        metrics: () => all((watcher) => watcher.metrics?.()),
        progress: (data: Progress) => all((watcher) => watcher.progress?.(data)),
      },
      () => all((watcher) => watcher.again?.()),
    );
  }
}

export const LiveContext = createContext<Live | null>(null);

/** Hears of a run's changes for as long as the component is shown. */
export function useLive(watcher: Watcher): void {
  const live = useContext(LiveContext);
  const latest = useRef(watcher);
  latest.current = watcher;
  useEffect(
    () =>
      live?.watch({
        status: (summary) => latest.current.status?.(summary),
        metrics: () => latest.current.metrics?.(),
        progress: (progress) => latest.current.progress?.(progress),
        again: () => latest.current.again?.(),
      }),
    [live],
  );
}
