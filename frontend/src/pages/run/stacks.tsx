/* Where every rank stands, at a click. Ranks that stand at one place are shown once. */
import { useState } from "preact/hooks";

import { type ApiError, asApiError, change, runPath } from "../../lib/api.ts";
import { count, ranges, when } from "../../lib/format.ts";
import { Copy, Empty, ErrorCard, Waiting } from "../../parts/bits.tsx";

interface Answer {
  ranks: Record<string, string>;
  missing: number[];
}

export function Stacks({ id, on }: { id: string; on: boolean }) {
  const [answer, setAnswer] = useState<(Answer & { at: number }) | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const ask = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      setAnswer({ ...(await change<Answer>("POST", `${runPath(id)}/stacks`)), at: Date.now() / 1000 });
    } catch (reason) {
      setError(asApiError(reason));
    }
    setBusy(false);
  };
  const same = new Map<string, number[]>();
  for (const [rank, text] of Object.entries(answer?.ranks ?? {})) {
    same.set(text, [...(same.get(text) ?? []), Number(rank)]);
  }
  return (
    <div class="stack">
      <div class="toolbar">
        <button type="button" class="primary" disabled={!on || busy} onClick={() => void ask()}>
          {busy ? "Asking the ranks…" : answer ? "Take the stacks again" : "Take the stacks of all ranks"}
        </button>
        {answer && (
          <span class="muted" role="status">
            {count(Object.keys(answer.ranks).length, "rank")} at {when(answer.at)}
            {answer.missing.length > 0 && `; no answer from ${ranges(answer.missing)}`}
          </span>
        )}
      </div>
      {error && <ErrorCard error={error} />}
      {!on && <Empty title="The run has ended: its ranks stand nowhere" />}
      {busy && !answer && <Waiting what="Asking the ranks…" />}
      {[...same].map(([text, ranks]) => (
        <section class="card" key={ranks[0]}>
          <div class="card-head">
            <h2>
              {ranks.length === 1 ? "rank" : "ranks"} {ranges(ranks)}
            </h2>
            <Copy text={text} />
          </div>
          <pre class="stack-text" tabIndex={0} aria-label={`Stack of ${ranges(ranks)}`}>
            {text}
          </pre>
        </section>
      ))}
    </div>
  );
}
