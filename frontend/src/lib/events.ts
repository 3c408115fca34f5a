/* Server-sent events that come back by themselves, and whether the connection is there. */
import { computed, signal } from "@preact/signals";

import { ApiError, send } from "./api.ts";
import { token } from "./session.ts";

const FIRST_WAIT = 500; // ms
const LONGEST_WAIT = 8000;
const UNSEEN = 20_000; // ms after which a page that nobody looks at gives its connection back

const broken = signal(0);

/** True while a stream of events is down and tried again. */
export const disconnected = computed(() => broken.value > 0);

type Handlers = Record<string, (data: never) => void>;

/** Reads events until the stream ends. By `fetch`, for an EventSource cannot send a header. */
async function read(
  address: string,
  handlers: Handlers,
  abort: AbortSignal,
  opened: () => void,
): Promise<void> {
  // Without this Accept, Jupyter's proxy holds back the answer until its end.
  const response = await send(address, { signal: abort, headers: { Accept: "text/event-stream" } });
  if (abort.aborted || !response.body) return;
  opened();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done || abort.aborted) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop() ?? "";
    for (const event of events) {
      const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(event) ?? [];
      const handle = name === undefined ? undefined : handlers[name];
      if (!handle || data === undefined || abort.aborted) continue;
      try {
        handle(JSON.parse(data) as never);
      } catch (error) {
        reportError(error); // a page's mistake: the stream goes on
      }
    }
  }
}

/**
 * Listens to a stream until the function it returns is called. `address` is asked again at each
 * attempt, so that a stream goes on where it was; `again` is called when it is back after a break.
 */
export function listen(address: () => string, handlers: Handlers, again?: () => void): () => void {
  let source: AbortController | null = null;
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

  const retry = (reason: unknown): void => {
    source = null;
    if (reason instanceof ApiError && reason.status === 401) {
      setDown(false);
      return;
    }
    setDown(true);
    timer = window.setTimeout(open, wait);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  };

  const close = (): void => {
    source?.abort();
    source = null;
  };

  const open = (): void => {
    window.clearTimeout(timer);
    close();
    if (ended || token.value === null) return;
    const mine = new AbortController();
    source = mine;
    const opened = (): void => {
      wait = FIRST_WAIT;
      if (down || paused) again?.();
      paused = false;
      setDown(false);
    };
    read(address(), handlers, mine.signal, opened)
      .catch((reason: unknown) => reason)
      .then((reason: unknown) => {
        if (source === mine) retry(reason);
      });
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
      close();
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
    close();
    setDown(false);
  };
}
