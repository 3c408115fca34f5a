/* Logs of up to four ranks side by side. */
import { useState } from "preact/hooks";

import { params, setParams } from "../../lib/router.ts";
import { recall, remember } from "../../lib/storage.ts";
import { type Detail, FINAL } from "../../types.ts";
import { LogPane } from "./logpane.tsx";

const MOST = 4;
const OTHERS = ["launcher", "agent"];

function title(run: Detail, rank: string): string {
  if (OTHERS.includes(rank)) return rank;
  const host = run.ranks.find((each) => String(each.rank) === rank)?.host;
  return host && run.hosts.length > 1 ? `rank ${rank} · ${host}` : `rank ${rank}`;
}

function initial(run: Detail): string[] {
  const first = run.ranks.find((rank) => rank.first_failure) ?? run.ranks[0];
  return [first ? String(first.rank) : "launcher"];
}

/** The log that one most likely wants: of the rank that failed first, else of the first rank. */
export function FirstLog({ run }: { run: Detail }) {
  const rank = initial(run)[0]!;
  return (
    <LogPane
      key={rank}
      run={run.id}
      rank={rank}
      title={title(run, rank)}
      attempt={null}
      live={!FINAL.has(run.state)}
      times={false}
      close={null}
    />
  );
}

export function Logs({ run }: { run: Detail }) {
  const asked = (params.value.get("ranks") ?? "").split(",").filter((rank) => /^(\d+|launcher|agent)$/.test(rank));
  const ranks = (asked.length ? [...new Set(asked)] : initial(run)).slice(0, MOST);
  const [times, setTimes] = useState(recall("times") === "yes");
  const latest = run.attempt;
  const attempt = Number(params.value.get("attempt")) || latest;
  const show = (next: readonly string[]): void => setParams({ ranks: next.join(",") });
  const others = [...run.ranks.map((rank) => String(rank.rank)), ...OTHERS].filter((rank) => !ranks.includes(rank));
  const live = !FINAL.has(run.state) && attempt === latest;
  return (
    <div class="logs">
      <div class="toolbar">
        {ranks.length < MOST && (
          <label class="inline">
            Add beside
            <select
              value=""
              onChange={(event) => {
                const rank = event.currentTarget.value;
                event.currentTarget.value = "";
                if (rank) show([...ranks, rank]);
              }}
            >
              <option value="">a rank…</option>
              {others.map((rank) => (
                <option key={rank} value={rank}>
                  {title(run, rank)}
                </option>
              ))}
            </select>
          </label>
        )}
        {run.attempts.length > 1 && (
          <label class="inline">
            Attempt
            <select
              value={attempt}
              onChange={(event) =>
                setParams({ attempt: Number(event.currentTarget.value) === latest ? null : event.currentTarget.value })
              }
            >
              {run.attempts.map((number) => (
                <option key={number} value={number}>
                  {number}
                </option>
              ))}
            </select>
          </label>
        )}
        <label class="inline">
          <input
            type="checkbox"
            checked={times}
            onChange={() => {
              remember("times", times ? null : "yes");
              setTimes(!times);
            }}
          />
          Times
        </label>
      </div>
      <div class={`panes panes-${ranks.length}`}>
        {ranks.map((rank) => (
          <LogPane
            key={`${rank}/${attempt}`}
            run={run.id}
            rank={rank}
            title={title(run, rank)}
            attempt={attempt === latest ? null : attempt}
            live={live}
            times={times}
            close={ranks.length > 1 ? () => show(ranks.filter((each) => each !== rank)) : null}
          />
        ))}
      </div>
    </div>
  );
}
