/* A search through a whole log: the API scans some MiB a request, this goes on until all is seen. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { get, isAbort, runPath } from "../../lib/api.ts";
import { sayError } from "../../lib/say.ts";
import type { LogMatches } from "../../types.ts";

const MOST = 1000; // matches

export interface LogSearch {
  matches: number[]; // offsets
  scanned: number; // bytes
  busy: boolean;
  full: boolean; // there may be more
}

const NONE: LogSearch = { matches: [], scanned: 0, busy: false, full: false };

export function useLogSearch(run: string, rank: string, attempt: number | null) {
  const [state, setState] = useState(NONE);
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);

  const stop = useCallback(() => {
    abort.current?.abort();
    setState((now) => ({ ...now, busy: false }));
  }, []);

  const clear = useCallback(() => {
    abort.current?.abort();
    setState(NONE);
  }, []);

  const start = useCallback(
    async (q: string, regex: boolean, found: (offset: number) => void): Promise<void> => {
      abort.current?.abort();
      const mine = new AbortController();
      abort.current = mine;
      let matches: number[] = [];
      let scanned = 0;
      let from: number | null = 0;
      setState({ ...NONE, busy: true });
      try {
        while (from !== null && matches.length < MOST) {
          const answer: LogMatches = await get<LogMatches>(
            `${runPath(run)}/logs/${rank}/search`,
            { q, from, limit: 200, regex: regex ? 1 : 0, case: 0, attempt },
            mine.signal,
          );
          if (!matches.length && answer.matches[0]) found(answer.matches[0].offset);
          matches = [...matches, ...answer.matches.map((match) => match.offset)];
          scanned += answer.scanned;
          from = answer.next;
          setState({ matches, scanned, busy: from !== null, full: false });
        }
        setState({ matches, scanned, busy: false, full: from !== null });
      } catch (error) {
        if (isAbort(error)) return;
        setState({ matches, scanned, busy: false, full: false });
        sayError(error);
      }
    },
    [run, rank, attempt],
  );
  return { state, start, stop, clear };
}

/** What is marked in the lines; null where the expression is none of this browser's. */
export function pattern(q: string, regex: boolean): RegExp | null {
  if (!q) return null;
  try {
    return new RegExp(regex ? q : q.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
  } catch {
    return null;
  }
}
