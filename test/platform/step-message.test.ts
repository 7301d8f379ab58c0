import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { FileStep } from "../../src/core/ports/platform.ts";
import { decodeDone, decodeSteps, encodeDone, encodeSteps } from "../../src/platform/step-message.ts";
import "../support/seed.ts";

const text = fc.oneof(
  fc.string(),
  fc.string({ unit: "binary" }),
  fc.constantFrom("", "\0", "\n", ",", "1,2\nab", "write"),
);
const label = text;
const path = text;
const mode = fc.nat({ max: 0o7777 });
const bytes = fc.uint8Array({ maxLength: 20 });
const step: fc.Arbitrary<FileStep> = fc.oneof(
  fc.record(
    {
      op: fc.constant("write" as const),
      label,
      path,
      mode,
      sync: fc.boolean(),
      reuse: fc.constantFrom("whole" as const, "start" as const),
      data: fc.oneof(text, bytes),
    },
    { requiredKeys: ["op", "label", "path", "mode", "sync", "data"] },
  ),
  fc.record({ op: fc.constant("syncFiles" as const), label, folder: path, paths: fc.array(path) }),
  fc.record({
    op: fc.constant("rename" as const),
    label,
    from: path,
    to: path,
    swap: fc.boolean(),
    missingOk: fc.boolean(),
  }),
  fc.record({ op: fc.constant("unlink" as const), label, path, missingOk: fc.boolean() }),
  fc.record({ op: fc.constant("mkdir" as const), label, path, mode, existsOk: fc.boolean() }),
  fc.record({ op: fc.constant("chmod" as const), label, path, mode }),
  fc.record({ op: fc.constantFrom("sync" as const, "syncDir" as const, "rmdir" as const), label, path }),
);

describe("messages between the threads", () => {
  test("a list of steps arrives as it was sent, whatever its texts contain", () => {
    fc.assert(
      fc.property(fc.nat(), fc.array(step), (id, steps) => {
        const { text, bytes, shared } = encodeSteps(id, steps);
        expect(decodeSteps(text, bytes, shared)).toEqual({ id, steps });
      }),
      { numRuns: 2_000 },
    );
  });

  test("bytes in shared memory are named, not copied; those of a second memory are", () => {
    const memory = new SharedArrayBuffer(16);
    const other = new SharedArrayBuffer(4);
    new Uint8Array(memory).fill(7);
    new Uint8Array(other).fill(9);
    const write = (data: Uint8Array): FileStep => ({
      op: "write",
      label: "w",
      path: "p",
      mode: 0o600,
      sync: true,
      data,
    });
    const sent = encodeSteps(1, [write(new Uint8Array(memory, 3, 5)), write(new Uint8Array(other))]);
    expect(sent.shared).toBe(memory);
    expect(sent.bytes).toHaveLength(1);
    expect(sent.bytes[0]?.buffer).toBeInstanceOf(ArrayBuffer);
    const [first, second] = decodeSteps(sent.text, sent.bytes, sent.shared).steps;
    if (first?.op !== "write" || second?.op !== "write") throw new Error("two writes were sent");
    expect((first.data as Uint8Array).buffer).toBe(memory);
    expect([(first.data as Uint8Array).byteOffset, first.data.length]).toEqual([3, 5]);
    expect([...(second.data as Uint8Array)]).toEqual([9, 9, 9, 9]);
  });

  test("how a list ended arrives as it was sent", () => {
    expect(decodeDone(encodeDone(7, undefined))).toEqual({ id: 7, failure: undefined });
    const failure = { index: 0, errno: "ENOSPC", cause: new Error("no, space\nleft") };
    const { id, failure: seen } = decodeDone(encodeDone(8, failure));
    expect([id, seen?.index, seen?.errno, String(seen?.cause)]).toEqual([
      8,
      0,
      "ENOSPC",
      "Error: Error: no, space\nleft",
    ]);
  });
});
