/* Writes the licences of the packages that the bundle contains beside it, as these require. */
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const installed = (name) => join(root, "node_modules", name);
const read = (name) => JSON.parse(readFileSync(join(installed(name), "package.json"), "utf8"));

const bundled = new Set(Object.keys(JSON.parse(readFileSync(join(root, "package.json"), "utf8")).dependencies));
for (const name of bundled) Object.keys(read(name).dependencies ?? {}).forEach((each) => bundled.add(each));

const parts = [...bundled].sort().map((name) => {
  const { version, license } = read(name);
  const file = readdirSync(installed(name)).find((each) => /^licen[cs]e/i.test(each));
  if (!file) throw new Error(`${name} has no licence file`);
  return `${name} ${version} (${license})\n\n${readFileSync(join(installed(name), file), "utf8").trim()}\n`;
});
const head = "The pages of the dashboard contain these packages, under the licences below.\n";
const line = `\n${"-".repeat(80)}\n\n`;
writeFileSync(join(root, "../src/shanty/dashboard/static/licenses.txt"), [head, ...parts].join(line));
