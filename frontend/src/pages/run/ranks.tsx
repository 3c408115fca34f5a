/* The ranks of a run by host, as a grid. One click shows a rank's log. */
import { count, size } from "../../lib/format.ts";
import { setParams } from "../../lib/router.ts";
import { exitWords, rankMark } from "../../parts/state.tsx";
import type { Detail, RankState } from "../../types.ts";

const WORDS: Record<RankState["state"], string> = {
  waiting: "waiting",
  up: "up",
  joined: "joined",
  ended: "ended",
  failed: "failed",
};

function says(rank: RankState): string {
  const parts = [`rank ${rank.rank}`, WORDS[rank.state] ?? rank.state];
  if (rank.first_failure) parts.push("the first that failed");
  if (rank.exit_code) parts.push(exitWords(rank.exit_code));
  if (rank.log_size) parts.push(`log of ${size(rank.log_size)}`);
  return parts.join(", ");
}

function Cell({ rank }: { rank: RankState }) {
  const words = says(rank);
  return (
    <button
      type="button"
      class={`rank rank-${rank.state}${rank.first_failure ? " first-failure" : ""}`}
      title={words}
      aria-label={`${words}; show its log`}
      onClick={() => setParams({ tab: "logs", ranks: String(rank.rank) }, "push")}
    >
      <span aria-hidden="true" class="rank-mark">
        {rankMark(rank)}
      </span>
      <span class="number">{rank.rank}</span>
    </button>
  );
}

export function Ranks({ run }: { run: Detail }) {
  const byHost = new Map<string, RankState[]>();
  for (const host of run.hosts) byHost.set(host.name, []);
  for (const rank of run.ranks) {
    const host = rank.host ?? "not placed yet";
    byHost.set(host, [...(byHost.get(host) ?? []), rank]);
  }
  const states = new Map<string, number>();
  for (const rank of run.ranks) states.set(rank.state, (states.get(rank.state) ?? 0) + 1);
  const tally = [...states].map(([state, number]) => `${number} ${state}`).join(", ");
  if (!run.ranks.length) return null;
  return (
    <section class="card ranks" aria-label="Ranks">
      <h2>
        Ranks <span class="muted small-text">{tally}</span>
      </h2>
      {[...byHost].map(([host, ranks]) => {
        const of = run.hosts.find((each) => each.name === host);
        const failed = ranks.some((rank) => rank.first_failure);
        return (
          <div class="rank-host" key={host}>
            <h3>
              {host}
              {of?.address && of.address !== host && <span class="muted small-text"> {of.address}</span>}
              <span class="muted small-text"> {count(ranks.length, "rank")}</span>
              {failed && <span class="first-word">first failure here</span>}
            </h3>
            <div class="rank-grid">
              {ranks.map((rank) => (
                <Cell key={rank.rank} rank={rank} />
              ))}
            </div>
          </div>
        );
      })}
      <p class="legend muted" aria-hidden="true">
        · waiting &nbsp; ↑ up &nbsp; ▸ joined &nbsp; ✓ ended &nbsp; ✕ failed
      </p>
    </section>
  );
}
