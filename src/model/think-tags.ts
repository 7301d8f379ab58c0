/**
 * Owns: telling reasoning from text where a local server leaves both in one (`<think>…</think>` at the beginning of an
 * answer, as many open models write it and not every server takes it out).
 *
 * I1. Only at the very beginning: a model that writes about such a tag later means its words.
 * I2. What has been cut up anywhere comes out the same; text is held back only while it may still be a tag.
 */
export interface ThinkSplitter {
  push(piece: string): Split[];
  /** What was held back when the answer ended, or went on with something else. */
  end(): Split[];
}

export interface Split {
  readonly type: "text" | "reasoning";
  readonly text: string;
}

const OPEN = "<think>";
const CLOSE = "</think>";

export function createThinkSplitter(): ThinkSplitter {
  let state: "start" | "thinking" | "after" | "text" = "start";
  let held = "";

  const say = (type: Split["type"], text: string): Split[] => (text === "" ? [] : [{ type, text }]);

  function push(piece: string): Split[] {
    if (state === "text") return say("text", piece);
    held += piece;
    switch (state) {
      case "start": {
        const begun = held.trimStart();
        if (OPEN.startsWith(begun)) return [];
        state = begun.startsWith(OPEN) ? "thinking" : "text";
        return state === "thinking" ? again(begun.slice(OPEN.length)) : say("text", take());
      }
      case "thinking": {
        const at = held.indexOf(CLOSE);
        if (at < 0) {
          const all = take();
          held = endOf(all);
          return say("reasoning", all.slice(0, all.length - held.length));
        }
        const thought = held.slice(0, at);
        state = "after";
        return [...say("reasoning", thought), ...again(held.slice(at + CLOSE.length))];
      }
      case "after": {
        // The blank lines between the two belong to neither.
        const text = take().trimStart();
        if (text !== "") state = "text";
        return say("text", text);
      }
    }
  }

  function again(rest: string): Split[] {
    held = "";
    return push(rest);
  }

  function take(): string {
    const all = held;
    held = "";
    return all;
  }

  return { push, end: () => say(state === "thinking" ? "reasoning" : "text", take()) };
}

/** The longest end of the text that may be the beginning of the closing tag. */
function endOf(text: string): string {
  for (let length = Math.min(CLOSE.length - 1, text.length); length > 0; length -= 1) {
    const end = text.slice(-length);
    if (CLOSE.startsWith(end)) return end;
  }
  return "";
}
