import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createContinuations } from "../../src/host/embedded-continuations.ts";
import { openStore } from "../../src/host/embedded-store.ts";
import { freePort } from "../support/binary.ts";
import { createLoadClient, type LoadClient, percentiles } from "./http-load.ts";
import { benchFolder, SERVICE_TOKEN } from "./server.ts";

/**
 * `bun run bench service [--json] [--quick] [--n=0,50000] [--c=1,32]`: what a person waits for. Through real HTTP and
 * a real disk: from the PUT of a result to the start of the model call, and from the durable text to the start of the
 * post; and complete lifecycles of a notification. The model and the channel answer at once. Prints figures.
 */

interface Row {
  readonly n: number;
  readonly c: number;
  readonly what: "put to model" | "text to post" | "lifecycle";
  readonly perSecond?: number;
  readonly p50: number;
  readonly p99: number;
}

const SERVICE_HEADERS = `authorization: Bearer ${SERVICE_TOKEN}\r\nx-mono-agent-service-name: bench\r\n`;

export async function bench(args: readonly string[]): Promise<void> {
  const json = args.includes("--json");
  const quick = args.includes("--quick");
  const list = (name: string, fallback: number[]) =>
    args
      .find((arg) => arg.startsWith(`--${name}=`))
      ?.split("=")[1]
      ?.split(",")
      .map(Number) ?? fallback;
  const durationMs = quick ? 3_000 : 10_000;
  if (!json) console.log("     n    c what              ops/s    p50 ms    p99 ms");
  for (const n of list("n", [0, 50_000])) {
    for (const c of list("c", [1, 32])) {
      for (const row of await measure(n, c, durationMs)) print(row, json);
    }
  }
}

async function measure(n: number, c: number, durationMs: number): Promise<Row[]> {
  const folder = n === 0 ? undefined : benchFolder(n);
  const path = folder?.path ?? mkdtempSync(join(tmpdir(), "mono-agent-bench-"));
  const port = freePort();
  const store = await openStore({ stateDir: join(path, ".mono-agent/continuations") });
  const putAt = new Map<string, number>();
  const textAt = new Map<string, number>();
  const done = new Map<string, () => void>();
  const toModel: number[] = [];
  const toPost: number[] = [];
  const note = (from: Map<string, number>, id: string, into: number[]) => {
    const at = from.get(id);
    if (at !== undefined) into.push(performance.now() - at);
    from.delete(id);
  };
  store.onDurable((changed) => {
    const now = performance.now();
    for (const id of changed) {
      const state = store.durable.get(id)?.state;
      if (state === "ready_to_deliver" && !textAt.has(id)) textAt.set(id, now);
      if (state === "delivered") done.get(id)?.();
    }
  });
  const limit = 1_000_000;
  const continuations = await createContinuations({
    state: { store },
    listen: { port },
    limits: { maxActiveRecords: limit, maxActivePerOrigin: limit, maxConcurrent: 64 },
    namedRoutes: { notify: { mode: "notify_if_actionable", conversationId: "room:1" } },
    detachedServices: { bench: SERVICE_TOKEN },
    synthesize: async ({ continuationId }) => {
      note(putAt, continuationId, toModel);
      return "an answer";
    },
    supports: () => "supported",
    deliver: async ({ deliveryKey }) => {
      note(textAt, deliveryKey.slice("continuation:".length), toPost);
      return { kind: "delivered", parts: [{ id: "p" }] };
    },
    recordHistory: async () => ({ recorded: true }),
  });
  await continuations.start();
  const client = await createLoadClient(port, c);
  const whole: number[] = [];
  const begun = performance.now();
  let counter = 0;
  const lifecycle = async (connection: number) => {
    const at = performance.now();
    counter += 1;
    const { continuationId, token } = await claim(client, connection, `${n}-${c}-${counter}`);
    const end = Promise.withResolvers<void>();
    done.set(continuationId, end.resolve);
    putAt.set(continuationId, performance.now());
    const put = await client.send(
      connection,
      "PUT",
      `/v1/continuations/${continuationId}/result`,
      `authorization: Bearer ${token}\r\n`,
      '{"idempotencyKey":"k","payload":{"summary":"measured"}}',
    );
    if (put.status !== 202) throw new Error(`result: ${put.status} ${put.body}`);
    await end.promise;
    done.delete(continuationId);
    whole.push(performance.now() - at);
  };
  await Promise.all(
    Array.from({ length: c }, async (_, connection) => {
      while (performance.now() - begun < durationMs) await lifecycle(connection);
    }),
  );
  const seconds = (performance.now() - begun) / 1000;
  client.close();
  await continuations.stop();
  await store.close();
  folder?.remove();
  rmSync(path, { recursive: true, force: true });
  const row = (what: Row["what"], durations: number[]): Row => ({ n, c, what, ...percentiles(durations) });
  return [
    row("put to model", toModel),
    row("text to post", toPost),
    { ...row("lifecycle", whole), perSecond: whole.length / seconds },
  ];
}

async function claim(client: LoadClient, connection: number, taskKey: string) {
  const deadline = new Date(Date.now() + 86_400_000).toISOString();
  const body = JSON.stringify({ route: "notify", taskKey, taskHash: "h", deadline });
  const response = await client.send(
    connection,
    "POST",
    "/v1/continuations/detached/claim",
    SERVICE_HEADERS,
    body,
  );
  if (response.status !== 200) throw new Error(`claim: ${response.status} ${response.body}`);
  return JSON.parse(response.body) as { continuationId: string; token: string };
}

function print(row: Row, json: boolean): void {
  if (json) {
    console.log(JSON.stringify(row));
    return;
  }
  const cell = (value: number | undefined, digits: number) =>
    (value === undefined ? "" : value.toFixed(digits)).padStart(9);
  console.log(
    `${String(row.n).padStart(6)} ${String(row.c).padStart(4)} ${row.what.padEnd(13)} ${cell(row.perSecond, 0)} ${cell(row.p50, 2)} ${cell(row.p99, 2)}`,
  );
}
