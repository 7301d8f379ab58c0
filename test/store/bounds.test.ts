import { describe, expect, test } from "bun:test";
import { payloadHash } from "../../src/core/derive.ts";
import { fileJson, type JsonValue, utf8Bytes } from "../../src/core/json.ts";
import {
  MARKER_MAX_BYTES,
  RECORD_MAX_BYTES,
  RECORD_RESERVE_BYTES,
  SNAPSHOT_MAX_BYTES,
  SNAPSHOT_MAX_MESSAGE_BYTES,
  SNAPSHOT_MAX_MESSAGES,
  SYNTHESIS_TEXT_MAX_CHARS,
} from "../../src/core/limits.ts";
import { type ContinuationRecord, recordFileName } from "../../src/core/record.ts";
import type { OriginSnapshot } from "../../src/core/snapshot.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { activationMarker } from "../../src/store/activation.ts";
import {
  claimThrough,
  commitRun,
  createWorld,
  idle,
  tokenOf,
  tryClaim,
} from "../support/continuation-world.ts";
import { NOW } from "../support/records.ts";
import { claim, openStore, recordsOf, STATE_DIR, snapshotOf } from "../support/store-harness.ts";

/** What is bounded, at its bound and one byte beyond. */

const recordPath = (id: string) => `${STATE_DIR}/records-v3/${recordFileName(id)}`;

function codeOf(act: () => unknown): string | undefined {
  try {
    act();
    return undefined;
  } catch (error) {
    return (error as { code?: string }).code;
  }
}

/** A record of exactly `bytes` in its indented form, with a payload of many levels. */
function recordOf(bytes: number, payload: JsonValue): ContinuationRecord {
  const record = claim("sized", { state: "result_received", resultPayload: payload, filler: "" });
  return { ...record, filler: "x".repeat(bytes - utf8Bytes(fileJson(record))) };
}
const nested = (levels: number): JsonValue => {
  let value: JsonValue = {};
  for (let level = 0; level < levels; level += 1) value = { a: [value] };
  return value;
};

describe("a record", () => {
  for (const [what, payload] of Object.entries<JsonValue>({
    flat: "ü",
    "nested 500 deep": nested(250),
    "of many members": Array.from({ length: 5000 }, (_, index) => ({ [index]: null })),
  })) {
    test(`${what} of exactly 2 MiB indented is stored and read again, and one byte more is refused`, async () => {
      const fs = createMemoryFileSystem();
      const store = await openStore({ fs });
      const record = recordOf(RECORD_MAX_BYTES, payload);
      await store.commit({ puts: [record] });
      expect(codeOf(() => store.commit({ puts: [recordOf(RECORD_MAX_BYTES + 1, payload)] }))).toBe(
        "record_too_large",
      );
      await store.close();
      expect(utf8Bytes(fs.files()[recordPath("sized")] ?? "")).toBe(RECORD_MAX_BYTES);
      const again = await openStore({ fs });
      expect(again.durable.get("sized")).toEqual(record);
      await again.close();
      fs.seed(recordPath("sized"), fileJson(recordOf(RECORD_MAX_BYTES + 1, payload)));
      await expect(openStore({ fs })).rejects.toMatchObject({
        message: expect.stringContaining(recordPath("sized")),
      });
    });
  }

  test("a small file whose indented form passes 2 MiB is refused with its path", async () => {
    const fs = createMemoryFileSystem();
    await (await openStore({ fs })).close();
    const text = JSON.stringify(recordOf(1200, "x")).replace('"x"', `${"[".repeat(1500)}${"]".repeat(1500)}`);
    expect(text.length).toBeLessThan(5_000);
    fs.seed(recordPath("sized"), text);
    await expect(openStore({ fs })).rejects.toMatchObject({
      code: "store_corrupt",
      message: expect.stringContaining(recordPath("sized")),
    });
  });
});

