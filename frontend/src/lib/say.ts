/* Short messages: what was done, and errors. Spoken once by screen readers. */
import { signal } from "@preact/signals";

import { type ApiError, asApiError, isAbort } from "./api.ts";

export interface Message {
  id: number;
  text: string;
  error: ApiError | null;
}

export const messages = signal<readonly Message[]>([]);
const SHOWN = 5000; // ms; errors stay until they are closed
let last = 0;

export function dismiss(id: number): void {
  messages.value = messages.value.filter((message) => message.id !== id);
}

export function say(text: string): void {
  const id = (last += 1);
  messages.value = [...messages.value, { id, text, error: null }];
  window.setTimeout(() => dismiss(id), SHOWN);
}

export function sayError(error: unknown): void {
  if (isAbort(error)) return;
  const known = asApiError(error);
  if (known.status === 401) return;
  const id = (last += 1);
  messages.value = [...messages.value.slice(-2), { id, text: known.what, error: known }];
}
