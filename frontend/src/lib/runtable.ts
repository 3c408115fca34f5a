/* The runs that a table shows: only the pages in sight are asked for, and kept true by events. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import type { Facets, RunList, Summary } from "../types.ts";
import { type ApiError, asApiError, get, isAbort, query } from "./api.ts";
import { listen } from "./events.ts";

const PAGE = 100;
const KEPT = 30; // pages
const SOON = 600; // ms at least from an event to the next look at what is in sight
const REST = 4; // times as long as the last answer took, a busy server is left alone

interface Table {
  key: string;
  total: number;
  pages: Map<number, readonly Summary[]>;
  facets: Facets | null;
}

const EMPTY: Table = { key: "", total: 0, pages: new Map(), facets: null };

export interface RunTable {
  total: number;
  facets: Facets | null;
  at: (row: number) => Summary | null;
  ready: boolean;
  /** True while rows of other filters are still shown. */
  stale: boolean;
  error: ApiError | null;
  see: (first: number, last: number) => void;
  reload: () => void;
}

export function useRunTable(filters: Record<string, string | readonly string[]>): RunTable {
  const key = query(filters);
  const table = useRef<Table>(EMPTY);
  const [, redraw] = useState(0);
  const [error, setError] = useState<ApiError | null>(null);
  const seen = useRef({ first: 0, last: 40 });
  const asked = useRef(new Map<number, AbortController>());
  const latest = useRef(key);
  const timer = useRef(0);
  const frame = useRef(0);
  const cost = useRef(0); // ms that the last answer took
  latest.current = key;

  // However many events come, the table is drawn once a frame.
  const show = useCallback(() => {
    if (frame.current) return;
    frame.current = requestAnimationFrame(() => {
      frame.current = 0;
      redraw((now) => now + 1);
    });
  }, []);

  const fetchPage = useCallback(async (page: number) => {
    const wanted = latest.current;
    asked.current.get(page)?.abort();
    const abort = new AbortController();
    asked.current.set(page, abort);
    const began = performance.now();
    try {
      const answer = await get<RunList>(
        `/runs${wanted}${wanted ? "&" : "?"}offset=${page * PAGE}&limit=${PAGE}`,
        {},
        abort.signal,
      );
      cost.current = performance.now() - began;
      if (wanted !== latest.current) return;
      const fresh = table.current.key !== wanted;
      const pages = fresh ? new Map<number, readonly Summary[]>() : table.current.pages;
      pages.set(page, answer.runs);
      for (const kept of [...pages.keys()].slice(0, Math.max(0, pages.size - KEPT))) pages.delete(kept);
      table.current = { key: wanted, total: answer.total, pages, facets: answer.facets };
      setError(null);
      show();
    } catch (reason) {
      if (!isAbort(reason)) setError(asApiError(reason));
    } finally {
      if (asked.current.get(page) === abort) asked.current.delete(page);
    }
  }, []);

  const look = useCallback((again: boolean) => {
    const { first, last } = seen.current;
    const fresh = table.current.key === latest.current;
    for (let page = Math.floor(first / PAGE); page <= Math.floor(Math.max(first, last - 1) / PAGE); page += 1) {
      const there = fresh && table.current.pages.has(page);
      if (again || (!there && !asked.current.has(page))) void fetchPage(page);
    }
  }, []);

  const see = useCallback((first: number, last: number) => {
    seen.current = { first, last };
    look(false);
  }, []);

  const reload = useCallback(() => {
    window.clearTimeout(timer.current);
    timer.current = 0;
    look(true);
  }, []);

  const soon = useCallback(() => {
    if (!timer.current) timer.current = window.setTimeout(reload, Math.max(SOON, REST * cost.current));
  }, []);

  useEffect(() => {
    for (const abort of asked.current.values()) abort.abort();
    asked.current.clear();
    seen.current = { first: 0, last: 40 };
    look(true);
  }, [key]);

  useEffect(() => {
    const changed = (run: Summary): void => {
      let settled = false;
      for (const [page, rows] of table.current.pages) {
        const index = rows.findIndex((row) => row.id === run.id);
        if (index < 0) continue;
        settled = rows[index]!.state === run.state;
        table.current.pages.set(page, rows.with(index, run));
      }
      show();
      if (!settled) soon();
    };
    const end = listen(() => "/runs/stream", { run: changed, gone: soon }, reload);
    return () => {
      end();
      window.clearTimeout(timer.current);
      cancelAnimationFrame(frame.current);
    };
  }, []);

  const at = useCallback(
    (row: number) => table.current.pages.get(Math.floor(row / PAGE))?.[row % PAGE] ?? null,
    [],
  );
  const now = table.current;
  return {
    total: now.total,
    facets: now.facets,
    at,
    ready: now !== EMPTY,
    stale: now.key !== key,
    error,
    see,
    reload,
  };
}
