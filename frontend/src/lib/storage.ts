/* What this browser remembers: the theme, columns. Nothing depends on it. */

export function recall(name: string): string | null {
  try {
    return localStorage.getItem(`shanty.${name}`);
  } catch {
    return null;
  }
}

export function remember(name: string, value: string | null): void {
  try {
    if (value === null) localStorage.removeItem(`shanty.${name}`);
    else localStorage.setItem(`shanty.${name}`, value);
  } catch {
    /* no storage: it is forgotten with the page */
  }
}
