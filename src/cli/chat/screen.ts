import { clearScreenDown, cursorTo, type Interface, moveCursor } from "node:readline";

/** Where a conversation is written: above the line being typed, which stays as it is. */
export interface Screen {
  /** A paragraph of its own. */
  paragraph(text: string): void;
  /** A piece of text that goes on where the last piece ended. */
  stream(text: string): void;
  /** Ends the text that streams. */
  endStream(): void;
}

/**
 * I1. The line being typed is erased before anything is written and drawn again after it, cursor included.
 * I2. Control characters in what the host sends never reach the terminal.
 */
export function createScreen(
  line: Pick<Interface, "prompt" | "getCursorPos" | "on">,
  output: NodeJS.WritableStream & { readonly columns?: number },
): Screen {
  /** The last, unfinished line of the stream; it stands right above the prompt when not empty. */
  let partial = "";
  line.on("line", () => {
    // The line that was just entered stands below the stream now, which goes on below it.
    partial = "";
    line.prompt();
  });
  line.prompt();

  const redraw = (write: () => void) => {
    const { rows } = line.getCursorPos();
    moveCursor(output, 0, -(rows + (partial === "" ? 0 : 1)));
    cursorTo(output, 0);
    clearScreenDown(output);
    write();
    if (partial !== "") output.write(`${partial}\n`);
    // readline goes up by the rows that it drew last; give it these rows.
    output.write("\n".repeat(rows));
    line.prompt(true);
  };

  const endStream = () => {
    redraw(() => {
      if (partial !== "") output.write(`${partial}\n`);
      partial = "";
    });
  };
  return {
    endStream,
    paragraph: (text) => {
      if (partial !== "") endStream();
      redraw(() => output.write(`${printable(text)}\n`));
    },
    stream: (text) => {
      redraw(() => {
        const { lines, rest } = wrap(partial + printable(text), Math.max(20, (output.columns || 80) - 1));
        for (const full of lines) output.write(`${full}\n`);
        partial = rest;
      });
    },
  };
}

/** Cuts text into lines that fit `width` columns; `rest` is the last one, which may still grow. */
export function wrap(text: string, width: number): { lines: string[]; rest: string } {
  const lines: string[] = [];
  let rest = "";
  let used = 0;
  for (const character of text) {
    const wide = Bun.stringWidth(character);
    if (character === "\n" || used + wide > width) {
      lines.push(rest);
      rest = "";
      used = 0;
      if (character === "\n") continue;
    }
    rest += character;
    used += wide;
  }
  return { lines, rest };
}

/** Text without what would steer a terminal: control characters but for line ends; tabs become spaces. */
export function printable(text: string): string {
  return text
    .replaceAll("\r\n", "\n")
    .replaceAll("\t", "    ")
    .replace(/[^\P{Cc}\n]/gu, "\u{fffd}");
}