describe("a result that does not fit", () => {
  test("is refused before the commit, alone: all that wait with it are accepted, and it can come smaller", async () => {
    const world = await createWorld();
    const answers = await Promise.all(["a", "b", "c"].map((task) => world.claimed(task)));
    const [a, b, c] = answers;
    if (a === undefined || b === undefined || c === undefined) throw new Error("not there");
    // 120 KB as they are sent, as deep as a body may be.
    const chain = JSON.parse(`${"[".repeat(250)}${"]".repeat(250)}`);
    const deep = Array.from({ length: 240 }, () => chain);
    expect(JSON.stringify(deep).length).toBeLessThan(125_000);
    const states = await Promise.all([world.submit(a), world.submit(b, deep), world.submit(c)]);
    expect(states).toEqual(["result_received", "record_too_large", "result_received"]);
    expect(world.store.fault()).toBeUndefined();
    expect(world.record(b.continuationId).state).toBe("claimed");
    expect(await world.submit(b)).toBe("result_received");
    await world.settle();
    expect(answers.map(({ continuationId }) => world.record(continuationId).state)).toEqual(
      Array(3).fill("delivered"),
    );
  });

  test("the largest one that is accepted leaves room for every way to go on, also with the longest text", async () => {
    const outcomes = [
      "delivered",
      "unknown",
      "permanent",
      "retryable",
      "too long to tell",
      "no model",
      "expired",
    ];
    for (const what of outcomes) {
      const world = await createWorld();
      const answer = await world.claimed();
      // Found by size: the reserve is what an accepted record keeps free.
      const record = world.record(answer.continuationId);
      const sized = (levels: number, tail: number): JsonValue => [nested(levels), "x".repeat(tail)];
      const room = RECORD_MAX_BYTES - RECORD_RESERVE_BYTES;
      const bytes = (payload: JsonValue) =>
        utf8Bytes(
          fileJson({
            ...record,
            state: "result_received",
            resultIdempotencyKey: "result-key",
            resultPayloadHash: payloadHash(payload),
            resultPayload: payload,
            nextAttemptAt: NOW,
            timeline: [...(record.timeline ?? []), { at: NOW, what: "result_received" }],
          }),
        );
      let payload = sized(480, 0);
      payload = sized(480, room - bytes(payload));
      expect(await world.submit(answer, sized(480, room - bytes(sized(480, 0)) + 1))).toBe(
        "record_too_large",
      );
      expect(await world.submit(answer, payload)).toBe("result_received");
      world.script.synthesize = async () => {
        if (what === "no model") throw new Error("x".repeat(100_000));
        return "\u{fffd}".repeat(SYNTHESIS_TEXT_MAX_CHARS);
      };
      const code = "c".repeat(128);
      const reason = "\u0001".repeat(50_000);
      world.script.deliver = async () => {
        if (what === "unknown") return { kind: "unknown", code, reason };
        if (what === "permanent") return { kind: "permanent", code, reason };
        if (what === "retryable") return { kind: "retryable", code, reason };
        if (what === "too long to tell") throw new Error(reason);
        return { kind: "delivered", parts: [{ id: "p" }], channelId: "test" };
      };
      if (what === "expired") world.clock.advance(7_200_000);
      for (let time = 0; time < 25; time += 1) {
        await world.settle();
        world.clock.advance(3_600_000);
      }
      expect(world.store.fault()).toBeUndefined();
      expect([what, world.record(answer.continuationId).state]).not.toEqual([what, "result_received"]);
      const again = await world.restart();
      expect(again.record(answer.continuationId).state).toBe(world.record(answer.continuationId).state);
    }
  }, 20_000);
});

describe("a terminal record", () => {
  /** Every field of a claim as large as the wire takes it, and control characters that JSON writes in six bytes. */
  const WIDE = "\u0001".repeat(256);

  for (const [what, taskKey, bound] of [
    ["a plain continuation", "task", 3_000],
    ["the widest one that the wire takes", WIDE, 16_000],
  ] as const) {
    test(`of ${what} has at most ${bound} bytes on disk, whatever payload and text it had`, async () => {
      for (const end of ["delivered", "cancelled", "expired"] as const) {
        const fs = createMemoryFileSystem();
        const world = await createWorld({ fs });
        const runId = "run-1";
        const claims = world.run({ originRunId: runId, conversationId: "test:room" });
        const answer = await claimThrough(world, tokenOf(claims), { taskKey, taskHash: taskKey });
        await claims.release();
        await commitRun(world, claims, runId);
        await world.submit(answer, { text: "x".repeat(200_000) });
        world.script.synthesize = async () => "y".repeat(SYNTHESIS_TEXT_MAX_CHARS);
        if (end === "delivered") await world.settle();
        if (end === "expired") {
          world.clock.advance(7_200_000);
          await world.settle();
        }
        if (end === "cancelled") await world.service.operator.cancel(answer.continuationId);
        expect(world.record(answer.continuationId).state).toBe(end);
        await world.service.stop();
        await world.store.close();
        const text = fs.files()[recordPath(answer.continuationId)] ?? "";
        expect(utf8Bytes(text)).toBeGreaterThan(500);
        expect(utf8Bytes(text)).toBeLessThan(bound);
        expect(Object.keys(fs.files()).filter((path) => path.includes("origin-context-v1/"))).toEqual([]);
      }
    });
  }

  test("a commit writes the same whether 0 or 3,000 of them are stored", async () => {
    const costs = [];
    for (const tombstones of [0, 3_000]) {
      const fs = createMemoryFileSystem();
      const setUp = await openStore({ fs });
      const puts = Array.from({ length: tombstones }, (_, index) =>
        claim(`t-${index}`, { state: "delivered", compactedAt: NOW }),
      );
      await setUp.commit({ puts: [claim("first"), ...puts] });
      await setUp.close();
      const world = await createWorld({ fs, seed: "cost" });
      const before = { ...fs.counts };
      for (let time = 0; time < 20; time += 1) {
        const answer = await world.claimed(`task-${time}`);
        await world.submit(answer);
        await world.settle();
      }
      await idle();
      const { operations, fsyncs, renames, bytes } = fs.counts;
      costs.push({
        operations: operations - before.operations,
        fsyncs: fsyncs - before.fsyncs,
        renames: renames - before.renames,
        bytes: bytes - before.bytes,
      });
    }
    expect(costs[1]).toEqual(costs[0]);
  });
});

