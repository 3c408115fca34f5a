/* A stretch of a log: it grows at both ends by byte offset, and forgets at the other one. */
import type { LogLine, LogWindow } from "../types.ts";
import { get, isAbort, runPath } from "./api.ts";

const CHUNK = 131_072; // bytes a request
const KEPT = 6000; // lines

/** How the lines moved: how many came before the first one, less those that were forgotten there. */
export type Moved = (shift: number) => void;

export class LogBuffer {
  lines: LogLine[] = [];
  begin = 0;
  end = 0;
  size = 0;
  busy = false;
  /** True once something was answered. */
  ready = false;
  private skipped = false;
  private abort = new AbortController();

  constructor(
    private readonly run: string,
    readonly rank: string,
    private readonly attempt: number | null,
    private readonly moved: Moved,
    private readonly failed: (error: unknown) => void,
  ) {}

  get atStart(): boolean {
    return this.begin <= 0;
  }

  get atEnd(): boolean {
    return this.end >= this.size;
  }

  close(): void {
    this.abort.abort();
  }

  /** Shows the stretch that begins at an offset, or the last one. */
  async jump(at: number | "end"): Promise<void> {
    this.abort.abort();
    this.abort = new AbortController();
    this.busy = false;
    const back = at === "end";
    const part = await this.ask(at, back ? "back" : "forward");
    if (!part) return;
    this.lines = part.lines;
    this.begin = part.begin;
    this.end = part.end;
    this.ready = true;
    this.moved(0);
  }

  async older(): Promise<void> {
    if (this.busy || this.atStart || !this.ready) return;
    const part = await this.ask(this.begin, "back");
    if (!part || part.begin >= this.begin) return;
    const first = this.begin;
    const fresh = part.lines.filter((line) => line.offset < first);
    this.lines = [...fresh, ...this.lines];
    this.begin = part.begin;
    if (this.lines.length > KEPT) {
      this.end = this.lines[KEPT]!.offset;
      this.lines = this.lines.slice(0, KEPT);
    }
    this.moved(fresh.length);
  }

  async newer(): Promise<void> {
    if (this.busy || !this.ready) return;
    const part = await this.ask(this.end, "forward");
    if (part) this.append(part.lines, part.begin, part.end);
  }

  /** So much was written that the next lines will not join those that are here. */
  skip(size: number): void {
    this.size = Math.max(this.size, size);
    this.skipped = true;
  }

  /** Puts lines behind the last one, but for those that are there already. */
  append(lines: readonly LogLine[], begin: number, end: number): void {
    if (!this.ready) return;
    this.size = Math.max(this.size, end);
    if (this.skipped && begin > this.end) {
      this.skipped = false;
      this.lines = [...lines];
      this.begin = begin;
      this.end = end;
      this.moved(0);
      return;
    }
    if (begin > this.end) {
      void this.newer(); // what is between is asked for
      return;
    }
    const fresh = lines.filter((line) => line.offset >= this.end);
    this.end = Math.max(this.end, end);
    this.lines = [...this.lines, ...fresh];
    const over = Math.max(0, this.lines.length - KEPT);
    if (over) {
      this.lines = this.lines.slice(over);
      this.begin = this.lines[0]!.offset;
    }
    this.moved(-over);
  }

  private async ask(at: number | "end", direction: "back" | "forward"): Promise<LogWindow | null> {
    this.busy = true;
    const { signal } = this.abort;
    try {
      const part = await get<LogWindow>(
        `${runPath(this.run)}/logs/${this.rank}`,
        { at, direction, bytes: CHUNK, attempt: this.attempt },
        signal,
      );
      this.size = part.size;
      return part;
    } catch (error) {
      if (!isAbort(error)) this.failed(error);
      return null;
    } finally {
      if (!signal.aborted) this.busy = false;
    }
  }
}
