/* Which rows of a long list are in sight. All rows have one height. */
import type { RefObject } from "preact";
import { useCallback, useLayoutEffect, useState } from "preact/hooks";

export interface Window {
  first: number;
  last: number; // not included
}

export function useWindow(
  scroller: RefObject<HTMLElement | null>,
  rows: number,
  height: number,
  beyond = 8,
): Window & { measure: () => void } {
  const [seen, setSeen] = useState<Window>({ first: 0, last: Math.min(rows, 40) });
  const measure = useCallback(() => {
    const element = scroller.current;
    if (!element) return;
    const first = Math.max(0, Math.floor(element.scrollTop / height) - beyond);
    const last = Math.min(
      rows,
      Math.ceil((element.scrollTop + element.clientHeight) / height) + beyond,
    );
    setSeen((now) => (now.first === first && now.last === last ? now : { first, last }));
  }, [rows, height, beyond]);
  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return;
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      watch.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, [measure]);
  return { first: Math.min(seen.first, rows), last: Math.min(seen.last, rows), measure };
}
