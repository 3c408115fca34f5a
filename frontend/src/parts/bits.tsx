/* Small parts that all pages use. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { type ApiError, download } from "../lib/api.ts";
import { exactly, when } from "../lib/format.ts";
import { sayError } from "../lib/say.ts";

export function Copy({ text, label }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  const timer = useRef(0);
  useEffect(() => () => window.clearTimeout(timer.current), []);
  const copy = async (): Promise<void> => {
    try {
      await write(text);
      setDone(true);
      timer.current = window.setTimeout(() => setDone(false), 2000);
    } catch (error) {
      sayError(error);
    }
  };
  return (
    <button type="button" class={label ? undefined : "small"} onClick={() => void copy()}>
      {done ? "Copied" : (label ?? "Copy")}
    </button>
  );
}

/* The clipboard is there on https and on this machine only; elsewhere by a selection. */
async function write(text: string): Promise<void> {
  if (window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function Command({ text, label }: { text: string; label?: string }) {
  return (
    <div class="command">
      <pre tabIndex={0} aria-label={label ?? "Command"}>
        <code>{text}</code>
      </pre>
      <Copy text={text} />
    </div>
  );
}

/** Saves what is at an address of the API; with a `name`, as a small arrow. */
export function Download({ path, name }: { path: string; name?: string }) {
  return (
    <a
      class={name ? undefined : "button small"}
      href="#download"
      aria-label={name && `Download ${name}`}
      onClick={(event) => {
        event.preventDefault();
        void download(path).catch(sayError);
      }}
    >
      {name ? "↓" : "Download"}
    </a>
  );
}

export function Time({ at }: { at: number | null | undefined }) {
  if (at === null || at === undefined) return <span>–</span>;
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={exactly(at)}>
      {when(at)}
    </time>
  );
}

export function Tags({ tags }: { tags: readonly string[] }) {
  return (
    <>
      {tags.map((tag) => (
        <span class="tag" key={tag}>
          {tag}
        </span>
      ))}
    </>
  );
}

export function ErrorCard({ error, again }: { error: ApiError; again?: () => void }) {
  return (
    <div class="card error-card" role="alert">
      <h2>{error.what}</h2>
      {error.why && <p>{error.why}</p>}
      {error.fix && (
        <p class="fix">
          <strong>Fix:</strong> {error.fix}
        </p>
      )}
      {again && (
        <button type="button" onClick={again}>
          Try again
        </button>
      )}
    </div>
  );
}

/** Where there is nothing yet: what it would be, and the command that makes it. */
export function Empty({
  title,
  command,
  children,
}: {
  title: string;
  command?: string;
  children?: ComponentChildren;
}) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
      {command && <Command text={command} />}
    </div>
  );
}

export function Waiting({ what }: { what: string }) {
  return (
    <p class="waiting" role="status">
      {what}
    </p>
  );
}

export function Bar({ part, label }: { part: number; label: string }) {
  const percent = Math.max(0, Math.min(100, part * 100));
  return (
    <div
      class="bar"
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.round(percent)}
    >
      <div class="bar-fill" style={{ width: `${percent}%` }} />
    </div>
  );
}

/** A table of names and values. */
export function Facts({ rows }: { rows: readonly (readonly [string, ComponentChildren])[] }) {
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** The title of the browser's tab. */
export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title ? `${title} · shanty` : "shanty";
  }, [title]);
}
