import { render } from "preact";

import { App } from "./app.tsx";
import { below } from "./lib/base.ts";
import "./style/index.css";

// An address that is relative would change its meaning with that of the page.
const icon = document.querySelector<HTMLLinkElement>("link[rel=icon]");
if (icon) icon.href = below("/favicon.svg");
const root = document.getElementById("app");
if (root) render(<App />, root);
