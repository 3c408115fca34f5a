/* The address: which page, and what it shows. Whatever can be shared is in it. */
import { computed, signal } from "@preact/signals";

import { BASE, below } from "./base.ts";

interface Address {
  path: string; // below the path of the dashboard
  search: string;
}

const now = (): Address => ({ path: window.location.pathname.slice(BASE.length) || "/", search: window.location.search });

export const address = signal<Address>(now());
export const params = computed(() => new URLSearchParams(address.value.search));

window.addEventListener("popstate", () => (address.value = now()));

/** Goes to a page of ours, given as `below` makes it. */
export function go(to: string, how: "push" | "replace" = "push"): void {
  if (how === "push") window.history.pushState(null, "", to);
  else window.history.replaceState(null, "", to);
  const before = address.value.path;
  address.value = now();
  if (how === "push" && before !== address.value.path) {
    window.scrollTo(0, 0);
    // The next page's heading is where a screen reader goes on.
    requestAnimationFrame(() => document.getElementById("main")?.focus({ preventScroll: true }));
  }
}

/** Changes words of the query and leaves the others; null or [] takes one out. */
export function setParams(
  changes: Record<string, string | readonly string[] | null>,
  how: "push" | "replace" = "replace",
): void {
  const next = new URLSearchParams(window.location.search);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    if (value === null || value === "") continue;
    for (const each of typeof value === "string" ? [value] : value) next.append(name, each);
  }
  const text = next.toString();
  go(window.location.pathname + (text && `?${text}`), how);
}

/** Lets a plain click on a link stay in this page; all other clicks are the browser's. */
export function follow(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = (event.target as Element | null)?.closest("a");
  if (!link || link.target || link.hasAttribute("download")) return;
  const to = new URL(link.href);
  if (to.origin !== window.location.origin || !to.pathname.startsWith(below("/")) || to.pathname.startsWith(below("/api/"))) return;
  if (to.hash && to.pathname === window.location.pathname) return;
  event.preventDefault();
  go(to.pathname + to.search);
}

export const runLink = (id: string): string => below(`/runs/${encodeURIComponent(id)}`);
