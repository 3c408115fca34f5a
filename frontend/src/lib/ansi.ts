/* ANSI escapes of a line of output as styled pieces of text. Nothing becomes markup: the caller
   makes text nodes of the pieces, and all but colours and weights is dropped. */

export interface Piece {
  text: string;
  /** Names of classes, from a fixed list. */
  style: string;
}

// CSI … final byte, OSC … BEL or ST, other two-byte escapes, and control characters but tab.
const ESCAPE =
  /\x1b\[([0-9;:?]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]?|[\x00-\x08\x0b-\x1f\x7f]/g;

interface Look {
  colour: string;
  ground: string;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
}

const PLAIN: Look = {
  colour: "",
  ground: "",
  bold: false,
  dim: false,
  italic: false,
  underline: false,
};

/* The 256-colour cube brought down to the sixteen that have a class. */
function ofCube(index: number): string {
  if (!Number.isInteger(index) || index < 0 || index > 255) return "";
  if (index < 16) return String(index);
  if (index >= 232) return index < 244 ? "8" : "7";
  const cube = index - 16;
  const [red, green, blue] = [Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6];
  return ofParts(red! / 5, green! / 5, blue! / 5);
}

function ofParts(red: number, green: number, blue: number): string {
  const most = Math.max(red, green, blue);
  if (most < 0.2) return "8";
  const bit = (part: number): number => (part > most * 0.6 ? 1 : 0);
  return String(bit(red) + 2 * bit(green) + 4 * bit(blue) + (most > 0.75 ? 8 : 0));
}

function classes(look: Look): string {
  const names: string[] = [];
  if (look.colour) names.push(`f${look.colour}`);
  if (look.ground) names.push(`b${look.ground}`);
  if (look.bold) names.push("bold");
  if (look.dim) names.push("dim");
  if (look.italic) names.push("italic");
  if (look.underline) names.push("underline");
  return names.join(" ");
}

function restyle(look: Look, codes: string): Look {
  let next = { ...look };
  const numbers = (codes || "0").split(/[;:]/).map((each) => Number(each || "0"));
  for (let index = 0; index < numbers.length; index += 1) {
    const code = numbers[index]!;
    if (code === 0) next = { ...PLAIN };
    else if (code === 1) next.bold = true;
    else if (code === 2) next.dim = true;
    else if (code === 3) next.italic = true;
    else if (code === 4) next.underline = true;
    else if (code === 22) next.bold = next.dim = false;
    else if (code === 23) next.italic = false;
    else if (code === 24) next.underline = false;
    else if (code >= 30 && code <= 37) next.colour = String(code - 30);
    else if (code >= 90 && code <= 97) next.colour = String(code - 82);
    else if (code === 39) next.colour = "";
    else if (code >= 40 && code <= 47) next.ground = String(code - 40);
    else if (code >= 100 && code <= 107) next.ground = String(code - 92);
    else if (code === 49) next.ground = "";
    else if (code === 38 || code === 48) {
      let colour = "";
      if (numbers[index + 1] === 5) {
        colour = ofCube(numbers[index + 2] ?? -1);
        index += 2;
      } else if (numbers[index + 1] === 2) {
        const [red = 0, green = 0, blue = 0] = numbers.slice(index + 2, index + 5);
        colour = ofParts(red / 255, green / 255, blue / 255);
        index += 4;
      }
      if (code === 38) next.colour = colour;
      else next.ground = colour;
    }
  }
  return next;
}

export function pieces(line: string): Piece[] {
  // A carriage return rewrites its line, as progress bars do: the last writing is what stays.
  const text = line.replace(/\r+$/, "").replace(/^.*\r(?=[^\r])/s, "");
  const found: Piece[] = [];
  let look = PLAIN;
  let from = 0;
  for (const match of text.matchAll(ESCAPE)) {
    if (match.index > from) found.push({ text: text.slice(from, match.index), style: classes(look) });
    from = match.index + match[0].length;
    if (match[2] === "m") look = restyle(look, match[1] ?? "");
  }
  if (from < text.length) found.push({ text: text.slice(from), style: classes(look) });
  return found;
}

export function stripped(line: string): string {
  return pieces(line)
    .map((piece) => piece.text)
    .join("");
}
