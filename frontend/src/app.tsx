/* The frame around all pages: navigation, messages, keys, the state of the connection. */
import { useEffect, useState } from "preact/hooks";

import { type ApiError, asApiError, get } from "./lib/api.ts";
import { below } from "./lib/base.ts";
import { disconnected } from "./lib/events.ts";
import { allKeys, useKeys } from "./lib/keys.ts";
import { address, follow, go } from "./lib/router.ts";
import { dismiss, messages } from "./lib/say.ts";
import { forgetToken, mayChange, me, token } from "./lib/session.ts";
import { otherTheme, switchTheme, theme } from "./lib/theme.ts";
import { Compare } from "./pages/compare.tsx";
import { Login } from "./pages/login.tsx";
import { Machines } from "./pages/machines.tsx";
import { New } from "./pages/new.tsx";
import { Run } from "./pages/run/index.tsx";
import { Runs } from "./pages/runs.tsx";
import { Empty, ErrorCard, Waiting } from "./parts/bits.tsx";
import { Dialog } from "./parts/dialog.tsx";
import type { Me } from "./types.ts";

const PAGES: readonly [string, string, RegExp][] = [
  ["/", "Runs", /^\/(runs.*)?$/],
  ["/compare", "Compare", /^\/compare$/],
  ["/machines", "Machines", /^\/machines$/],
  ["/new", "New run", /^\/new$/],
];

function Page({ path }: { path: string }) {
  const run = /^\/runs\/([^/]+)\/?$/.exec(path)?.[1];
  if (run) return <Run key={run} id={decodeURIComponent(run)} />;
  if (path === "/" || path === "/runs" || path === "/login") return <Runs />;
  if (path === "/compare") return <Compare />;
  if (path === "/machines") return <Machines />;
  if (path === "/new") return <New />;
  return (
    <div class="page">
      <h1>Page not found</h1>
      <Empty title={path}>
        <p>
          <a href={below("/")}>To the runs</a>
        </p>
      </Empty>
    </div>
  );
}

function Messages() {
  return (
    <div class="messages" role="status" aria-live="polite">
      {messages.value.map((message) => (
        <div key={message.id} class={`message${message.error ? " is-error" : ""}`}>
          <div>
            <strong>{message.text}</strong>
            {message.error?.why && <p>{message.error.why}</p>}
            {message.error?.fix && (
              <p class="fix">
                <strong>Fix:</strong> {message.error.fix}
              </p>
            )}
          </div>
          <button type="button" class="small plain" aria-label="Close the message" onClick={() => dismiss(message.id)}>
            ✕
          </button>
        </div>
      ))}
    </div>
  );
}

/* Shown only when it lasts: a server that starts again is back in a moment. */
function Connection() {
  const down = disconnected.value;
  const [shown, setShown] = useState(false);
  useEffect(() => {
    if (!down) {
      setShown(false);
      return;
    }
    const timer = window.setTimeout(() => setShown(true), 800);
    return () => window.clearTimeout(timer);
  }, [down]);
  return (
    <div role="status" class={shown ? "connection" : "unseen"}>
      {shown ? "The connection is lost. What you see may be old; it is tried again by itself." : ""}
    </div>
  );
}

function Help({ close }: { close: () => void }) {
  return (
    <Dialog title="Keys" close={close}>
      <table class="plain-table">
        <tbody>
          {allKeys()
            .filter((key) => key.what)
            .map((key) => (
              <tr key={key.keys}>
                <th scope="row">
                  {key.keys.split(" ").map((each) => (
                    <kbd key={each}>{each}</kbd>
                  ))}
                </th>
                <td>{key.what}</td>
              </tr>
            ))}
        </tbody>
      </table>
      <div class="actions">
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function Frame() {
  const [help, setHelp] = useState(false);
  const { path } = address.value;
  useKeys([
    { keys: "g r", what: "go to the runs", act: () => go(below("/")) },
    { keys: "g m", what: "go to the machines", act: () => go(below("/machines")) },
    { keys: "g c", what: "go to the comparison", act: () => go(below("/compare")) },
    { keys: "n", what: "new run", act: () => go(below("/new")) },
    { keys: "?", what: "this list", act: () => setHelp(true) },
  ]);
  const who = me.value;
  return (
    <div class="frame" onClick={follow}>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href={below("/")}>
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <path d="M4 21c4 0 4-3.5 8-3.5s4 3.5 8 3.5s4-3.5 8-3.5M4 13c4 0 4-3.5 8-3.5s4 3.5 8 3.5s4-3.5 8-3.5" />
          </svg>
          shanty
        </a>
        <nav aria-label="Pages">
          {PAGES.filter(([to]) => to !== "/new" || mayChange.value).map(([to, title, shape]) => (
            <a key={to} href={below(to)} aria-current={shape.test(path) ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        <div class="top-end">
          {who && (
            <span class="who muted" title={`shanty ${who.version} · ${who.home}`}>
              {who.name}
              {who.role !== "admin" && ` (${who.role})`}
              <button type="button" class="small plain" onClick={() => forgetToken(token.value)}>
                Sign out
              </button>
            </span>
          )}
          <button type="button" class="small plain" aria-label={`Switch to ${otherTheme.value} colours`} title={`Switch to ${otherTheme.value} colours`} onClick={switchTheme}>
            {theme.value === "dark" ? "☀" : "☾"}
          </button>
          <button type="button" class="small plain" aria-label="Keys" title="Keys ( ? )" onClick={() => setHelp(true)}>
            ?
          </button>
        </div>
      </header>
      <Connection />
      <main id="main" tabIndex={-1}>
        <Page path={path} />
      </main>
      <Messages />
      {help && <Help close={() => setHelp(false)} />}
    </div>
  );
}

export function App() {
  const [error, setError] = useState<ApiError | null>(null);
  const [turn, setTurn] = useState(0);
  const known = token.value;
  useEffect(() => {
    me.value = null;
    if (known === null) return;
    get<Me>("/me")
      .then((answer) => {
        me.value = answer;
        setError(null);
      })
      .catch((reason: unknown) => setError(asApiError(reason)));
  }, [turn, known]);
  if (known === null) return <Login />;
  if (me.value) return <Frame />;
  if (error) {
    return (
      <main class="login">
        <ErrorCard error={error} again={() => setTurn(turn + 1)} />
      </main>
    );
  }
  return <Waiting what="Loading…" />;
}
