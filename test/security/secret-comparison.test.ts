import { expect, test } from "bun:test";
import { join } from "node:path";
import { equalDigests, equalTokens } from "../../src/core/digest.ts";
import { blank } from "../support/tidy-source.ts";

/** No secret is compared by an operator or a search that stops at the first difference. */

const ROOT = join(import.meta.dir, "../..");
const ROOMS = ["http", "continuation", "channels", "host", "mcp", "core", "store", "harness"];

/** A name that holds a secret or a keyed digest of one. Plain content digests and fingerprints are no secrets. */
const SECRET = /(?:token|tokenHash|secret|bearer|mac|apiKey|password|authorization|credential)$/i;
const OPERAND = String.raw`[\w$]+(?:\??\.[\w$]+)*(?:\([^()\n]*\))?`;
const COMPARED = new RegExp(String.raw`(${OPERAND})\s*(?:===|!==|==|!=)\s*(${OPERAND}|"[^"\n]*")`, "g");
const SEARCHED = new RegExp(
  String.raw`(${OPERAND})\??\.(?:startsWith|endsWith|includes|indexOf|localeCompare|match|search)\(\s*(${OPERAND})`,
  "g",
);
/** Whether something is there, or of which type, is no secret. */
const HARMLESS = /^(?:undefined|null|true|false|\d+|""|"(?:string|object|function)")$/;

function leaks(source: string): string[] {
  const { code } = blank(source);
  return [COMPARED, SEARCHED].flatMap((pattern) =>
    [...code.matchAll(pattern)]
      .filter(([, left = "", right = ""]) => {
        if (HARMLESS.test(left) || HARMLESS.test(right)) return false;
        return [left, right].some((side) => SECRET.test(side.replace(/\(.*\)$/, "")));
      })
      .map(([found]) => found),
  );
}

test("no source compares a secret in a way whose time tells how much of it was right", async () => {
  const found: string[] = [];
  let files = 0;
  for (const room of ROOMS) {
    for (const path of new Bun.Glob(`src/${room}/**/*.ts`).scanSync(ROOT)) {
      files += 1;
      for (const leak of leaks(await Bun.file(join(ROOT, path)).text())) found.push(`${path}: ${leak}`);
    }
  }
  expect(found).toEqual([]);
  expect(files).toBeGreaterThan(80);
});

test("each place that takes a credential compares it in constant time", async () => {
  const places = {
    "src/continuation/service.ts": "equalTokens(token, expectedOperatorToken)",
    "src/continuation/claims.ts": "equalTokens(token, expected",
    "src/continuation/results.ts": "equalDigests(sha256Hex(token), record.resultTokenHash)",
    "src/channels/terminal/app.ts": "equalTokens(token.value, deps.token)",
    // A claim token is looked up by its digest: nobody can steer a digest towards another one byte by byte.
    "src/core/derive.ts": "equalDigests(originContextBindingMac(",
    "src/continuation/settle-delivered.ts": "equalDigests(",
    "src/core/digest.ts": "timingSafeEqual(",
  };
  for (const [path, call] of Object.entries(places)) {
    const { code } = blank(await Bun.file(join(ROOT, path)).text());
    expect([path, code.includes(call)]).toEqual([path, true]);
  }
  const { code } = blank(await Bun.file(join(ROOT, "src/continuation/claims.ts")).text());
  expect(code).toContain("capabilities.get(sha256Hex(token))");
});

test("the check finds what it is for, and nothing else", () => {
  for (const bad of [
    "if (token === deps.token) x();",
    "if (deps.token != given) x();",
    "return record.bindingMac !== mac(record);",
    "a.resultTokenHash === sha256Hex(value)",
    "header.startsWith(operatorToken(secret))",
    "tokens.includes(token)",
    'token === "fixed-token"',
  ]) {
    expect([bad, leaks(bad).length]).toEqual([bad, 1]);
  }
  for (const fine of [
    "if (token === undefined) x();",
    'typeof token === "string"',
    'token === ""',
    "secret.length !== SECRET_BYTES",
    "token.ok === true",
    "// token === other",
    "body.payloadHash !== hash",
    "tokenPath === other",
  ]) {
    expect([fine, leaks(fine)]).toEqual([fine, []]);
  }
});

test("equal means equal in every byte and in length", () => {
  expect(equalTokens("abc", "abc")).toBe(true);
  for (const other of ["abd", "ab", "abcd", "", "ABC", "abc\0"])
    expect(equalTokens("abc", other)).toBe(false);
  expect(equalDigests("aa", "a")).toBe(false);
  expect(equalDigests("", "")).toBe(true);
});
