/* Numbers, times and sizes as people read them. */

const pad = (value: number): string => String(value).padStart(2, "0");

/** "14:03:09" today, "12 Mar 14:03" this year, else "12 Mar 2025". */
export function when(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  const date = new Date(seconds * 1000);
  const now = new Date();
  const clock = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  if (date.toDateString() === now.toDateString()) return `${clock}:${pad(date.getSeconds())}`;
  const day = `${date.getDate()} ${date.toLocaleString("en", { month: "short" })}`;
  return date.getFullYear() === now.getFullYear() ? `${day} ${clock}` : `${day} ${date.getFullYear()}`;
}

export function exactly(seconds: number | null | undefined): string {
  return seconds === null || seconds === undefined ? "" : new Date(seconds * 1000).toLocaleString();
}

/** The time of day, with seconds where a chart shows less than some minutes. */
export function ofDay(seconds: number, exact: boolean): string {
  const date = new Date(seconds * 1000);
  const minutes = `${pad(date.getHours())}:${pad(date.getMinutes())}`;
  return exact ? `${minutes}:${pad(date.getSeconds())}` : minutes;
}

export function clock(seconds: number): string {
  const date = new Date(seconds * 1000);
  const thousandths = String(date.getMilliseconds()).padStart(3, "0");
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${thousandths}`;
}

/** "0.8 s", "42 s", "3 min 20 s", "45 min", "2 h 05 min", "3 d 4 h". */
export function took(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 600) return `${Math.floor(whole / 60)} min ${pad(whole % 60)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  const hours = Math.floor(whole / 3600);
  if (hours < 48) return `${hours} h ${pad(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function size(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** A value of a metric: four significant digits, no noise. */
export function figure(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return String(value);
  const magnitude = Math.abs(value);
  if (magnitude !== 0 && (magnitude < 1e-3 || magnitude >= 1e6)) return value.toExponential(3);
  return String(Number(value.toPrecision(4)));
}

export function count(number: number, one: string, many = `${one}s`): string {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

/** Any JSON value in one line. */
export function plain(value: unknown): string {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "string") return value;
  if (typeof value === "number") return figure(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value) && value.every((each) => typeof each !== "object")) {
    return value.length ? value.join(" ") : "–";
  }
  return JSON.stringify(value);
}

/** [0, 1, 2, 5] is "0–2, 5". */
export function ranges(numbers: readonly number[]): string {
  const sorted = [...numbers].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let index = 0; index < sorted.length; ) {
    let last = index;
    while (last + 1 < sorted.length && sorted[last + 1] === sorted[last]! + 1) last += 1;
    parts.push(index === last ? `${sorted[index]}` : `${sorted[index]}–${sorted[last]}`);
    index = last + 1;
  }
  return parts.join(", ");
}
