/* The part of the form of a new run that targets declare: their options. */
import type { FormOption, OptionValue, TargetForm } from "../types.ts";
import { Field, type Problem } from "./formparts.tsx";

/** The target that `on` names: its first part, as in slurm:SITE. */
export const targetOf = (targets: readonly TargetForm[] | undefined, on: string | null): TargetForm | undefined =>
  targets?.find((each) => each.scheme === (on ?? "").split(":")[0]);

/** Those of the options that this target has, without empty ones. */
export function optionsOf(target: TargetForm | undefined, options: Record<string, OptionValue>): Record<string, OptionValue> {
  const names = new Set((target?.options ?? []).map((each) => each.name));
  const filled = (value: OptionValue): boolean => (typeof value === "boolean" ? value : value.length > 0);
  return Object.fromEntries(Object.entries(options).filter(([name, value]) => names.has(name) && filled(value)));
}

function Input({ option, value, put, ...more }: {
  option: FormOption;
  value: OptionValue | undefined;
  put: (value: OptionValue) => void;
}) {
  if (option.kind === "switch") {
    return <input {...more} type="checkbox" checked={value === true} onChange={(event) => put(event.currentTarget.checked)} />;
  }
  if (option.words.length > 0) {
    return (
      <select {...more} value={String(value ?? "")} onChange={(event) => put(event.currentTarget.value)}>
        <option value="" />
        {option.words.map((word) => (
          <option key={word} value={word}>
            {word}
          </option>
        ))}
      </select>
    );
  }
  if (option.kind === "list") {
    return (
      <input
        {...more}
        type="text"
        value={Array.isArray(value) ? value.join(", ") : ""}
        onChange={(event) => put(event.currentTarget.value.split(",").map((each) => each.trim()).filter(Boolean))}
      />
    );
  }
  return (
    <input
      {...more}
      type="text"
      inputMode={option.kind === "number" ? "numeric" : "text"}
      value={typeof value === "string" ? value : ""}
      onInput={(event) => put(event.currentTarget.value.trim())}
    />
  );
}

export function TargetOptions({ target, options, problems, change }: {
  target: TargetForm;
  options: Record<string, OptionValue>;
  problems: readonly Problem[];
  change: (options: Record<string, OptionValue>) => void;
}) {
  const label = (option: FormOption): string => option.flag.replace(/^--/, "").replaceAll("-", " ");
  return (
    <section class="card" aria-label={target.title}>
      <h2>{target.title}</h2>
      {target.options.map((option) => (
        <Field
          key={option.name}
          name={`options.${option.name}`}
          label={label(option)}
          problems={problems}
          hint={option.kind === "list" ? `${option.help} With commas between them.` : option.help}
        >
          <Input option={option} value={options[option.name]} put={(value) => change({ ...options, [option.name]: value })} />
        </Field>
      ))}
    </section>
  );
}
