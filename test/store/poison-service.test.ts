import { describe, expect, test } from "bun:test";
import { healthLines } from "../../src/cli/continuations/print.ts";
import { operatorToken } from "../../src/core/derive.ts";
import { diskRemedy } from "../../src/core/disk-remedy.ts";
import { healthSchema } from "../../src/core/wire.ts";
import { createContinuationApp } from "../../src/http/continuation-app.ts";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import {
  claimBody,
  createWorld,
  idle,
  snapshotOf,
  tokenOf,
  type World,
} from "../support/continuation-world.ts";
import { silentLogger } from "../support/silent-logger.ts";

/** What services and operators see over HTTP: of a store that can't be written, and of writes that are not needed. */

const SERVICE = { services: { svc: "service-token" }, routes: { quiet: { mode: "silent" as const } } };

/** The members of any answer that these tests look at. */
interface Answer {
  readonly continuationId: string;
  readonly token: string;
  readonly state?: string;
  readonly replayed?: boolean;
  readonly error: { code: string; message: string };
  readonly continuations: unknown[];
}

async function setup() {
  const fs = createMemoryFileSystem();
  const world = await createWorld({ ...SERVICE, fs });
  return { fs, world, ...clientOf(world) };
}

function clientOf(world: World) {
  const app = createContinuationApp({
    service: world.service,
    bound: { host: "127.0.0.1", port: 4319 },
    clock: world.clock,
    logger: silentLogger,
    watchers: new Set(),
  });
  const send = async (method: string, path: string, token: string, body?: unknown) => {
    const response = await app.fetch(
      new Request(`http://127.0.0.1:4319${path}`, {
        method,
        headers: {
          host: "127.0.0.1:4319",
          authorization: `Bearer ${token}`,
          "x-mono-agent-service-name": "svc",
        },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      }),
    );
    const json: Answer = JSON.parse(await response.text());
    return { status: response.status, headers: response.headers, json };
  };
  // A repeated claim is the same request, deadline included, however late it comes.
  const { deadline } = claimBody(world);
  const claim = (taskKey: string) =>
    send("POST", "/v1/continuations/detached/claim", "service-token", {
      ...claimBody(world, { taskKey, deadline }),
      route: "quiet",
    });
  const status = (answer: { continuationId: string; token: string }) =>
    send("GET", `/v1/continuations/${answer.continuationId}/status`, answer.token);
  const health = async () => {
    const answer = await send("GET", "/v1/operator/health", operatorToken(world.store.secret));
    return healthSchema.parse(answer.json);
  };
  return { send, claim, status, health };
}

function failTransactions(fs: MemoryFileSystem, errno: string): void {
  fs.failWhen((operation) => (operation.label === "transaction.write" ? errno : undefined));
}

describe("a store that can't be written", () => {
  for (const errno of ["ENOSPC", "EIO", "EROFS", "EMFILE"]) {
    test(`${errno}: everybody is told to come back after a restart, reads go on, and health says so`, async () => {
      const { fs, world, send, claim, status, health } = await setup();
      const kept = (await claim("kept")).json;
      expect((await health()).status).toBe("degraded");
      failTransactions(fs, errno);
      const waiting = await Promise.all([claim("a"), claim("b"), claim("c")]);
      const result = { idempotencyKey: "i", payload: { done: true } };
      const later = [
        await claim("d"),
        // Asked for again: head knows the claim, but it never became durable.
        await claim("a"),
        await send("PUT", `/v1/continuations/${kept.continuationId}/result`, kept.token, result),
        await send(
          "POST",
          `/v1/operator/continuations/${kept.continuationId}/cancel`,
          operatorToken(world.store.secret),
          {},
        ),
      ];
      for (const answer of [...waiting, ...later]) {
        expect([answer.status, answer.json.error.code]).toEqual([503, "store_poisoned"]);
        expect(answer.headers.get("retry-after")).toBe("5");
        expect(answer.json.error.message).toContain("needs a restart");
        expect(answer.json.error.message).toContain("nothing acknowledged is lost");
      }

      // What is durable can still be read, and a replayed claim that was acknowledged gets its answer again.
      expect(await status(kept)).toMatchObject({ status: 200, json: { state: "claimed" } });
      expect((await claim("kept")).json).toEqual({ ...kept, replayed: true });
      const poisoned = await health();
      expect(poisoned).toMatchObject({ status: "unhealthy", pending: 1 });
      expect(poisoned.storage.records).toBe(1);
      expect(poisoned.storage.fault).toEqual({ code: errno, since: expect.any(String) });
      const printed = healthLines(poisoned);
      expect(printed).toContain(errno);
      expect(printed).toContain(`: ${diskRemedy(errno)} first; the store needs a restart`);
      expect(printed).toContain("nothing acknowledged is lost");
      expect(await world.service.processDue(10)).toBe(0);
      await world.service.stop();
      await world.store.close();

      fs.failWhen();
      const again = await createWorld({ ...SERVICE, fs });
      const client = clientOf(again);
      expect((await client.health()).storage.fault).toBeUndefined();
      expect((await client.claim("kept")).json).toEqual({ ...kept, replayed: true });
      expect((await client.claim("a")).json.replayed).toBeUndefined();
      await again.store.close();
    });
  }

  test("a result whose commit fails is neither synthesized nor posted, and is accepted after the restart", async () => {
    const fs = createMemoryFileSystem();
    const world = await createWorld({ fs });
    const answer = await world.claimed();
    failTransactions(fs, "ENOSPC");
    await world.submit(answer).catch(() => {});
    await world.settle();
    expect(world.syntheses).toEqual([]);
    expect(world.record(answer.continuationId).state).toBe("claimed");
    fs.failWhen();
    const again = await world.restart();
    expect(await again.submit(answer)).toBe("result_received");
    await again.settle();
    expect(again.record(answer.continuationId).state).toBe("delivered");
    expect(again.posts).toHaveLength(1);
  });

  test("a snapshot that can't be written fails its turn and nothing else, and leaves nothing behind", async () => {
    for (const errno of ["ENOSPC", "EIO", "EROFS", "EMFILE"]) {
      for (const label of ["snapshot.write", "snapshot.rename", "snapshot.sync"]) {
        for (const kind of ["create", "data", "sync", "rename", "syncDir"]) {
          const fs = createMemoryFileSystem();
          const world = await createWorld({ fs });
          const claims = world.run();
          const ticket = world.service.claims.authenticate(tokenOf(claims));
          if (!ticket.ok) throw new Error("refused");
          const claimed = await ticket.value.claim(claimBody(world));
          if (!claimed.ok) throw new Error("refused");
          await claims.release();
          let failed = false;
          fs.failWhen((operation) => {
            const fails = operation.label === label && operation.kind === kind;
            failed ||= fails;
            return fails ? errno : undefined;
          });
          const before = Object.keys(fs.files()).sort();
          const outcomes = [];
          for (let time = 0; time < 3; time += 1) {
            outcomes.push(
              await claims.finalize(snapshotOf("run-1", world.clock.now())).then(
                () => "bound",
                (error: { code: string }) => error.code,
              ),
            );
          }
          if (!failed) continue;
          expect(outcomes).toEqual(Array(3).fill("store_write_failed"));
          expect(world.store.fault()).toBeUndefined();
          await idle();
          expect(Object.keys(fs.files()).sort()).toEqual(before);
          await claims.abandon();
          expect(world.record(claimed.value.continuationId).originContextState).toBe("abandoned");
          fs.failWhen();
          await world.claimed("next");
        }
      }
    }
  });
});

