/** Blanks comments, and the insides of string and regex literals where asked, keeping line breaks and lengths. */
export interface Blanked {
  /** Without comments; literals kept (import paths are in them). */
  readonly code: string;
  /** Without comments and without the text of literals; the code inside `${}` is kept. */
  readonly bare: string;
}

/** After these, a slash divides; after anything else it starts a regular expression. */
const ENDS_VALUE = /[\w$)\]}"'`]$/;
const KEYWORD_BEFORE_REGEX = /\b(?:return|typeof|case|in|of|delete|void|throw|await|yield|else)$/;

export function blank(source: string): Blanked {
  // By code unit, as `at` counts.
  const code = source.split("");
  const bare = source.split("");
  const hide = (target: string[], from: number, to: number) => {
    for (let at = from; at < to; at += 1) if (target[at] !== "\n") target[at] = " ";
  };
  // Each open template literal remembers how deep its `${` stands.
  const templates: number[] = [];
  let depth = 0;
  let at = 0;
  let before = "";

  const template = () => {
    const start = at;
    while (at < source.length) {
      if (source[at] === "\\") at += 2;
      else if (source[at] === "`") {
        hide(bare, start, at);
        at += 1;
        before = "`";
        return;
      } else if (source.startsWith("${", at)) {
        hide(bare, start, at);
        templates.push(depth);
        depth += 1;
        at += 2;
        before = "{";
        return;
      } else at += 1;
    }
  };

  while (at < source.length) {
    const char = source[at] ?? "";
    const start = at;
    if (source.startsWith("//", at)) {
      const end = source.indexOf("\n", at);
      at = end < 0 ? source.length : end;
      hide(code, start, at);
      hide(bare, start, at);
    } else if (source.startsWith("/*", at)) {
      const end = source.indexOf("*/", at + 2);
      at = end < 0 ? source.length : end + 2;
      hide(code, start, at);
      hide(bare, start, at);
    } else if (char === '"' || char === "'") {
      at += 1;
      while (at < source.length && source[at] !== char && source[at] !== "\n")
        at += source[at] === "\\" ? 2 : 1;
      hide(bare, start + 1, at);
      at += 1;
      before = char;
    } else if (char === "`") {
      at += 1;
      template();
    } else if (char === "/" && (!ENDS_VALUE.test(before) || KEYWORD_BEFORE_REGEX.test(before))) {
      at = regexEnd(source, at);
      hide(bare, start + 1, at - 1);
      before = ")";
    } else if (char === "}" && templates.at(-1) === depth - 1) {
      templates.pop();
      depth -= 1;
      at += 1;
      template();
    } else {
      if (char === "{") depth += 1;
      if (char === "}") depth -= 1;
      if (!/\s/.test(char)) before = (before + char).slice(-12);
      else if (/\w$/.test(before)) before = `${before.slice(-11)} `.trimEnd();
      at += 1;
    }
  }
  return { code: code.join(""), bare: bare.join("") };
}

function regexEnd(source: string, start: number): number {
  let inClass = false;
  for (let at = start + 1; at < source.length; at += 1) {
    const char = source[at];
    if (char === "\\") at += 1;
    else if (char === "[") inClass = true;
    else if (char === "]") inClass = false;
    else if (char === "\n") return at;
    else if (char === "/" && !inClass) return at + 1;
  }
  return source.length;
}

/** Specifiers of static, dynamic and re-exporting imports, in order. */
export function importsOf(code: string): string[] {
  const pattern = /(?:\bfrom|\bimport)\s*\(?\s*(["'])([^"'\n]+)\1/g;
  return [...code.matchAll(pattern)].map((match) => match[2] ?? "");
}
