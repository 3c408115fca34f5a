/* Server-sent events that come back by themselves, and whether the connection is there. */
import { computed, signal } from "@preact/signals";

import { ApiError, get, PREFIX, signedIn } from "./api.ts";

const FIRST_WAIT = 500; // ms
const LONGEST_WAIT = 8000;
const UNSEEN = 20_000; // ms after which a page that nobody looks at gives its connection back

const broken = signal(0);

/** True while a stream of events is down and tried again. */
export const disconnected = computed(() => broken.value > 0);

type Handlers = Record<string, (data: never) => void>;

/**
 * Listens to a stream until the function it returns is called. `address` is asked anew at each
 * attempt, so that a stream goes on where it was; `again` is called when it is back after a break.
 */
export function listen(address: () => string, handlers: Handlers, again?: () => void): () => void {
  let source: EventSource | null = null;
  let timer = 0;
  let wait = FIRST_WAIT;
  let down = false;
  let ended = false;
  let paused = false;
  let unseen = 0;

  const setDown = (now: boolean): void => {
    if (down !== now) broken.value += now ? 1 : -1;
    down = now;
  };

  const retry = async (): Promise<void> => {
    source?.close();
    source = null;
    if (ended) return;
    setDown(true);
    try {
      await get("/me"); // tells a session that has ended from a server that is away
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        setDown(false);
        return;
      }
    }
    if (ended) return;
    timer = window.setTimeout(open, wait);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  };

  const open = (): void => {
    window.clearTimeout(timer);
    if (ended || !signedIn.value) return;
    source?.close();
    source = new EventSource(PREFIX + address());
    source.onopen = () => {
      wait = FIRST_WAIT;
      if (down || paused) again?.();
      paused = false;
      setDown(false);
    };
    source.onerror = () => void retry();
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        handle(JSON.parse((event as MessageEvent<string>).data) as never);
      });
    }
  };

  // A machine that wakes up, a network that is back: no need to wait any longer.
  const nudge = (): void => {
    if (!down || source) return;
    wait = FIRST_WAIT;
    open();
  };
  // A browser has few connections to one server, for all its tabs.
  const seen = (): void => {
    window.clearTimeout(unseen);
    if (!document.hidden) {
      if (paused) open();
      return;
    }
    unseen = window.setTimeout(() => {
      if (down) return;
      paused = true;
      source?.close();
      source = null;
    }, UNSEEN);
  };
  window.addEventListener("online", nudge);
  document.addEventListener("visibilitychange", seen);
  open();
  return () => {
    ended = true;
    window.clearTimeout(timer);
    window.clearTimeout(unseen);
    window.removeEventListener("online", nudge);
    document.removeEventListener("visibilitychange", seen);
    source?.close();
    setDown(false);
  };
}
