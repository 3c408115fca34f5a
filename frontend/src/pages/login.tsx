/* Signing in without a session: a token is pasted, and the page that was asked for opens. */
import { useState } from "preact/hooks";

import { type ApiError, asApiError, send } from "../lib/api.ts";
import { keepToken, tokenOf } from "../lib/session.ts";
import { useTitle } from "../parts/bits.tsx";

export function Login() {
  useTitle("Sign in");
  const [error, setError] = useState<ApiError | null>(null);
  const submit = async (form: HTMLFormElement): Promise<void> => {
    const token = new FormData(form).get("token");
    if (typeof token !== "string" || !token.trim()) return;
    try {
      const known = tokenOf(token);
      await send("/me", {}, known);
      keepToken(known);
    } catch (reason) {
      setError(asApiError(reason));
    }
  };
  return (
    <main class="login" id="main">
      <form
        class="card"
        onSubmit={(event) => {
          event.preventDefault();
          void submit(event.currentTarget);
        }}
      >
        <h1>shanty</h1>
        <p>
          This page needs a token. <code>shanty ui</code> prints a link that has it; for a team, the person who started{" "}
          <code>shanty serve</code> gives you one.
        </p>
        <label for="token">Token or link</label>
        <input
          id="token"
          name="token"
          type="password"
          autocomplete="current-password"
          required
          autofocus
          aria-invalid={error !== null}
          aria-describedby={error ? "token-problem" : undefined}
        />
        {error && (
          <p class="problem" id="token-problem" role="alert">
            {error.what}
            {error.why && `: ${error.why}`}
            {error.fix && <span class="fix">. {error.fix}</span>}
          </p>
        )}
        <button type="submit" class="primary wide-button">
          Sign in
        </button>
      </form>
    </main>
  );
}
