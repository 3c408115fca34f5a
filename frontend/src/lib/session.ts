/* Who looks, what they may do, and their token. */
import { computed, signal } from "@preact/signals";

import type { Me } from "../types.ts";
import { BASE } from "./base.ts";
import { recall, remember } from "./storage.ts";

export const me = signal<Me | null>(null);
export const mayChange = computed(
  () => me.value !== null && !me.value.read_only && me.value.role !== "viewer",
);

/* The storage of an origin, where the token is, is of one port. A cookie would be sent to the
   servers on all ports of this host. Every request of ours has the token in a header.
   One proxy may serve several of these pages, each below a path. */
const KEY = `token${BASE}`;

/** The token; null where the page has to ask for one. */
export const token = signal(recall(KEY));

export function keepToken(value: string): void {
  remember(KEY, value);
  token.value = value;
}

/** Forgets the token `known`, in all tabs; a newer one stays. */
export function forgetToken(known: string | null): void {
  if (recall(KEY) === known) remember(KEY, null);
  if (token.value === known) token.value = null;
}

/** Returns the token in what was pasted: a link that was printed, or the token alone. */
export function tokenOf(pasted: string): string {
  const inLink = /[#?&]token=([^&\s]+)/.exec(pasted)?.[1];
  return inLink ? decodeURIComponent(inLink) : pasted.trim();
}

/** Takes the token out of the address, behind whose # no server and no log sees it. */
function fromAddress(): boolean {
  const { hash, pathname, search } = window.location;
  if (!/[#&]token=./.test(hash)) return false;
  keepToken(tokenOf(hash));
  window.history.replaceState(null, "", pathname + search);
  return true;
}

fromAddress();
// A link that was printed, opened where a page of this server is already.
window.addEventListener("hashchange", () => {
  if (fromAddress()) window.location.reload();
});
// Signed in or out in another tab.
window.addEventListener("storage", (event) => {
  if (event.key === `shanty.${KEY}`) token.value = event.newValue;
});
