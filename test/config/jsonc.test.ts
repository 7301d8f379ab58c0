import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { JsoncError, parseJsonc } from "../../src/config/jsonc.ts";

describe("jsonc", () => {
  test("comments and trailing commas are left out, and strings that look like them are kept", () => {
    const text = `// head
    { "url": "http://x//y", /* in
      between */ "list": [1, 2,], "text": "/* no */ \\" // no",
    } // tail`;
    expect(parseJsonc(text)).toEqual({ url: "http://x//y", list: [1, 2], text: '/* no */ " // no' });
  });

  test("reads every JSON value as JSON.parse does", () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.boolean(), (value, indented) => {
        const text = JSON.stringify(value, null, indented ? 2 : undefined);
        expect(parseJsonc(text)).toEqual(JSON.parse(text));
      }),
    );
  });

  test("never throws anything but its own error, and accepts no text that JSON would not after stripping", () => {
    const alphabet = fc.constantFrom(
      "{",
      "}",
      "[",
      "]",
      ",",
      ":",
      '"',
      "\\",
      "/",
      "*",
      "1",
      "-",
      "e",
      "true",
      " ",
      "\n",
      "a",
    );
    fc.assert(
      fc.property(fc.array(alphabet, { maxLength: 24 }), (parts) => {
        const text = parts.join("");
        try {
          const value = parseJsonc(text);
          if (!text.includes("/") && !/,\s*[}\]]/.test(text)) expect(value).toEqual(JSON.parse(text));
        } catch (error) {
          expect(error).toBeInstanceOf(JsoncError);
        }
      }),
      { numRuns: 2000 },
    );
  });

  test.each([
    ["", "line 1, column 1: the text ends where a value is expected"],
    ['{"a": 1\n  "b": 2}', 'line 2, column 3: expected "," or "}"'],
    ['{"a": 1} x', "line 1, column 10: something follows the value"],
    ['{"a": 1, "a": 2}', 'line 1, column 10: the key "a" is there twice'],
    ['{"a": /* b', "line 1, column 7: a comment that is never closed"],
    ['{"a": tru}', "line 1, column 7: expected a value"],
    ['{"a": 01}', 'line 1, column 8: expected "," or "}"'],
    ["{a: 1}", "line 1, column 2: expected a string"],
    ['["a\\x"]', "line 1, column 2: a string with a raw control character or an unknown escape"],
    ["[,]", "line 1, column 2: expected a value"],
    ['"open', "line 1, column 1: a string that is never closed"],
  ])("refuses %p", (text, message) => {
    expect(() => parseJsonc(text)).toThrow(new JsoncError(message));
  });

  test("a value deeper than 64 levels is refused instead of exhausting the stack", () => {
    expect(() => parseJsonc("[".repeat(100_000))).toThrow("more than 64 levels");
  });

  test("__proto__ is an ordinary key", () => {
    const value = parseJsonc('{"__proto__": {"polluted": true}}');
    expect(Object.keys(value as object)).toEqual(["__proto__"]);
    expect("polluted" in (value as object)).toBe(false);
  });
});
