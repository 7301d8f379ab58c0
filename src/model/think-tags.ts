/**
 * Owns: telling reasoning from text where a local server leaves both in one (`<think>…</think>` at the beginning of an
 * answer, as many open models write it and not every server takes it out).
 *
 * I1. Only at the very beginning: a model that writes about such a tag later means its words.
 * I2. What has been cut up anywhere comes out the same; text is held back only while it may still be a tag.
 * I3. Of a model that thinks first the answer is reasoning up to the closing tag, whether it opens one or its chat
 *     template did so in the prompt, where nobody sees it.
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

export function createThinkSplitter({ thinksFirst = false } = {}): ThinkSplitter {
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
        const opened = begun.startsWith(OPEN);
        state = opened || thinksFirst ? "thinking" : "text";
        if (state === "text") return say("text", take());
        return again(opened ? begun.slice(OPEN.length) : held);
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

  const isThought = () => state === "thinking" || (state === "start" && thinksFirst);
  return { push, end: () => say(isThought() ? "reasoning" : "text", take()) };
}

/** A closing tag that ends its line, or follows a word or a line's begin: neither quoted nor in the middle of a sentence. */
const CLOSED = /(?:(?<=^|[^\s`'"“‘(])<\/think>|(?<=\n)<\/think>|<\/think>(?=[ \t]*(?:\r?\n|$)))/;

/**
 * What a whole answer holds of reasoning that nobody opened in it: the chat template did, in the prompt. Undefined when
 * it seems to hold none.
 */
export function unopenedThought(
  answer: string,
): { readonly reasoning: string; readonly text: string } | undefined {
  const at = answer.search(CLOSED);
  if (at < 0) return undefined;
  const reasoning = answer.slice(0, at);
  const isInCode = (reasoning.match(/^\s*```/gm)?.length ?? 0) % 2 === 1;
  if (reasoning.includes(OPEN) || isInCode) return undefined;
  return { reasoning, text: answer.slice(at + CLOSE.length).trimStart() };
}

/** The longest end of the text that may be the beginning of the closing tag. */
function endOf(text: string): string {
  for (let length = Math.min(CLOSE.length - 1, text.length); length > 0; length -= 1) {
    const end = text.slice(-length);
    if (CLOSE.startsWith(end)) return end;
  }
  return "";
}
