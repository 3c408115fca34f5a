/* What narrows the table of runs down. All of it is in the address, so that it can be shared. */
import { useEffect, useRef, useState } from "preact/hooks";

import { params, setParams } from "../lib/router.ts";
import { StateShape } from "../parts/state.tsx";
import { type Facets, STATES } from "../types.ts";

const LISTS = ["state", "tag", "target", "machine_type"] as const;
const WORDS = ["search", "owner", "since", "until", "sort", "order"] as const;
const TYPING = 60; // ms

const SINCE: readonly [string, string][] = [
  ["", "any time"],
  ["1h", "the last hour"],
  ["24h", "the last 24 hours"],
  ["7d", "the last 7 days"],
  ["30d", "the last 30 days"],
];
const UNIT: Record<string, number> = { h: 3600, d: 86400 };

/** What is asked of the API; "since=24h" of the address counts from the minute that it is now. */
export function filters(): Record<string, string | readonly string[]> {
  const values = params.value;
  const found: Record<string, string | readonly string[]> = {};
  for (const name of LISTS) if (values.has(name)) found[name] = values.getAll(name);
  for (const name of WORDS) if (values.get(name)) found[name] = values.get(name)!;
  for (const name of ["since", "until"]) {
    const ago = /^(\d+)([hd])$/.exec(String(found[name] ?? ""));
    if (ago) {
      const minute = Math.floor(Date.now() / 60000) * 60;
      found[name] = String(minute - Number(ago[1]) * UNIT[ago[2]!]!);
    }
  }
  return found;
}

export const filtered = (): boolean =>
  [...LISTS, "search", "owner", "since", "until"].some((name) => params.value.has(name));

export const unfilter = (): void =>
  setParams(Object.fromEntries([...LISTS, "search", "owner", "since", "until"].map((name) => [name, null])));

export function Search() {
  const inAddress = params.value.get("search") ?? "";
  const [typed, setTyped] = useState(inAddress);
  const timer = useRef(0);
  const sent = useRef(inAddress);
  useEffect(() => {
    if (inAddress !== sent.current) {
      sent.current = inAddress;
      setTyped(inAddress);
    }
  }, [inAddress]);
  useEffect(() => () => window.clearTimeout(timer.current), []);
  const type = (text: string): void => {
    setTyped(text);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => {
      sent.current = text;
      setParams({ search: text || null });
    }, TYPING);
  };
  return (
    <input
      type="search"
      id="search"
      class="search"
      placeholder="Search names, commands, tags…  ( / )"
      aria-label="Search runs"
      value={typed}
      onInput={(event) => type(event.currentTarget.value)}
    />
  );
}

function Choice({ name, title, counts }: { name: string; title: string; counts: Record<string, number> }) {
  const chosen = params.value.getAll(name);
  const values = [...new Set([...Object.keys(counts), ...chosen])].sort();
  if (!values.length) return null;
  const toggle = (value: string): void =>
    setParams({ [name]: chosen.includes(value) ? chosen.filter((each) => each !== value) : [...chosen, value] });
  return (
    <details class="menu">
      <summary>
        {title}
        {chosen.length > 0 && <span class="count">{chosen.length}</span>}
      </summary>
      <fieldset class="menu-body">
        <legend class="unseen">{title}</legend>
        {values.map((value) => (
          <label key={value}>
            <input type="checkbox" checked={chosen.includes(value)} onChange={() => toggle(value)} />
            <span>{value}</span>
            <span class="muted number">{counts[value] ?? 0}</span>
          </label>
        ))}
      </fieldset>
    </details>
  );
}

export function Filters({ facets }: { facets: Facets | null }) {
  const chosen = params.value.getAll("state");
  const since = params.value.get("since") ?? "";
  const toggle = (state: string): void =>
    setParams({ state: chosen.includes(state) ? chosen.filter((each) => each !== state) : [...chosen, state] });
  return (
    <div class="filters" role="group" aria-label="Filters">
      <div class="chips" role="group" aria-label="States">
        {STATES.filter((state) => (facets?.states[state] ?? 0) > 0 || chosen.includes(state)).map((state) => (
          <button
            type="button"
            key={state}
            class={`chip state-${state}`}
            aria-pressed={chosen.includes(state)}
            onClick={() => toggle(state)}
          >
            <StateShape state={state} />
            {state} <span class="number">{facets?.states[state]?.toLocaleString("en") ?? 0}</span>
          </button>
        ))}
      </div>
      <Choice name="tag" title="Tags" counts={facets?.tags ?? {}} />
      <Choice name="target" title="Target" counts={facets?.targets ?? {}} />
      <Choice name="machine_type" title="Machine type" counts={facets?.machine_types ?? {}} />
      <label class="inline">
        <span class="unseen">Created in</span>
        <select
          value={since}
          aria-label="Created in"
          onChange={(event) => setParams({ since: event.currentTarget.value || null })}
        >
          {SINCE.some(([value]) => value === since) || <option value={since}>since {since}</option>}
          {SINCE.map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
        </select>
      </label>
      {filtered() && (
        <button type="button" class="plain" onClick={unfilter}>
          Clear filters
        </button>
      )}
    </div>
  );
}