describe("what changes nothing", () => {
  test("writes nothing: replayed and refused claims, repeated and refused results, status, health, lists, no-op decisions", async () => {
    const { fs, world, send, claim, status, health } = await setup();
    const operator = operatorToken(world.store.secret);
    const kept = (await claim("kept")).json;
    const result = { idempotencyKey: "i", payload: { done: true } };
    const path = `/v1/continuations/${kept.continuationId}`;
    expect((await send("PUT", `${path}/result`, kept.token, result)).status).toBe(202);
    await world.settle();
    await idle();
    world.clock.advance(2000);
    await idle();
    const before = { ...fs.counts };
    const codes = [];
    for (let time = 0; time < 3; time += 1) {
      codes.push(
        (await claim("kept")).status,
        (
          await send("POST", "/v1/continuations/detached/claim", "wrong", {
            ...claimBody(world),
            route: "quiet",
          })
        ).status,
        (
          await send("POST", "/v1/continuations/detached/claim", "service-token", {
            ...claimBody(world, { taskKey: "kept", taskHash: "another" }),
            route: "quiet",
          })
        ).status,
        (
          await send("POST", "/v1/continuations/detached/claim", "service-token", {
            ...claimBody(world),
            route: "unknown",
          })
        ).status,
        (await send("PUT", `${path}/result`, kept.token, result)).status,
        (await send("PUT", `${path}/result`, kept.token, { ...result, payload: 2 })).status,
        (await send("PUT", `${path}/result`, "wrong", result)).status,
        (await status(kept)).status,
        (await health()).storage.records,
        (await send("GET", "/v1/operator/continuations", operator)).status,
        (await send("GET", `/v1/operator/continuations/${kept.continuationId}`, operator)).status,
        (await send("POST", `/v1/operator/continuations/${kept.continuationId}/cancel`, operator, {})).status,
        (await send("POST", `/v1/operator/continuations/${kept.continuationId}/retry`, operator, {})).status,
      );
      await world.settle();
      world.clock.advance(2000);
      await idle();
    }
    expect(new Set(codes)).toContain(409);
    expect(codes.slice(0, 8)).toEqual([200, 401, 409, 403, 202, 409, 401, 200]);
    expect(fs.counts).toEqual(before);
  });
});

describe("reads", () => {
  test("wait for no unrelated write: with a commit held, status, health, lists and replays answer", async () => {
    const { fs, world, send, claim, status, health } = await setup();
    const operator = operatorToken(world.store.secret);
    const kept = (await claim("kept")).json;
    const gate = Promise.withResolvers<void>();
    fs.holdWhen((step) => (step.label === "transaction.write" ? gate.promise : undefined));
    const held = claim("held");
    await idle();
    expect(await status(kept)).toMatchObject({ status: 200, json: { state: "claimed" } });
    expect((await claim("kept")).json.replayed).toBe(true);
    expect((await health()).storage.records).toBe(1);
    const list = await send("GET", "/v1/operator/continuations", operator);
    expect(list.json.continuations).toHaveLength(1);
    expect((await send("PUT", `/v1/continuations/${kept.continuationId}/result`, "wrong", {})).status).toBe(
      401,
    );
    let answered = false;
    void held.then(() => {
      answered = true;
    });
    await idle();
    expect(answered).toBe(false);
    gate.resolve();
    expect((await held).status).toBe(200);
  });
});
