/* Requests to the API, and the errors of those that fail. */
import { below } from "./base.ts";
import { forgetToken, token } from "./session.ts";

const PREFIX = below("/api/v1");
// A browser that signs in to a proxy by HTTP needs the header Authorization for that: the server says so in the page.
const HEADER = document.documentElement.dataset.tokenHeader;

/** What happened, why, and what to do; `status` is HTTP's, 0 where nothing was answered. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly what: string,
    readonly why = "",
    readonly fix = "",
  ) {
    super(what);
  }
}

export function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  return new ApiError(0, "Something in this page failed", String(error), "Load the page again.");
}

type Query = Record<string, string | number | boolean | null | undefined | readonly string[]>;

export function query(values: Query): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") continue;
    if (Array.isArray(value)) for (const each of value) words.append(name, String(each));
    else words.set(name, String(value));
  }
  const text = words.toString();
  return text && `?${text}`;
}

async function failure(response: Response): Promise<ApiError> {
  let said: { what?: string; why?: string; fix?: string } = {};
  try {
    said = ((await response.json()) as { error?: typeof said }).error ?? {};
  } catch {
    /* no JSON: a proxy's page, or a server that is ending */
  }
  const what = said.what ?? `The server answered ${response.status} ${response.statusText}`.trim();
  return new ApiError(response.status, what, said.why ?? "", said.fix ?? "");
}

/** Sends a request with the token (and a proxy's cookies), which is `known` or the stored token; ApiError for any other answer than 2xx. */
export async function send(path: string, options: RequestInit = {}, known?: string): Promise<Response> {
  const used = known ?? token.value;
  const headers = { ...(options.headers as Record<string, string>) };
  if (used) headers[HEADER ?? "Authorization"] = HEADER ? used : `Bearer ${used}`;
  let response: Response;
  try {
    response = await fetch(PREFIX + path, { ...options, headers, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(
      0,
      "The server does not answer",
      "It has ended, or the connection is cut",
      "Start shanty ui again; this page goes on by itself.",
    );
  }
  if (response.ok) return response;
  if (response.status === 401 && known === undefined) forgetToken(used);
  throw await failure(response);
}

export async function get<T>(path: string, values: Query = {}, abort?: AbortSignal): Promise<T> {
  const response = await send(path + query(values), { signal: abort ?? null });
  return (await response.json()) as T;
}

/** A request that changes something. */
export async function change<T>(method: "POST" | "DELETE", path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = { "X-Shanty": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await send(path, {
    method,
    headers,
    body: body === undefined ? null : JSON.stringify(body),
  });
  const text = await response.text();
  return (text ? JSON.parse(text) : null) as T;
}

/** Lets the browser save what is at `path`: it sends no token, so it gets an address that works once. */
export async function download(path: string): Promise<void> {
  const link = document.createElement("a");
  link.href = below((await change<{ url: string }>("POST", path)).url);
  link.download = "";
  link.click();
}

export const runPath = (id: string): string => `/runs/${encodeURIComponent(id)}`;

export const isAbort = (error: unknown): boolean =>
  error instanceof DOMException && error.name === "AbortError";
