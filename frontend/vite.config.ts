import { defineConfig } from "vite";

/* `npm run dev` shows the sources as they are, and asks the `shanty ui` of this address. */
const server = process.env.SHANTY_UI ?? "http://127.0.0.1:8477";

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  base: "./", // whatever path a proxy gives the pages
  build: {
    outDir: "../src/shanty/dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
  },
  server: { proxy: { "/api": server } },
});
