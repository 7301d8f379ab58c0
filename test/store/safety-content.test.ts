import { describe, expect, test } from "bun:test";
import { readFileSync, writeFileSync } from "node:fs";
import { fileJson } from "../../src/core/json.ts";
import { GENERATION_MAX_BYTES } from "../../src/core/limits.ts";
import {
  type FileKind,
  FULL_IDS,
  openReal,
  refusalOf,
  tree,
  writeFullDirectory,
} from "../support/store-directory.ts";
import { claim, recordsOf, withFolder } from "../support/store-harness.ts";

/** JSON files with every kind of wrong content: refused with the path, and nothing is changed. */

type JsonKind = "manifest" | "transaction" | "record" | "marker";
const KINDS: readonly JsonKind[] = ["manifest", "transaction", "record", "marker"];

const bytes = (text: string) => Buffer.from(text, "utf8");
const nested = (levels: number) => `${"[".repeat(levels)}${"]".repeat(levels)}`;
/** Adds raw text as the first member of the object. */
const withMember = (text: string, member: string) => `{${member},${text.slice(text.indexOf("{") + 1)}`;

const WRONG: Record<string, (text: string) => Uint8Array> = {
  "invalid UTF-8": (text) => Buffer.concat([bytes(text), Buffer.from([0xff])]),
  "invalid UTF-8 inside a text": (text) => {
    const data = bytes(text);
    data[data.indexOf('Z"')] = 0xff;
    return data;
  },
  "a lone surrogate in UTF-8": (text) => Buffer.concat([Buffer.from([0xed, 0xa0, 0x80]), bytes(text)]),
  "a byte order mark": (text) => bytes(`\ufeff${text}`),
  "a null byte at its end": (text) => bytes(`${text}\0`),
  "two values": (text) => bytes(`${text}${text}`),
  "nothing but a number": () => bytes("1e400"),
  "null alone": () => bytes("null"),
  "an empty array": () => bytes("[]"),
  "an empty object": () => bytes("{}"),
  "arrays 10,000 deep": () => bytes(nested(10_000)),
  "open arrays up to its size": (text) => bytes("[".repeat(Math.max(text.length, 60_000))),
  "its members in __proto__": (text) => bytes(`{"__proto__":${text}}`),
};

describe("a JSON file", () => {
  for (const kind of KINDS) {
    for (const [what, spoil] of Object.entries(WRONG)) {
      test(`${kind} with ${what} is refused`, () =>
        withFolder(async (stateDir) => {
          const { files } = await writeFullDirectory(stateDir);
          writeFileSync(files[kind], spoil(readFileSync(files[kind], "utf8")));
          const before = tree(stateDir);
          const error = await refusalOf(openReal(stateDir));
          expect(error.code).toBe("store_corrupt");
          expect(error.message).toContain(files[kind]);
          if (what.includes("UTF-8")) expect(error.message).toContain("UTF-8");
          expect(error.message.length).toBeLessThan(files[kind].length + 300);
          expect(tree(stateDir)).toEqual(before);
        }));
    }
  }
});

/** One member of each file with a value that its schema must refuse. */
const NUMBERS: readonly (readonly [FileKind, string])[] = [
  ["record", "synthesisAttempts"],
  ["record", "deliveryAttempts"],
  ["marker", "memberCount"],
  ["manifest", "schemaVersion"],
  ["transaction", "schemaVersion"],
];
describe("a number", () => {
  for (const [kind, member] of NUMBERS) {
    for (const value of ["1e400", "-1", "1.5", "9007199254740993", '"3"', "null", "[]"]) {
      test(`${kind}.${member} = ${value} is refused`, () =>
        withFolder(async (stateDir) => {
          const { files } = await writeFullDirectory(stateDir);
          const file = files[kind];
          const text = readFileSync(file, "utf8");
          const changed = text.replace(new RegExp(`"${member}": \\d+`), `"${member}": ${value}`);
          expect(changed).not.toBe(text);
          writeFileSync(file, changed);
          const before = tree(stateDir);
          const error = await refusalOf(openReal(stateDir));
          expect(error.code).toBe("store_corrupt");
          expect(error.message).toContain(file);
          expect(tree(stateDir)).toEqual(before);
        }));
    }
  }
});

