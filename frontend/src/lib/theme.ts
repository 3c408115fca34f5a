/* Dark or light: the system's, or the one that was chosen. */
import { computed, signal } from "@preact/signals";

import { recall, remember } from "./storage.ts";

type Choice = "system" | "light" | "dark";

const system = window.matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
system.addEventListener("change", () => (systemDark.value = system.matches));

export const choice = signal<Choice>((recall("theme") as Choice | null) ?? "system");
export const dark = computed(() =>
  choice.value === "system" ? systemDark.value : choice.value === "dark",
);

export function choose(next: Choice): void {
  choice.value = next;
  remember("theme", next === "system" ? null : next);
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
}

/** A colour of the style sheet, for what is drawn. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
