/* The table of runs: as many as there are, only those in sight are in the page. */
import { signal } from "@preact/signals";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { change, runPath } from "../lib/api.ts";
import { below } from "../lib/base.ts";
import { count } from "../lib/format.ts";
import { useKeys } from "../lib/keys.ts";
import { go, params, runLink, setParams } from "../lib/router.ts";
import { type RunTable, useRunTable } from "../lib/runtable.ts";
import { say, sayError } from "../lib/say.ts";
import { mayChange } from "../lib/session.ts";
import { recall, remember } from "../lib/storage.ts";
import { Empty, ErrorCard, useTitle, Waiting } from "../parts/bits.tsx";
import { Confirm } from "../parts/dialog.tsx";
import { useWindow } from "../parts/virtual.ts";
import { FINAL, type Summary } from "../types.ts";
import { type Column, COLUMNS } from "./columns.tsx";
import { filtered, Filters, filters, Search, unfilter } from "./filters.tsx";

const ROW = 36; // px, as in the style sheet
const MOST_COMPARED = 8;

// What is selected stays so while one looks at a run and comes back.
const selected = signal<ReadonlyMap<string, Summary>>(new Map());

function useColumns(): [readonly Column[], Set<string>, (name: string) => void] {
  const [names, setNames] = useState(() => {
    const kept = recall("columns");
    const shown = COLUMNS.filter((column) => column.shown).map((column) => column.name);
    return new Set(kept ? kept.split(",") : shown);
  });
  const toggle = (name: string): void => {
    const next = new Set(names);
    if (!next.delete(name)) next.add(name);
    setNames(next);
    remember("columns", [...next].join(","));
  };
  return [COLUMNS.filter((column) => !column.optional || names.has(column.name)), names, toggle];
}

function Columns({ shown, toggle }: { shown: Set<string>; toggle: (name: string) => void }) {
  return (
    <details class="menu right">
      <summary>Columns</summary>
      <fieldset class="menu-body">
        <legend class="unseen">Columns</legend>
        {COLUMNS.filter((column) => column.optional).map((column) => (
          <label key={column.name}>
            <input type="checkbox" checked={shown.has(column.name)} onChange={() => toggle(column.name)} />
            <span>{column.title}</span>
          </label>
        ))}
      </fieldset>
    </details>
  );
}

type Asked = "stop" | "delete" | null;

/* Does something with each of the selected runs, and says once how it went. */
async function each(runs: readonly Summary[], done: string, act: (run: Summary) => Promise<unknown>): Promise<void> {
  const results = await Promise.allSettled(runs.map(act));
  const failed = results.find((result) => result.status === "rejected");
  const well = results.filter((result) => result.status === "fulfilled").length;
  if (well) say(`${count(well, "run")} ${done}`);
  if (failed) sayError(failed.reason);
}

function Selection({ reload }: { reload: () => void }) {
  const runs = [...selected.value.values()];
  const [asked, setAsked] = useState<Asked>(null);
  if (!runs.length) return null;
  const on = runs.filter((run) => !FINAL.has(run.state));
  const ended = runs.filter((run) => FINAL.has(run.state));
  const compare = below(`/compare?${runs.map((run) => `run=${encodeURIComponent(run.id)}`).join("&")}`);
  const act = async (what: Exclude<Asked, null>): Promise<void> => {
    if (what === "stop") await each(on, "asked to stop", (run) => change("POST", `${runPath(run.id)}/stop`, { kill: false }));
    else await each(ended, "deleted", (run) => change("DELETE", runPath(run.id)));
    selected.value = new Map();
    reload();
  };
  return (
    <div class="selection" role="region" aria-label="Selected runs">
      <strong>{count(runs.length, "run")} selected</strong>
      {runs.length > 1 && runs.length <= MOST_COMPARED ? (
        <a class="button primary" href={compare}>
          Compare
        </a>
      ) : (
        <span class="muted">{runs.length > MOST_COMPARED ? "compares 8 at most" : "select more to compare"}</span>
      )}
      {mayChange.value && on.length > 0 && (
        <button type="button" onClick={() => setAsked("stop")}>
          Stop {on.length}
        </button>
      )}
      {mayChange.value && ended.length > 0 && (
        <button type="button" onClick={() => setAsked("delete")}>
          Delete {ended.length}
        </button>
      )}
      <button type="button" class="plain" onClick={() => (selected.value = new Map())}>
        Clear
      </button>
      {asked && (
        <Confirm
          title={asked === "stop" ? `Stop ${count(on.length, "run")}?` : `Delete ${count(ended.length, "run")}?`}
          label={asked === "stop" ? "Stop" : "Delete"}
          act={() => void act(asked)}
          close={() => setAsked(null)}
        >
          <p>
            {asked === "stop"
              ? "Their ranks get SIGTERM, then SIGKILL."
              : "Their logs, metrics and artifacts are deleted too. This cannot be undone."}
          </p>
        </Confirm>
      )}
    </div>
  );
}

