/* The log of one rank: a stretch of it, wherever in the file. */
import { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { query, runPath } from "../../lib/api.ts";
import { size } from "../../lib/format.ts";
import { LiveContext } from "../../lib/live.ts";
import { LogBuffer } from "../../lib/logbuffer.ts";
import { sayError } from "../../lib/say.ts";
import { Download } from "../../parts/bits.tsx";
import { Dialog } from "../../parts/dialog.tsx";
import { useWindow } from "../../parts/virtual.ts";
import type { LogLine } from "../../types.ts";
import { Line } from "./logline.tsx";
import { pattern, useLogSearch } from "./logsearch.ts";

const HEIGHT = 18; // px of a line, as in the style sheet
const NEAR = 40; // lines from an end at which more are asked for

interface PaneProps {
  run: string;
  rank: string;
  title: string;
  attempt: number | null;
  live: boolean; // this attempt is still on
  times: boolean;
  close: (() => void) | null;
}

export function LogPane({ run, rank, title, attempt, live, times, close }: PaneProps) {
  const stream = useContext(LiveContext);
  const scroller = useRef<HTMLDivElement>(null);
  const [, redraw] = useState(0);
  const [follow, setFollow] = useState(live);
  const following = useRef(live);
  following.current = follow;
  const shift = useRef(0);
  const atLast = useRef(true); // the next drawing is to show the last line
  const frame = useRef(0);

  const buffer = useMemo(
    () =>
      new LogBuffer(
        run,
        rank,
        attempt,
        (moved) => {
          shift.current += moved;
          // However fast lines come, they are drawn once a frame.
          if (!frame.current) {
            frame.current = requestAnimationFrame(() => {
              frame.current = 0;
              redraw((now) => now + 1);
            });
          }
        },
        sayError,
      ),
    [run, rank, attempt],
  );
  const { first, last, measure } = useWindow(scroller, buffer.lines.length, HEIGHT, 20);

  const { ready } = buffer;

  const toEnd = useCallback(async () => {
    if (!buffer.atEnd) await buffer.jump("end");
    atLast.current = true;
    setFollow(live);
    redraw((now) => now + 1);
  }, [buffer, live]);

  useEffect(() => {
    void buffer.jump("end");
    return () => {
      buffer.close();
      cancelAnimationFrame(frame.current);
      frame.current = 0;
    };
  }, [buffer]);

  useEffect(() => {
    if (!live || !follow || !stream || !ready) return;
    return stream.follow(rank, {
      from: () => buffer.end,
      lines: (lines, begin, end) => buffer.append(lines, begin, end),
      behind: (bytes) => buffer.skip(bytes),
    });
  }, [live, follow, stream, buffer, ready]);

  // What came between the last event and the end of the run.
  const wasLive = useRef(live);
  useEffect(() => {
    if (wasLive.current && !live) void buffer.newer();
    wasLive.current = live;
  }, [live]);

  useLayoutEffect(() => {
    const box = scroller.current;
    if (!box) return;
    const moved = shift.current;
    shift.current = 0;
    if (following.current || (atLast.current && buffer.ready)) {
      box.scrollTop = box.scrollHeight;
      atLast.current = !buffer.ready;
    } else if (moved) box.scrollTop += moved * HEIGHT;
    measure();
    more(box);
  });

  /* Asks for what comes next where one nears an end of the stretch that is here. */
  const more = (box: HTMLElement): void => {
    const above = box.scrollTop / HEIGHT;
    const below = (box.scrollHeight - box.scrollTop - box.clientHeight) / HEIGHT;
    if (above < NEAR && !buffer.atStart) void buffer.older();
    else if (below < NEAR && !buffer.atEnd && !following.current) void buffer.newer();
  };

  const scrolled = (): void => {
    const box = scroller.current;
    if (!box) return;
    const below = (box.scrollHeight - box.scrollTop - box.clientHeight) / HEIGHT;
    if (below > 2 && following.current) setFollow((following.current = false));
    if (below < 1 && live && buffer.atEnd && !following.current) setFollow((following.current = true));
    more(box);
  };

  const [hit, setHit] = useState<number | null>(null);
  const show = useCallback(
    async (offset: number) => {
      setFollow((following.current = false));
      setHit(offset);
      const there = buffer.lines.some((line) => line.offset === offset);
      if (!there) {
        await buffer.jump(offset);
        await buffer.older();
      }
      requestAnimationFrame(() =>
        requestAnimationFrame(() => {
          const box = scroller.current;
          const row = buffer.lines.findIndex((line) => line.offset >= offset);
          if (box && row >= 0) box.scrollTop = row * HEIGHT - box.clientHeight / 3;
        }),
      );
    },
    [buffer],
  );

  const search = useLogSearch(run, rank, attempt);
  const [typed, setTyped] = useState("");
  const [asked, setAsked] = useState("");
  const [regex, setRegex] = useState(false);
  const [place, setPlace] = useState(0);
  const mark = useMemo(() => pattern(asked, regex), [asked, regex]);
  const find = (): void => {
    if (typed === asked && search.state.matches.length) return step(1);
    setAsked(typed);
    setPlace(0);
    setHit(null);
    if (typed) void search.start(typed, regex, (offset) => void show(offset));
    else search.clear();
  };
  const step = (by: number): void => {
    const { matches } = search.state;
    if (!matches.length) return;
    const next = (place + by + matches.length) % matches.length;
    setPlace(next);
    void show(matches[next]!);
  };

  const [whole, setWhole] = useState<LogLine | null>(null);
  const saved = `${runPath(run)}/logs/${rank}/download${query({ attempt })}`;
  const shown = buffer.lines.slice(first, last);
  const partial = buffer.ready && (!buffer.atStart || !buffer.atEnd);
  const position = shown[Math.min(20, shown.length - 1)]?.offset ?? buffer.begin;
  return (
    <section class="pane" aria-label={`Log of ${title}`} data-rank={rank}>
      <header class="pane-head">
        <h2>{title}</h2>
        <span class="muted number">{buffer.ready ? size(buffer.size) : ""}</span>
        <form
          class="pane-search"
          onSubmit={(event) => {
            event.preventDefault();
            find();
          }}
        >
          <input
            type="search"
            placeholder="Find…"
            aria-label={`Find in the log of ${title}`}
            value={typed}
            onInput={(event) => setTyped(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && event.shiftKey) {
                event.preventDefault();
                step(-1);
              }
            }}
          />
          <label title="The text is a regular expression" class="regex">
            <input type="checkbox" checked={regex} onChange={() => setRegex(!regex)} aria-label="Regular expression" />
            <code>.*</code>
          </label>
        </form>
        {live && (
          <button type="button" class="small" aria-pressed={follow} onClick={() => (follow ? setFollow(false) : void toEnd())}>
            Follow
          </button>
        )}
        <Download path={saved} />
        {close && (
          <button type="button" class="small plain" aria-label={`Close the log of ${title}`} onClick={close}>
            ✕
          </button>
        )}
      </header>
      {asked && (
        <div class="pane-found">
          <span role="status">
            {search.state.matches.length
              ? `${place + 1} of ${search.state.busy ? "…" : search.state.matches.length}${search.state.full ? "+" : ""}`
              : search.state.busy
                ? ""
                : `nothing in ${size(search.state.scanned)}`}
          </span>
          {search.state.busy && (
            <>
              <span class="muted">searching, {size(search.state.scanned)} so far</span>
              <button type="button" class="small" onClick={search.stop}>
                Stop
              </button>
            </>
          )}
          {search.state.matches.length > 1 && (
            <>
              <button type="button" class="small" aria-label="Previous match" onClick={() => step(-1)}>
                ↑
              </button>
              <button type="button" class="small" aria-label="Next match" onClick={() => step(1)}>
                ↓
              </button>
            </>
          )}
        </div>
      )}
      <div class="pane-body">
        <div class="log" ref={scroller} tabIndex={0} onScroll={scrolled} role="region" aria-label={`Lines of ${title}`}>
          <div class="log-all" style={{ height: `${buffer.lines.length * HEIGHT}px` }}>
            <div class="log-shown" style={{ transform: `translateY(${first * HEIGHT}px)` }}>
              {shown.map((line) => (
                <Line key={line.offset} line={line} pattern={mark} times={times} hit={line.offset === hit} whole={setWhole} />
              ))}
            </div>
          </div>
          {buffer.ready && buffer.lines.length === 0 && (
            <p class="muted log-empty">{live ? "Nothing was printed yet." : "Nothing was printed."}</p>
          )}
        </div>
        {partial && (
          <input
            type="range"
            class="rail"
            aria-label={`Position in the log of ${title}, in bytes`}
            min={0}
            max={buffer.size}
            step={1}
            value={follow || buffer.atEnd && last >= buffer.lines.length ? buffer.size : position}
            aria-valuetext={`${size(position)} of ${size(buffer.size)}`}
            onChange={(event) => {
              const at = Number(event.currentTarget.value);
              if (at >= buffer.size * 0.999) void toEnd();
              else {
                setFollow((following.current = false));
                void buffer.jump(at).then(() => {
                  if (scroller.current) scroller.current.scrollTop = 0;
                });
              }
            }}
          />
        )}
      </div>
      <footer class="pane-foot muted">
        {partial && !follow ? `${size(position)} of ${size(buffer.size)}` : ""}
        {!follow && !buffer.atEnd && buffer.ready && (
          <button type="button" class="small plain" onClick={() => void toEnd()}>
            To the end ↓
          </button>
        )}
      </footer>
      {whole && (
        <Dialog title="The whole line" close={() => setWhole(null)}>
          <pre class="whole-line" tabIndex={0}>
            {whole.text}
          </pre>
          {!whole.whole && <p class="muted">The line goes on; download the log to have all of it.</p>}
          <div class="actions">
            <button type="button" onClick={() => setWhole(null)}>
              Close
            </button>
          </div>
        </Dialog>
      )}
    </section>
  );
}
