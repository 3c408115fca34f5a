/* What a page asks for, and how it stands with that. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { type ApiError, asApiError, isAbort } from "./api.ts";

export interface Loaded<T> {
  value: T | null;
  error: ApiError | null;
  busy: boolean;
  reload: () => void;
  set: (value: T) => void;
}

/** Asks whenever `key` changes; null asks nothing. An old answer stays while a new one is awaited. */
export function useLoad<T>(
  key: string | null,
  ask: (abort: AbortSignal) => Promise<T>,
): Loaded<T> {
  const [value, setValue] = useState<{ key: string; value: T } | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(key !== null);
  const [turn, setTurn] = useState(0);
  const latest = useRef(ask);
  latest.current = ask;
  useEffect(() => {
    if (key === null) return;
    const abort = new AbortController();
    setBusy(true);
    latest
      .current(abort.signal)
      .then((answer) => {
        if (abort.signal.aborted) return;
        setValue({ key, value: answer });
        setError(null);
        setBusy(false);
      })
      .catch((reason: unknown) => {
        if (abort.signal.aborted || isAbort(reason)) return;
        setError(asApiError(reason));
        setBusy(false);
      });
    return () => abort.abort();
  }, [key, turn]);
  const reload = useCallback(() => setTurn((now) => now + 1), []);
  const set = useCallback((next: T) => setValue({ key: key ?? "", value: next }), [key]);
  return { value: value?.value ?? null, error, busy, reload, set };
}

/** Calls `act` every `seconds` while `on` and the page is looked at. */
export function useEvery(seconds: number, on: boolean, act: () => void): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    if (!on) return;
    const timer = window.setInterval(() => {
      if (!document.hidden) latest.current();
    }, seconds * 1000);
    return () => window.clearInterval(timer);
  }, [seconds, on]);
}

/** The value once it has not changed for some milliseconds. */
export function useSettled<T>(value: T, wait: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(value), wait);
    return () => window.clearTimeout(timer);
  }, [value, wait]);
  return settled;
}
