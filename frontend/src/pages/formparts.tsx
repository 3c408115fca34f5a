/* Parts of the form of a new run: a field with what is wrong with it, and lists of things. */
import type { ComponentChildren } from "preact";
import { cloneElement, type VNode } from "preact";

import type { FormPreview } from "../types.ts";

export type Problem = FormPreview["problems"][number];

export function Field({
  name,
  label,
  hint,
  problems,
  children,
}: {
  name: string;
  label: string;
  hint?: ComponentChildren;
  problems: readonly Problem[];
  children: VNode<Record<string, unknown>>;
}) {
  const id = `field-${name}`;
  const mine = problems.filter((problem) => problem.field === name || problem.field.startsWith(`${name}.`));
  const described = [hint ? `${id}-hint` : "", mine.length ? `${id}-problem` : ""].filter(Boolean).join(" ");
  return (
    <div class={`field${mine.length ? " has-problem" : ""}`}>
      <label for={id}>{label}</label>
      {cloneElement(children, {
        id,
        name,
        "aria-describedby": described || undefined,
        "aria-invalid": mine.length > 0,
      })}
      {hint && (
        <p class="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
      {mine.length > 0 && (
        <div class="problem" id={`${id}-problem`}>
          {mine.map((problem, index) => (
            <p key={index}>
              {problem.what}
              {problem.fix && <span class="fix">; {problem.fix}</span>}
            </p>
          ))}
        </div>
      )}
    </div>
  );
}

/** Rows that one adds and takes away: mounts, variables. */
export function List<T>({
  title,
  items,
  fresh,
  change,
  row,
  problems,
  hint,
}: {
  title: string;
  items: readonly T[];
  fresh: () => T;
  change: (items: T[]) => void;
  row: (item: T, set: (item: T) => void, index: number) => ComponentChildren;
  problems: readonly Problem[];
  hint?: string;
}) {
  return (
    <fieldset class="list">
      <legend>{title}</legend>
      {hint && <p class="hint">{hint}</p>}
      {items.map((item, index) => (
        <div class="list-row" key={index}>
          {row(item, (next) => change(items.map((each, place) => (place === index ? next : each))), index)}
          <button
            type="button"
            class="small plain"
            aria-label={`Remove ${title.toLowerCase()} ${index + 1}`}
            onClick={() => change(items.filter((_, place) => place !== index))}
          >
            ✕
          </button>
        </div>
      ))}
      {problems.map((problem, index) => (
        <p class="problem" key={index}>
          {problem.what}
          {problem.fix && <span class="fix">; {problem.fix}</span>}
        </p>
      ))}
      <button type="button" class="small" onClick={() => change([...items, fresh()])}>
        Add
      </button>
    </fieldset>
  );
}

export function numberOf(text: string): number | null {
  return text.trim() === "" ? null : Number(text);
}
