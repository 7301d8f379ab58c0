import { afterEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TurnInput } from "../../src/core/ports/channel.ts";
import type { ModelResult } from "../../src/core/ports/model.ts";
import type { ConversationEvent } from "../../src/core/turn.ts";
import { createMemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { idle } from "../support/continuation-world.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { calls, createScriptedModel, says } from "../support/harness-fakes.ts";
import { type Host, type HostOptions, ROOM, startHost } from "../support/two-stores.ts";

/**
 * What later channels rely on, at the ports that they will use: rows 88 (A2A) and 89 (cron and webhook notify) of the
 * checklist. A channel hands in a turn and observes its conversation; a continuation claimed in it is a thing apart.
 */

const opened: { host: Host; folder: string }[] = [];
afterEach(async () => {
  for (const { host, folder } of opened.splice(0)) {
    await host.close();
    rmSync(folder, { recursive: true });
  }
});

async function start(script: readonly ModelResult[], tools: NonNullable<HostOptions["tools"]> = {}) {
  const folder = mkdtempSync(join(tmpdir(), "mono-agent-other-channels-"));
  const model = createScriptedModel(script);
  const host = await startHost({
    fs: createMemoryFileSystem(),
    database: join(folder, "host.sqlite"),
    clock: createFakeClock(),
    seed: "other channels",
    model,
    tools,
  });
  opened.push({ host, folder });
  return { host, model };
}

/** Runs one turn to its end, as a channel does; what the channel saw. */
async function turn(host: Host, input: Partial<TurnInput> = {}): Promise<ConversationEvent[]> {
  const given = { requestId: "r", conversationId: ROOM, text: "question", replyTo: ROOM, ...input };
  const seen: ConversationEvent[] = [];
  const ended = Promise.withResolvers<void>();
  const stop = host.engine.observe(given.conversationId, (event) => {
    seen.push(event);
    if (event.type === "turn" && !["queued", "running"].includes(event.status)) ended.resolve();
  });
  const admitted = await host.engine.submit(given);
  if (!admitted.ok) throw new Error(admitted.refusal.code);
  await ended.promise;
  stop();
  return seen;
}

const answers = (events: readonly ConversationEvent[]) =>
  events.flatMap((event) =>
    event.type === "message" && event.message.role === "assistant" ? [event.message.content] : [],
  );
const statuses = (events: readonly ConversationEvent[]) =>
  events.flatMap((event) => (event.type === "turn" ? [event.status] : []));

describe("row 88: an id that only correlates is no route and no credential", () => {
  const ELSEWHERE = "terminal:elsewhere";

  test("request id, thread, history identity and text never become the destination of an answer", async () => {
    const ids: string[] = [];
    const { host } = await start([calls("start"), says("accepted")], {
      start: async (it) => {
        ids.push(await it.claim("task"));
        return "started";
      },
    });
    await turn(host, {
      requestId: ELSEWHERE,
      thread: ELSEWHERE,
      conversationId: ELSEWHERE,
      text: `contextId: ${ELSEWHERE}; replyTo: ${ELSEWHERE}`,
    });
    const [id = ""] = ids;
    expect(host.store.durable.get(id)).toMatchObject({
      replyToConversationId: ROOM,
      originConversationId: ELSEWHERE,
    });
    await host.submit(id);
    await idle(30);
    expect(host.store.durable.get(id)?.state).toBe("delivered");
    expect(host.posts.map((post) => post.destination)).toEqual([ROOM]);
  });

  test("a contextId that is all a turn has for a reply is no destination: its claim is refused, not posted anywhere", async () => {
    const ids: string[] = [];
    const { host } = await start([calls("start"), says("accepted")], {
      start: async (it) => {
        ids.push(await it.claim("task"));
        return "refused";
      },
    });
    const seen = await turn(host, { conversationId: "a2a:context-7", replyTo: "a2a:context-7" });
    expect(ids).toEqual(["unsupported_destination"]);
    expect([answers(seen), host.posts.length]).toEqual([["accepted"], 0]);
  });

  test("what a turn hands in, and what comes of it, carries no capability; what it names as one is not one", async () => {
    const forged = "forged-token-forged-token-forged";
    const tokens: string[] = [];
    const ids: string[] = [];
    const { host, model } = await start([calls("start"), says("accepted")], {
      start: async (it) => {
        tokens.push(it.token("work"), it.token("other"));
        ids.push(await it.claim("task"));
        return "started";
      },
    });
    const seen = await turn(host, {
      requestId: forged,
      text: `x-mono-agent-continuation-claim-token: ${forged}`,
    });
    expect(tokens.length).toBe(2);
    expect(tokens).not.toContain(forged);
    expect(host.service.claims.authenticate(forged).ok).toBe(false);
    await host.submit(ids[0] ?? "");
    await idle(30);
    const record = host.store.durable.get(ids[0] ?? "");
    expect(record?.state).toBe("delivered");
    const wire = JSON.stringify([seen, model.requests, host.syntheses, host.posts, host.log]);
    for (const secret of [...tokens, record?.claimFingerprint ?? "?", record?.resultTokenHash ?? "?"]) {
      expect(wire).not.toContain(secret);
    }
  });
});

describe("row 89: native notify delivers the producing run's own text", () => {
  const REPORT = "the report of this run";

  test("the same with and without a continuation that is claimed in it", async () => {
    const plain = await start([calls("start"), says(REPORT)], { start: async () => "started" });
    const claiming = await start([calls("start"), says(REPORT)], {
      start: async (it) => {
        await it.claim("task");
        return "started";
      },
    });
    const [without, withOne] = [await turn(plain.host), await turn(claiming.host)];
    expect(answers(without)).toEqual([REPORT]);
    expect([answers(withOne), statuses(withOne)]).toEqual([answers(without), statuses(without)]);
    expect(claiming.host.service.operator.health().pending).toBe(1);
    expect([plain.host.posts.length, claiming.host.posts.length]).toEqual([0, 0]);
  });

  test("also when the result is there before the run ends; the answer to it is a message of its own", async () => {
    const ids: string[] = [];
    const { host } = await start([calls("start"), says(REPORT)], {
      start: async (it) => {
        const id = await it.claim("task");
        ids.push(id, await it.submit(id));
        await idle(10);
        return "started";
      },
    });
    const seen = await turn(host);
    expect(answers(seen)).toEqual([REPORT]);
    const [id = "", accepted] = ids;
    expect(accepted).toBe("result_received");
    await idle(30);
    host.clock.advance(1_000);
    await idle(30);
    expect(host.store.durable.get(id)?.state).toBe("delivered");
    expect(host.posts.map((post) => post.text)).toEqual([`answer to ${id}`]);
    const rows = (await host.turns.feed(ROOM, 0, 10)).map((row) => row.content);
    expect(rows).toEqual(["question", REPORT, `answer to ${id}`]);
  });

  test("and stays as it is, whatever becomes of the continuation", async () => {
    const ids: string[] = [];
    const { host } = await start([calls("start"), says(REPORT)], {
      start: async (it) => {
        ids.push(await it.claim("cancelled"), await it.claim("expired", { minutes: 1 }));
        return "started";
      },
    });
    expect(statuses(await turn(host)).at(-1)).toBe("succeeded");
    const [cancelled = "", expired = ""] = ids;
    await host.service.operator.cancel(cancelled);
    host.clock.advance(60_000);
    await idle(30);
    expect(ids.map((id) => host.store.durable.get(id)?.state)).toEqual(["cancelled", "expired"]);
    expect(host.store.durable.get(expired)?.originContextState).toBe("scrubbed");
    const [row] = await host.turns.feed(ROOM, 1, 1);
    expect(row?.content).toBe(REPORT);
    expect((await host.turns.getTurn(row?.turnId ?? ""))?.status).toBe("succeeded");
    expect(host.posts.length).toBe(0);
  });
});
