/* The name of a run, how it stands, and what can be done with it. */
import { useState } from "preact/hooks";

import { change, runPath } from "../../lib/api.ts";
import { below } from "../../lib/base.ts";
import { took } from "../../lib/format.ts";
import { go, runLink } from "../../lib/router.ts";
import { say, sayError } from "../../lib/say.ts";
import { mayChange } from "../../lib/session.ts";
import { Copy } from "../../parts/bits.tsx";
import { Confirm } from "../../parts/dialog.tsx";
import { StateBadge } from "../../parts/state.tsx";
import { type Detail, FINAL } from "../../types.ts";

type Asked = "stop" | "kill" | "delete" | null;

const QUESTIONS: Record<Exclude<Asked, null>, { title: string; text: string; label: string }> = {
  stop: {
    title: "Stop this run?",
    text: "Its ranks get SIGTERM, and SIGKILL if they do not end by then.",
    label: "Stop",
  },
  kill: {
    title: "Kill this run?",
    text: "Its ranks get SIGKILL at once: they cannot save anything.",
    label: "Kill",
  },
  delete: {
    title: "Delete this run?",
    text: "Its logs, metrics and artifacts are deleted too. This cannot be undone.",
    label: "Delete",
  },
};

function TagList({ run, reload }: { run: Detail; reload: () => void }) {
  const [typing, setTyping] = useState(false);
  const set = async (add: string[], remove: string[]): Promise<void> => {
    try {
      await change("POST", `${runPath(run.id)}/tags`, { add, remove });
      reload();
    } catch (error) {
      sayError(error);
    }
  };
  return (
    <span class="tag-list">
      {run.tags.map((tag) => (
        <span class="tag" key={tag}>
          {tag}
          {mayChange.value && (
            <button type="button" class="tag-remove" aria-label={`Remove tag ${tag}`} onClick={() => void set([], [tag])}>
              ✕
            </button>
          )}
        </span>
      ))}
      {mayChange.value &&
        (typing ? (
          <form
            onSubmit={(event) => {
              event.preventDefault();
              const tag = new FormData(event.currentTarget).get("tag");
              setTyping(false);
              if (typeof tag === "string" && tag.trim()) void set([tag.trim()], []);
            }}
          >
            <input name="tag" class="tag-input" aria-label="New tag" ref={(input) => input?.focus()} onBlur={() => setTyping(false)} />
          </form>
        ) : (
          <button type="button" class="small plain" onClick={() => setTyping(true)}>
            + tag
          </button>
        ))}
    </span>
  );
}

export function Head({ run, reload }: { run: Detail; reload: () => void }) {
  const [asked, setAsked] = useState<Asked>(null);
  const [busy, setBusy] = useState(false);
  const on = !FINAL.has(run.state);
  const doing = async (act: () => Promise<void>): Promise<void> => {
    setBusy(true);
    try {
      await act();
    } catch (error) {
      sayError(error);
    }
    setBusy(false);
  };
  const again = (): Promise<void> =>
    doing(async () => {
      const { id } = await change<{ id: string }>("POST", `${runPath(run.id)}/rerun`, { changes: {} });
      say(`Started as ${id}`);
      go(runLink(id));
    });
  const act = (what: Exclude<Asked, null>): Promise<void> =>
    doing(async () => {
      if (what === "delete") {
        await change("DELETE", runPath(run.id));
        say("The run is deleted");
        go(below("/"));
        return;
      }
      await change("POST", `${runPath(run.id)}/stop`, { kill: what === "kill" });
      say("The run was asked to end");
      reload();
    });
  const seconds = on ? (run.started ? Date.now() / 1000 - run.started : null) : run.took;
  return (
    <div class="run-head">
      <div class="run-title">
        <p class="crumbs">
          <a href={below("/")}>Runs</a> <span aria-hidden="true">/</span>
        </p>
        <h1>{run.name ?? run.id}</h1>
        <div class="run-under">
          <StateBadge run={run} />
          {seconds !== null && <span class="muted number">{took(seconds)}</span>}
          {run.name && <code class="muted">{run.id}</code>}
          <TagList run={run} reload={reload} />
        </div>
      </div>
      <div class="actions">
        {mayChange.value && (
          <>
            {on && (
              <>
                <button type="button" class="danger" disabled={busy} onClick={() => setAsked("stop")}>
                  Stop
                </button>
                <button type="button" disabled={busy} onClick={() => setAsked("kill")}>
                  Kill
                </button>
              </>
            )}
            <button type="button" disabled={busy} onClick={() => void again()}>
              Run again
            </button>
            <a class="button" href={below(`/new?from=${encodeURIComponent(run.id)}`)}>
              Change and run
            </a>
            {!on && (
              <button type="button" disabled={busy} onClick={() => setAsked("delete")}>
                Delete
              </button>
            )}
          </>
        )}
        <Copy text={window.location.origin + runLink(run.id)} label="Copy link" />
      </div>
      {asked && (
        <Confirm {...QUESTIONS[asked]} act={() => void act(asked)} close={() => setAsked(null)}>
          <p>{QUESTIONS[asked].text}</p>
        </Confirm>
      )}
    </div>
  );
}