function toggleSelected(run: Summary): void {
  const next = new Map(selected.value);
  if (!next.delete(run.id)) next.set(run.id, run);
  selected.value = next;
}

function Head({ columns }: { columns: readonly Column[] }) {
  const sort = params.value.get("sort") ?? "created";
  const ascending = params.value.get("order") === "asc";
  const by = (name: string): void => {
    const order = sort === name ? (ascending ? null : "asc") : name === "name" ? "asc" : null;
    setParams({ sort: name === "created" ? null : name, order });
  };
  return (
    <div class="row head" role="row" aria-rowindex={1}>
      <div role="columnheader" class="cell pick">
        <span class="unseen">Select</span>
      </div>
      {columns.map((column) => {
        const sorted = column.sort === sort;
        return (
          <div
            key={column.name}
            role="columnheader"
            class={`cell${column.narrow ? "" : " wide"}`}
            aria-sort={column.sort && sorted ? (ascending ? "ascending" : "descending") : undefined}
          >
            {column.sort ? (
              <button type="button" class="sort" onClick={() => by(column.sort!)}>
                {column.title}
                <span aria-hidden="true">{sorted ? (ascending ? " ▲" : " ▼") : ""}</span>
              </button>
            ) : (
              column.title
            )}
          </div>
        );
      })}
    </div>
  );
}

function Row({
  run,
  row,
  columns,
  current,
}: {
  run: Summary | null;
  row: number;
  columns: readonly Column[];
  current: boolean;
}) {
  const chosen = run !== null && selected.value.has(run.id);
  const name = run ? (run.name ?? run.id) : "";
  return (
    <div
      class={`row${current ? " current" : ""}${chosen ? " chosen" : ""}`}
      role="row"
      aria-rowindex={row + 2}
      data-run={run?.id}
      style={{ transform: `translateY(${row * ROW}px)` }}
      onClick={(event) => {
        if (run && !(event.target as Element).closest("a, input, label")) go(runLink(run.id));
      }}
    >
      <div class="cell pick" role="cell">
        {run && (
          <label>
            <input
              type="checkbox"
              aria-label={`Select ${name}`}
              tabIndex={-1}
              checked={chosen}
              onChange={() => toggleSelected(run)}
            />
          </label>
        )}
      </div>
      {columns.map((column) => (
        <div key={column.name} role="cell" class={`cell c-${column.name}${column.narrow ? "" : " wide"}`}>
          {run ? column.cell(run) : <span class="ghost" />}
        </div>
      ))}
    </div>
  );
}

