import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { utf8Bytes } from "../../src/core/json.ts";
import {
  SNAPSHOT_MAX_BYTES,
  SNAPSHOT_MAX_MESSAGE_BYTES,
  SNAPSHOT_MAX_MESSAGES,
} from "../../src/core/limits.ts";
import {
  buildSnapshot,
  groupTurns,
  type SnapshotMessage,
  snapshotDigest,
  snapshotJson,
  snapshotRef,
  snapshotSchema,
} from "../../src/core/snapshot.ts";

const AT = "2026-11-30T12:00:00.000Z";

function build(history: SnapshotMessage[], texts: { user?: string; assistant?: string } = {}) {
  return buildSnapshot({
    conversationId: "terminal:a",
    originRunId: "run-origin",
    capturedAt: AT,
    history,
    userText: texts.user ?? "question",
    assistantText: texts.assistant ?? "answer",
  });
}

const pairOf = (name: string, content = name): SnapshotMessage[] => [
  { role: "user", content, runId: name },
  { role: "assistant", content, runId: name },
];

/** Sizes from empty to just past the limit of one message, dense where the caps bite. */
const content = fc
  .tuple(
    fc.constantFrom("x", "é", "漢", "😀", "\u0000", '"'),
    fc.oneof(fc.nat(60), fc.nat(9_000), fc.nat(66_000)),
  )
  .map(([unit, count]) => unit.repeat(count));

const turn = (index: number) =>
  fc.oneof(
    fc.tuple(content, content).map(([user, assistant]): SnapshotMessage[] => [
      { role: "user", content: user, runId: `run-${index}` },
      { role: "assistant", content: assistant, runId: `run-${index}` },
    ]),
    fc.tuple(content, content).map(([user, assistant]): SnapshotMessage[] => [
      { role: "user", content: user },
      { role: "assistant", content: assistant },
    ]),
    content.map((text): SnapshotMessage[] => [
      { role: "assistant", content: text, idempotencyKey: `key-${index}` },
    ]),
    fc.array(content, { minLength: 3, maxLength: 5 }).map((all): SnapshotMessage[] =>
      all.map((text, at) => ({
        role: at === 0 ? "user" : "assistant",
        content: text,
        runId: `run-${index}`,
      })),
    ),
  );

const turns = fc
  .nat(45)
  .chain((count) => fc.tuple(...Array.from({ length: count }, (_, index) => turn(index))));

describe("a snapshot of any history", () => {
  test("ends with the origin pair, holds whole turns in order, keeps the caps and cuts no text", () => {
    fc.assert(
      fc.property(turns, content, content, (history, user, assistant) => {
        const flat = history.flat();
        const snapshot = build(flat, { user, assistant });
        const pairFits = [user, assistant].every((text) => utf8Bytes(text) <= SNAPSHOT_MAX_MESSAGE_BYTES);
        if (snapshot === undefined) {
          const pair = build([], { user, assistant });
          expect(pair).toBeUndefined();
          return;
        }
        expect(pairFits).toBe(true);
        expect(snapshotSchema.safeParse(snapshot).success).toBe(true);
        expect(snapshot.messages.length).toBeLessThanOrEqual(SNAPSHOT_MAX_MESSAGES);
        expect(utf8Bytes(snapshotJson(snapshot))).toBeLessThanOrEqual(SNAPSHOT_MAX_BYTES);
        expect(snapshot.messages.slice(-2)).toEqual([
          { role: "user", content: user, runId: "run-origin", timestamp: AT },
          { role: "assistant", content: assistant, runId: "run-origin", timestamp: AT },
        ]);

        const kept = new Set(snapshot.messages);
        const groups = groupTurns(flat);
        for (const group of groups) {
          const inside = group.filter((message) => kept.has(message)).length;
          expect([0, group.length]).toContain(inside);
        }
        expect(snapshot.messages.slice(0, -2)).toEqual(flat.filter((message) => kept.has(message)));

        // What is left out is invalid, or everything older than it is left out too.
        const valid = groups.filter((group) =>
          group.every((message) => utf8Bytes(message.content) <= SNAPSHOT_MAX_MESSAGE_BYTES),
        );
        const present = valid.map((group) => group.every((message) => kept.has(message)));
        expect(present).toEqual(present.toSorted((a, b) => Number(a) - Number(b)));
      }),
      { numRuns: 60 },
    );
  });
});

describe("selection", () => {
  test("31 pairs and the origin pair fill the 64 messages, a 32nd pair is left out whole", () => {
    const history = Array.from({ length: 32 }, (_, index) => pairOf(`run-${index}`)).flat();
    const snapshot = build(history);
    expect(snapshot?.messages).toHaveLength(SNAPSHOT_MAX_MESSAGES);
    expect(snapshot?.messages[0]?.content).toBe("run-1");
  });

  test("a turn that no longer fits ends the selection, although an older, smaller one would fit", () => {
    const single: SnapshotMessage = { role: "assistant", content: "oldest", idempotencyKey: "k" };
    const long: SnapshotMessage[] = Array.from({ length: 3 }, () => ({
      role: "assistant",
      content: "long",
      runId: "r",
    }));
    const history = [
      single,
      ...long,
      ...Array.from({ length: 30 }, (_, index) => pairOf(`run-${index}`)).flat(),
    ];
    expect(build(history)?.messages.map((message) => message.content)).not.toContain("oldest");
    expect(build(history)?.messages).toHaveLength(62);
  });

  test("a turn with one oversized message is dropped whole, and older ones stay", () => {
    const oversized = "x".repeat(SNAPSHOT_MAX_MESSAGE_BYTES + 1);
    const history = [
      ...pairOf("old"),
      { role: "user" as const, content: "ask", runId: "big" },
      { role: "assistant" as const, content: oversized, runId: "big" },
    ];
    expect(build(history)?.messages.map((message) => message.content)).toEqual([
      "old",
      "old",
      "question",
      "answer",
    ]);
  });

  test("an exact 64 KiB message stays, counted in UTF-8", () => {
    const exact = "é".repeat(SNAPSHOT_MAX_MESSAGE_BYTES / 2);
    expect(build(pairOf("run", exact))?.messages).toHaveLength(4);
    expect(build(pairOf("run", `${exact}x`))?.messages).toHaveLength(2);
  });

  test("under 256 KiB of pressure the oldest turns go first", () => {
    const history = Array.from({ length: 6 }, (_, index) =>
      pairOf(`run-${index}`, String(index).repeat(30_000)),
    ).flat();
    const snapshot = build(history);
    expect(snapshot?.messages.map((message) => message.content[0])).toEqual([
      "2",
      "2",
      "3",
      "3",
      "4",
      "4",
      "5",
      "5",
      "q",
      "a",
    ]);
  });

  test("an origin pair that does not fit gives no snapshot", () => {
    expect(build([], { assistant: "x".repeat(SNAPSHOT_MAX_MESSAGE_BYTES + 1) })).toBeUndefined();
    expect(build([], { user: "x".repeat(SNAPSHOT_MAX_MESSAGE_BYTES) })).toBeDefined();
  });
});

test("bytes and digest of the reference belong to the canonical JSON", () => {
  const snapshot = build(pairOf("run-1"));
  if (snapshot === undefined) throw new Error("no snapshot");
  const json = snapshotJson(snapshot);
  expect(snapshotRef(snapshot, json)).toEqual({
    schemaVersion: 1,
    digest: snapshotDigest(json),
    bytes: utf8Bytes(json),
    messageCount: 4,
  });
  expect(snapshotJson(JSON.parse(json))).toBe(json);
});
