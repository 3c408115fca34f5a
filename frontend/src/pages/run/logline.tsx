/* One line of a log: text with its colours, what was searched for marked. Never markup. */
import { memo } from "../../lib/memo.ts";
import { pieces } from "../../lib/ansi.ts";
import { clock } from "../../lib/format.ts";
import type { LogLine } from "../../types.ts";

const SHOWN = 2000; // letters of a line

function Marked({ text, pattern }: { text: string; pattern: RegExp | null }) {
  if (!pattern) return <>{text}</>;
  const parts: (string | { hit: string })[] = [];
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    if (!match[0]) continue;
    if (match.index > from) parts.push(text.slice(from, match.index));
    parts.push({ hit: match[0] });
    from = match.index + match[0].length;
  }
  parts.push(text.slice(from));
  return <>{parts.map((part) => (typeof part === "string" ? part : <mark>{part.hit}</mark>))}</>;
}

export interface LineProps {
  line: LogLine;
  pattern: RegExp | null;
  times: boolean;
  hit: boolean;
  whole: (line: LogLine) => void;
}

export const Line = memo(function Line({ line, pattern, times, hit, whole }: LineProps) {
  const errors = line.stream === "stderr";
  const long = line.text.length > SHOWN;
  return (
    <div class={`line${errors ? " stderr" : ""}${hit ? " hit" : ""}`}>
      {times && <span class="line-time">{line.time === null ? "" : clock(line.time)}</span>}
      <span class="line-stream" title={errors ? "stderr" : undefined}>
        {errors ? "E" : " "}
      </span>
      {pieces(long ? line.text.slice(0, SHOWN) : line.text).map((piece, index) => (
        <span key={index} class={piece.style || undefined}>
          <Marked text={piece.text} pattern={pattern} />
        </span>
      ))}
      {long && (
        <button type="button" class="line-more" onClick={() => whole(line)}>
          … {(line.text.length - SHOWN).toLocaleString("en")} letters more
        </button>
      )}
    </div>
  );
});
