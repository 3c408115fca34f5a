/* The keyboard: single keys and two in a row ("g r"), never while one types. */
import { useEffect, useRef } from "preact/hooks";

export interface Key {
  keys: string;
  what: string;
  act: () => void;
}

interface Layer {
  keys: readonly Key[];
}

const layers: Layer[] = [];
const SEQUENCE = 1200; // ms in which the second key has to come
let first = "";
let since = 0;

function typing(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target.closest("dialog")) return true;
  if (target instanceof HTMLInputElement) {
    return !["checkbox", "radio", "button", "range"].includes(target.type);
  }
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}

/* A menu closes when one goes on elsewhere. */
function closeMenus(within: EventTarget | null): void {
  for (const menu of document.querySelectorAll<HTMLDetailsElement>("details.menu[open]")) {
    if (!(within instanceof Node) || !menu.contains(within)) menu.open = false;
  }
}

window.addEventListener("pointerdown", (event) => closeMenus(event.target));
window.addEventListener("focusin", (event) => closeMenus(event.target));

window.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closeMenus(null);
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.key === "Escape" && typing(event.target)) {
    (event.target as HTMLElement).blur();
    return;
  }
  if (typing(event.target) || document.querySelector("dialog[open]")) return;
  // A key that the focused control has a use for is the control's.
  const control = (event.target as HTMLElement | null)?.closest("button, a, summary, [role=tab]");
  if (control && (event.key === "Enter" || event.key === " ")) return;
  const pair = first && event.timeStamp - since < SEQUENCE ? `${first} ${event.key}` : "";
  const known = [...allKeys()].reverse();
  const hit = known.find((key) => pair && key.keys === pair) ?? known.find((key) => key.keys === event.key);
  first = "";
  if (hit) {
    event.preventDefault();
    hit.act();
  } else if (known.some((key) => key.keys.startsWith(`${event.key} `))) {
    first = event.key;
    since = event.timeStamp;
  }
});

/** Keys that hold while a component is shown; later ones come before earlier ones. */
export function useKeys(keys: readonly Key[]): void {
  const layer = useRef<Layer>({ keys });
  layer.current.keys = keys;
  useEffect(() => {
    const mine = layer.current;
    layers.push(mine);
    return () => {
      layers.splice(layers.indexOf(mine), 1);
    };
  }, []);
}

export const allKeys = (): readonly Key[] => layers.flatMap((layer) => layer.keys);
