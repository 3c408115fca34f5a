/* Writes beside the bundle what sources it was built from: a SHA-256 over their names and contents.
   tests/unit/dashboard/test_static.py works it out again, and says when the bundle is an old one. */
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const SOURCES = ["index.html", "package-lock.json", "package.json", "public", "src", "tsconfig.json", "vite.config.ts"];

function files(name) {
  const path = join(root, name);
  if (!statSync(path).isDirectory()) return [name];
  return readdirSync(path).flatMap((entry) => files(`${name}/${entry}`));
}

const hash = createHash("sha256");
const names = SOURCES.flatMap(files).sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
for (const name of names) {
  const content = readFileSync(join(root, name));
  hash.update(`${name}\0${content.length}\0`);
  hash.update(content);
}
const out = join(root, "../src/shanty/dashboard/static/built-from.txt");
writeFileSync(out, `sha256 ${hash.digest("hex")}\n`);
