/* Below which path the pages are. Proxies give them one (/user/ann/proxy/8470/) and need not say so: this file
   was loaded from assets/, beside which everything else is. */
const own = import.meta.url;

/** The path of this dashboard without the / at its end: "" where it has the whole name for itself. */
export const BASE = import.meta.env.DEV ? "" : new URL("..", own).pathname.replace(/\/$/, "");

/** The path of a page, or of an address of the API, that is `path` to the server. */
export const below = (path: string): string => BASE + path;