function Rows({ table, columns }: { table: RunTable; columns: readonly Column[] }) {
  const scroller = useRef<HTMLDivElement>(null);
  const { first, last } = useWindow(scroller, table.total, ROW);
  const [current, setCurrent] = useState(-1);
  const place = useRef(-1); // the same at once, however fast one types
  useEffect(() => table.see(first, last), [first, last, table.stale]);
  // Another search begins at its top.
  const search = params.value.toString();
  useEffect(() => {
    if (scroller.current) scroller.current.scrollTop = 0;
    setCurrent((place.current = -1));
  }, [search]);
  const move = useCallback(
    (to: number) => {
      const next = Math.max(0, Math.min(table.total - 1, to));
      setCurrent((place.current = next));
      const box = scroller.current;
      if (!box) return;
      const head = ROW;
      if (next * ROW < box.scrollTop) box.scrollTop = next * ROW;
      else if ((next + 1) * ROW + head > box.scrollTop + box.clientHeight) {
        box.scrollTop = (next + 1) * ROW + head - box.clientHeight;
      }
    },
    [table.total],
  );
  const open = (): void => {
    const run = table.at(place.current);
    if (run) go(runLink(run.id));
  };
  const pick = (): void => {
    const run = table.at(place.current);
    if (run) toggleSelected(run);
  };
  const page = (): number => Math.max(1, Math.floor((scroller.current?.clientHeight ?? 400) / ROW) - 2);
  useKeys([
    { keys: "j", what: "next run", act: () => move(place.current + 1) },
    { keys: "k", what: "previous run", act: () => move(place.current - 1) },
    { keys: "ArrowDown", what: "", act: () => move(place.current + 1) },
    { keys: "ArrowUp", what: "", act: () => move(place.current - 1) },
    { keys: "PageDown", what: "", act: () => move(place.current + page()) },
    { keys: "PageUp", what: "", act: () => move(place.current - page()) },
    { keys: "Home", what: "", act: () => move(0) },
    { keys: "End", what: "", act: () => move(table.total - 1) },
    { keys: "Enter", what: "open the run", act: open },
    { keys: "x", what: "select the run", act: pick },
  ]);
  const rows: number[] = [];
  for (let row = first; row < last; row += 1) rows.push(row);
  const shape = `2.4rem ${columns.map((column) => column.width).join(" ")}`;
  const narrow = `2.4rem ${columns.map((column) => column.narrow ?? "").join(" ")}`;
  const now = table.at(current);
  return (
    <>
      <div
        ref={scroller}
        class={`table-box${table.stale ? " stale" : ""}`}
        tabIndex={0}
        role="table"
        aria-label="Runs"
        aria-describedby="table-keys"
        aria-rowcount={table.total + 1}
        aria-busy={table.stale}
        style={{ "--columns": shape, "--columns-narrow": narrow }}
      >
        <div role="rowgroup" class="table-head">
          <Head columns={columns} />
        </div>
        <div role="rowgroup" class="table-rows" style={{ height: `${table.total * ROW}px` }}>
          {rows.map((row) => {
            const run = table.at(row);
            return <Row key={run?.id ?? row} run={run} row={row} columns={columns} current={row === current} />;
          })}
        </div>
      </div>
      <p class="unseen" id="table-keys">
        Arrow keys go through the rows, Enter opens a run, x selects it.
      </p>
      <p class="unseen" role="status">
        {now ? `${now.name ?? now.id}, ${now.state}` : ""}
      </p>
    </>
  );
}

export function Runs() {
  useTitle("Runs");
  const table = useRunTable(filters());
  const [columns, shown, toggle] = useColumns();
  useKeys([
    { keys: "/", what: "search", act: () => document.getElementById("search")?.focus() },
    {
      keys: "c",
      what: "compare what is selected",
      act: () => {
        const ids = [...selected.value.keys()];
        if (ids.length > 1) go(below(`/compare?${ids.map((id) => `run=${encodeURIComponent(id)}`).join("&")}`));
      },
    },
  ]);
  // Said when one has searched, not whenever a run comes.
  const [found, setFound] = useState("");
  const search = params.value.toString();
  useEffect(() => {
    if (table.ready && !table.stale) setFound(filtered() ? `${count(table.total, "run")} found` : "");
  }, [search, table.stale]);
  const newcomer = table.ready && !table.stale && table.total === 0 && !filtered();
  return (
    <div class="page runs-page">
      <div class="page-head">
        <h1>Runs</h1>
        <p class="muted total">{table.ready ? count(table.total, "run") : ""}</p>
        <p class="unseen" role="status">
          {found}
        </p>
        <Search />
        <Columns shown={shown} toggle={toggle} />
      </div>
      {!newcomer && <Filters facets={table.facets} />}
      <Selection reload={table.reload} />
      {table.error && <ErrorCard error={table.error} again={table.reload} />}
      {!table.ready && !table.error && <Waiting what="Loading runs…" />}
      {newcomer && (
        <Empty title="No runs yet" command="shanty run -n 2 train.py">
          <p>Start one in a terminal, and it shows up here at once:</p>
        </Empty>
      )}
      {newcomer && mayChange.value && (
        <p class="empty-more">
          Or fill in <a href={below("/new")}>a form</a>, which shows the command that it makes.
        </p>
      )}
      {table.ready && table.total === 0 && filtered() && (
        <Empty title="No run is like that">
          <button type="button" onClick={unfilter}>
            Clear filters
          </button>
        </Empty>
      )}
      {table.total > 0 && <Rows table={table} columns={columns} />}
    </div>
  );
}