describe("a snapshot", () => {
  const withMessages = (count: number, content: string): OriginSnapshot => {
    const base = snapshotOf();
    const filler = Array.from({ length: count - base.messages.length }, () => ({
      role: "user" as const,
      content,
    }));
    return { ...base, messages: [...filler, ...base.messages] };
  };
  const sized = (bytes: number): OriginSnapshot => {
    const base = withMessages(6, "");
    const missing = bytes - Buffer.byteLength(JSON.stringify(base));
    const parts = [0, 1, 2, 3].map((part) => Math.floor((missing + part) / 4));
    const messages = base.messages.map((message, index) =>
      index < 4 ? { ...message, content: "x".repeat(parts[index] ?? 0) } : message,
    );
    return { ...base, messages };
  };
  const cases: [what: string, snapshot: OriginSnapshot, fits: boolean][] = [
    [`${SNAPSHOT_MAX_MESSAGES} messages`, withMessages(SNAPSHOT_MAX_MESSAGES, "x"), true],
    [`${SNAPSHOT_MAX_MESSAGES + 1} messages`, withMessages(SNAPSHOT_MAX_MESSAGES + 1, "x"), false],
    ["a message of 64 KiB", withMessages(3, "ü".repeat(SNAPSHOT_MAX_MESSAGE_BYTES / 2)), true],
    [
      "a message of 64 KiB and a byte",
      withMessages(3, `${"ü".repeat(SNAPSHOT_MAX_MESSAGE_BYTES / 2)}x`),
      false,
    ],
    ["256 KiB in all", sized(SNAPSHOT_MAX_BYTES), true],
    ["256 KiB and a byte in all", sized(SNAPSHOT_MAX_BYTES + 1), false],
  ];
  for (const [what, snapshot, fits] of cases) {
    test(`with ${what} is ${fits ? "stored and reads back" : "refused"}`, async () => {
      const fs = createMemoryFileSystem();
      const store = await openStore({ fs });
      const stored = await store.snapshots.put(snapshot);
      if (!fits) {
        expect(stored).toMatchObject({ ok: false, refusal: { code: "snapshot_invalid" } });
        return;
      }
      if (!stored.ok) throw new Error(stored.refusal.message);
      const { ref } = stored.value;
      if (what.startsWith("256")) expect(ref.bytes).toBe(SNAPSHOT_MAX_BYTES);
      expect(store.snapshots.read(ref)).toEqual({ ok: true, snapshot });
      await store.close();
    });
  }
});

describe("a marker", () => {
  test("of the largest group that claims can make stays far below its limit", () => {
    const wide = "\u0001".repeat(2_048);
    const group = {
      originRunId: wide.slice(0, 512),
      originConversationId: wide,
      historyBoundary: wide.slice(0, 512),
    };
    const ids = Array.from({ length: 10_000 }, (_, index) => `c-${index}`);
    const text = fileJson(activationMarker(group, "d".repeat(64), ids, NOW));
    expect(utf8Bytes(text)).toBeLessThan(MARKER_MAX_BYTES);
  });
});

describe("the secret", () => {
  test("is whole or absent whenever the power goes while a new directory is made", async () => {
    const SECRET = `${STATE_DIR}/continuation-secret`;
    const rehearsal = createMemoryFileSystem();
    await (await openStore({ fs: rehearsal, seed: "power" })).close();
    let states = 0;
    for (let number = 1; number <= rehearsal.counts.operations + 1; number += 1) {
      const fs = createMemoryFileSystem();
      fs.cutAt(number);
      await openStore({ fs, seed: "power" }).then(
        (store) => store.close(),
        () => {},
      );
      const changes = fs.unsynced().length;
      for (let survivors = 0; survivors < 2 ** Math.min(changes, 8); survivors += 1) {
        for (const torn of [false, true]) {
          const disk = fs.afterPowerCut((change, index) => {
            if ((survivors & (1 << index)) === 0) return false;
            return torn && change.kind === "data" ? "torn" : true;
          });
          const found = disk.files()[SECRET];
          if (found !== undefined) expect(found).toMatch(/^[A-Za-z0-9_-]{43}\n$/);
          const store = await openStore({ fs: disk });
          expect(recordsOf(store)).toEqual({});
          await store.commit({ puts: [claim("a")] });
          await store.close();
          states += 1;
        }
      }
    }
    expect(states).toBeGreaterThan(30);
  });
});

test("a claim over the limit of its origin is refused and writes nothing", async () => {
  const fs = createMemoryFileSystem();
  const world = await createWorld({ fs, limits: { maxActivePerOrigin: 1 } });
  const token = tokenOf(world.run());
  await claimThrough(world, token);
  await idle();
  const before = { ...fs.counts };
  for (const taskKey of ["b", "c"]) {
    expect(await tryClaim(world, token, { taskKey })).toMatchObject({
      ok: false,
      refusal: { code: "active_origin_limit" },
    });
  }
  await idle();
  expect(fs.counts).toEqual(before);
});
