/* Dark or light: the theme of the system, or the chosen theme. Before the first paint: public/theme.js. */
import { computed, effect, signal } from "@preact/signals";

import { recall, remember } from "./storage.ts";

type Theme = "light" | "dark";

const system = window.matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(system.matches);
system.addEventListener("change", () => (systemDark.value = system.matches));

const kept = recall("theme");
const chosen = signal<Theme | null>(kept === "dark" || kept === "light" ? kept : null);

export const theme = computed<Theme>(() => chosen.value ?? (systemDark.value ? "dark" : "light"));
export const otherTheme = computed<Theme>(() => (theme.value === "dark" ? "light" : "dark"));

effect(() => {
  document.documentElement.dataset.theme = theme.value;
});

/** Takes the other theme; where that is the system's, it is followed again. */
export function switchTheme(): void {
  const next = otherTheme.value;
  chosen.value = (next === "dark") === systemDark.value ? null : next;
  remember("theme", chosen.value);
}

/** A colour of the style sheet, for what is drawn. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
