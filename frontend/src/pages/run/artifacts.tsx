/* The files that a run saved: to look at, and to download. */
import { useEffect, useState } from "preact/hooks";

import { get, query, runPath, send } from "../../lib/api.ts";
import { plain, size } from "../../lib/format.ts";
import { useLoad } from "../../lib/load.ts";
import { params, setParams } from "../../lib/router.ts";
import { Download, Empty, ErrorCard, Time, Waiting } from "../../parts/bits.tsx";
import type { Artifact, Preview } from "../../types.ts";

const raw = (id: string, path: string, inline: boolean): string =>
  `${runPath(id)}/artifacts/raw${query({ path, inline: inline ? 1 : null })}`;

/* An <img> sends no token: what it shows is fetched before. */
function Image({ id, path }: { id: string; path: string }) {
  const loaded = useLoad<Blob>(path, async (abort) => (await send(raw(id, path, true), { signal: abort })).blob());
  const [shown, setShown] = useState<string>();
  useEffect(() => {
    if (!loaded.value) return;
    const url = URL.createObjectURL(loaded.value);
    setShown(url);
    return () => URL.revokeObjectURL(url);
  }, [loaded.value]);
  if (loaded.error) return <ErrorCard error={loaded.error} />;
  return shown ? <img src={shown} alt={path} /> : <Waiting what="Loading…" />;
}

function Crumbs({ path }: { path: string }) {
  const parts = path.split("/").filter(Boolean);
  return (
    <nav class="crumbs" aria-label="Folder">
      <button type="button" class="link" onClick={() => setParams({ path: null, file: null })}>
        artifacts
      </button>
      {parts.map((part, index) => (
        <>
          <span aria-hidden="true"> / </span>
          <button
            type="button"
            class="link"
            onClick={() => setParams({ path: parts.slice(0, index + 1).join("/"), file: null })}
          >
            {part}
          </button>
        </>
      ))}
    </nav>
  );
}

function Table({ preview }: { preview: Preview }) {
  const rows = preview.rows ?? [];
  const columns = preview.columns ?? null;
  return (
    <div class="table-wrap" tabIndex={0} role="region" aria-label="Table">
      <table class="plain-table">
        {columns && (
          <thead>
            <tr>
              {columns.map((column, index) => (
                <th scope="col" key={index}>
                  {column}
                </th>
              ))}
            </tr>
          </thead>
        )}
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              {row.map((value, place) => (
                <td key={place}>{plain(value)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Look({ id, path, kind }: { id: string; path: string; kind: Artifact["preview"] }) {
  const [offset, setOffset] = useState(0);
  const image = kind === "image";
  const loaded = useLoad<Preview>(image ? null : `${path}:${offset}`, (abort) =>
    get(`${runPath(id)}/artifacts/preview`, { path, offset: offset || null }, abort),
  );
  const preview = loaded.value;
  return (
    <section class="card look" aria-label={`Preview of ${path}`}>
      <div class="card-head">
        <h2 class="breaks">{path}</h2>
        <Download path={raw(id, path, false)} />
      </div>
      {image && <Image id={id} path={path} />}
      {loaded.error && <ErrorCard error={loaded.error} />}
      {!image && !preview && !loaded.error && <Waiting what="Loading…" />}
      {preview && (preview.rows ? <Table preview={preview} /> : null)}
      {preview && typeof preview.text === "string" && (
        <pre class="file-text" tabIndex={0} aria-label={`Text of ${path}`}>
          {preview.text}
        </pre>
      )}
      {preview && (offset > 0 || preview.next) && (
        <div class="actions">
          {offset > 0 && (
            <button type="button" onClick={() => setOffset(0)}>
              From the beginning
            </button>
          )}
          {preview.next ? (
            <button type="button" onClick={() => setOffset(preview.next!)}>
              Further on
            </button>
          ) : null}
        </div>
      )}
    </section>
  );
}

export function Artifacts({ id }: { id: string }) {
  const path = params.value.get("path") ?? "";
  const file = params.value.get("file");
  const loaded = useLoad<{ path: string; entries: Artifact[] }>(path || "/", (abort) =>
    get(`${runPath(id)}/artifacts`, { path }, abort),
  );
  if (loaded.error && !loaded.value) return <ErrorCard error={loaded.error} again={loaded.reload} />;
  if (!loaded.value) return <Waiting what="Loading artifacts…" />;
  const { entries } = loaded.value;
  const within = (name: string): string => (path ? `${path}/${name}` : name);
  const shown = entries.find((entry) => within(entry.name) === file);
  if (!entries.length && !path) {
    return (
      <Empty title="No artifacts" command={'import shanty\ntorch.save(model, shanty.artifacts() / "model.pt")'}>
        <p>What a script puts into its folder of artifacts is here, wherever it ran:</p>
      </Empty>
    );
  }
  return (
    <div class={`artifacts${shown ? " with-look" : ""}`}>
      <section class="card" aria-label="Files">
        <div class="card-head">
          <Crumbs path={path} />
          <button type="button" class="small" onClick={loaded.reload}>
            Reload
          </button>
        </div>
        <table class="plain-table files">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col" class="number">
                Size
              </th>
              <th scope="col">Modified</th>
              <th scope="col">
                <span class="unseen">Download</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {entries.map((entry) => (
              <tr key={entry.name} class={within(entry.name) === file ? "chosen" : undefined}>
                <th scope="row">
                  {entry.kind === "folder" ? (
                    <button type="button" class="link" onClick={() => setParams({ path: within(entry.name), file: null })}>
                      {entry.name}/
                    </button>
                  ) : entry.preview ? (
                    <button type="button" class="link" onClick={() => setParams({ file: within(entry.name) })}>
                      {entry.name}
                    </button>
                  ) : (
                    entry.name
                  )}
                </th>
                <td class="number">{entry.kind === "file" ? size(entry.size) : ""}</td>
                <td>
                  <Time at={entry.modified} />
                </td>
                <td>
                  {entry.kind === "file" && (
                    <Download path={raw(id, within(entry.name), false)} name={entry.name} />
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      {shown && <Look key={file} id={id} path={within(shown.name)} kind={shown.preview} />}
    </div>
  );
}