describe("a generation identifier", () => {
  const generations = {
    [`of ${GENERATION_MAX_BYTES} bytes`]: ["ü".repeat(GENERATION_MAX_BYTES / 2), true],
    [`of ${GENERATION_MAX_BYTES + 1} bytes`]: [`${"ü".repeat(GENERATION_MAX_BYTES / 2)}x`, false],
    "that is empty": ["", false],
  } as const;
  for (const kind of ["manifest", "transaction"] as const) {
    for (const [what, [generation, accepted]] of Object.entries(generations)) {
      test(`${what} in a ${kind} is ${accepted ? "read" : "refused"}`, () =>
        withFolder(async (stateDir) => {
          const { files } = await writeFullDirectory(stateDir);
          const value = JSON.parse(readFileSync(files[kind], "utf8"));
          writeFileSync(files[kind], fileJson({ ...value, generation }));
          if (accepted) {
            await (await openReal(stateDir)).close();
            return;
          }
          const before = tree(stateDir);
          const error = await refusalOf(openReal(stateDir));
          expect(error.message).toContain(files[kind]);
          expect(error.message).toContain("generation");
          expect(tree(stateDir)).toEqual(before);
        }));
    }
  }
});

describe("content that JSON allows", () => {
  test("a key that stands twice counts by its last value, as the older runtime reads it", () =>
    withFolder(async (stateDir) => {
      const { files } = await writeFullDirectory(stateDir);
      const text = readFileSync(files.record, "utf8");
      writeFileSync(files.record, withMember(text, '"state": "nonsense", "taskHash": "first"'));
      const store = await openReal(stateDir);
      expect(recordsOf(store).kept).toMatchObject({ state: "claimed", taskHash: claim("kept").taskHash });
      await store.close();
    }));

  test("a key that stands twice with a wrong last value is refused", () =>
    withFolder(async (stateDir) => {
      const { files } = await writeFullDirectory(stateDir);
      const text = readFileSync(files.record, "utf8");
      writeFileSync(files.record, text.replace(/\n}\n$/, ',"state": "nonsense"}'));
      expect((await refusalOf(openReal(stateDir))).message).toContain(files.record);
    }));

  // A value that fits the file but not the stack, where the schema keeps unknown keys.
  const deep: Record<JsonKind, [levels: number, within: (text: string, member: string) => string]> = {
    record: [10_000, withMember],
    transaction: [1_000_000, withMember],
    marker: [20_000, withMember],
    manifest: [
      300_000,
      (text, member) => text.replace('"format": "per-record-v3",', `"format": "per-record-v3", ${member},`),
    ],
  };
  for (const kind of KINDS) {
    test(`${kind} with an unknown key nested ${deep[kind][0]} deep is read or refused, but never by a crash`, () =>
      withFolder(async (stateDir) => {
        const { files } = await writeFullDirectory(stateDir);
        const [levels, within] = deep[kind];
        writeFileSync(files[kind], within(readFileSync(files[kind], "utf8"), `"x": ${nested(levels)}`));
        const before = tree(stateDir);
        const outcome = await openReal(stateDir).then(
          async (store) => {
            expect(Object.keys(recordsOf(store))).toEqual(FULL_IDS);
            await store.close();
            return undefined;
          },
          (error: Error & { code?: string }) => error,
        );
        // A record is kept with its unknown keys, so it must be one that can be written again.
        if (kind === "record") expect(outcome?.code).toBe("store_corrupt");
        if (outcome === undefined) return;
        expect(outcome.code).toBe("store_corrupt");
        expect(outcome.message).toContain(files[kind]);
        expect(tree(stateDir)).toEqual(before);
      }));
  }

  test("__proto__ and integer-like keys, huge numbers and -0 in a payload survive as JSON can carry them", () =>
    withFolder(async (stateDir) => {
      const { files } = await writeFullDirectory(stateDir);
      const text = readFileSync(files.record, "utf8");
      const payload = '{"b":[1e400,-0,12345678901234567890],"10":1,"9":{"__proto__":{"a":2}},"a":1e-400}';
      writeFileSync(
        files.record,
        withMember(text, `"note": ${payload}, "__proto__": {"state": "delivered"}`),
      );
      for (let opening = 0; opening < 2; opening += 1) {
        const store = await openReal(stateDir);
        const { kept } = recordsOf(store);
        expect(kept?.state).toBe("claimed");
        expect(JSON.stringify(kept?.note)).toBe(JSON.stringify(JSON.parse(payload)));
        const record = store.head.get("kept");
        if (record === undefined) throw new Error("not there");
        await store.commit({ puts: [{ ...record }] });
        await store.close();
        expect(readFileSync(files.record, "utf8")).toContain('"__proto__": {\n    "state": "delivered"');
      }
    }));
});
