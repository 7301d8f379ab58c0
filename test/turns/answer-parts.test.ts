import { Database } from "bun:sqlite";
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import type { Attachment } from "../../src/core/ports/model.ts";
import { SCHEMA_VERSION } from "../../src/turns/schema.ts";
import {
  AT,
  admission,
  completeTurn,
  createLedgerFolder,
  type LedgerFolder,
} from "../support/turns-fixture.ts";

let folder: LedgerFolder;
beforeEach(() => {
  folder = createLedgerFolder();
});
afterEach(() => folder.remove());

function rows(sql: string): unknown[] {
  const db = new Database(folder.path, { readonly: true });
  try {
    return db.query(sql).all();
  } finally {
    db.close();
  }
}

const picture: Attachment = {
  kind: "image",
  mediaType: "image/png",
  name: "a.png",
  data: new Uint8Array([0, 1, 2, 255]),
};

describe("the third schema", () => {
  test("is reached from the second with everything kept", async () => {
    const store = await folder.open();
    await completeTurn(store, "t1", "answer t1");
    await store.close();
    const db = new Database(folder.path);
    db.exec("DROP TABLE turn_attachments");
    for (const column of ["usage_complete", "answered_by", "parts"]) {
      db.exec(`ALTER TABLE steps DROP COLUMN ${column}`);
    }
    db.exec("PRAGMA user_version = 2");
    db.close();

    const migrated = await folder.open();
    expect(SCHEMA_VERSION).toBeGreaterThanOrEqual(3);
    expect((await migrated.history("terminal:a", 64)).map(({ content }) => content)).toEqual([
      "question t1",
      "answer t1",
    ]);
    await completeTurn(migrated, "t2", "answer t2", { attachments: [picture] });
    await migrated.close();
  });
});

test("a step keeps who answered, what it cost and the model's own record of it", async () => {
  const store = await folder.open();
  await store.admit(admission("t1"));
  await store.startRun("t1", "r1", AT);
  await store.openStep({ stepId: "s1", runId: "r1", index: 0, model: "a:m", startedAt: AT });
  const parts = [
    { type: "reasoning" as const, text: "thought", vendor: { anthropic: { signature: "S" } } },
    { type: "text" as const, text: "Answer" },
    { type: "tool_call" as const, index: 0 },
  ];
  await store.closeStep("s1", {
    finishedAt: AT,
    text: "Answer",
    toolCalls: [],
    stopReason: "stop",
    inputTokens: 3,
    outputTokens: 4,
    usageComplete: false,
    answeredBy: "b:m",
    parts,
  });
  await store.close();
  const [row] = rows("SELECT model, answered_by, usage_complete, parts FROM steps") as { parts: string }[];
  expect(row).toMatchObject({ model: "a:m", answered_by: "b:m", usage_complete: 0 });
  expect(JSON.parse(row?.parts ?? "")).toEqual(parts);
});

describe("attachments", () => {
  test("are durable with their turn, and their bytes are gone when it ends", async () => {
    const store = await folder.open();
    const text: Attachment = {
      kind: "document",
      mediaType: "text/plain",
      name: "b",
      data: new Uint8Array([65]),
    };
    await store.admit(admission("t1", { attachments: [picture, text] }));
    await store.admit(admission("t2", { attachments: [picture] }));
    await store.close();
    const again = await folder.open();
    expect(await again.attachments("t1")).toEqual([picture, text]);
    await again.startRun("t1", "r1", AT);
    await again.commitTurn({ turnId: "t1", runId: "r1", assistantText: "seen", now: AT });
    await again.endTurn("t2", { status: "cancelled", code: "cancelled", message: "stopped", now: AT });
    expect(await again.attachments("t1")).toEqual([]);
    expect(await again.attachments("t2")).toEqual([]);
    await again.close();
    expect(rows("SELECT count(data) AS kept, count(*) AS n FROM turn_attachments")).toEqual([
      { kept: 0, n: 3 },
    ]);
  });

  test("are part of a request: the same again is a replay, also after the end; others are a conflict", async () => {
    const store = await folder.open();
    const admit = (attachments?: Attachment[]) =>
      store.admit(admission("t1", { turnId: "t9", requestId: "q", ...(attachments && { attachments }) }));
    await store.admit(admission("t1", { requestId: "q", attachments: [picture] }));
    expect(await admit([picture])).toMatchObject({ ok: true, value: { replayed: true } });
    for (const other of [undefined, [], [picture, picture], [{ ...picture, name: "b.png" }]]) {
      expect(await admit(other)).toMatchObject({ ok: false, refusal: { code: "request_conflict" } });
    }
    const changed = [{ ...picture, data: new Uint8Array([0, 1, 2, 254]) }];
    expect(await admit(changed)).toMatchObject({ ok: false, refusal: { code: "request_conflict" } });
    await store.endTurn("t1", { status: "failed", code: "x", message: "x", now: AT });
    expect(await admit([picture])).toMatchObject({ ok: true, value: { replayed: true } });
    await store.close();
  });
});
