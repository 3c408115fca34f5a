/* Who looks, and what they may do. */
import { computed, signal } from "@preact/signals";

import type { Me } from "../types.ts";

export const me = signal<Me | null>(null);
export const mayChange = computed(
  () => me.value !== null && !me.value.read_only && me.value.role !== "viewer",
);
