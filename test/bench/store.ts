import type { ClaimAnswer } from "../../src/core/wire.ts";
import { type Deliveries, watchDeliveries } from "./deliveries.ts";
import { floors } from "./floor.ts";
import { createLoadClient, type LoadClient, percentiles } from "./http-load.ts";
import { readMeanwhile } from "./reader.ts";
import type { ReaderReport } from "./reader-entry.ts";
import { type Facts, type Row, tablePrinter } from "./report.ts";
import { type BenchFolder, type BenchServer, benchFolder, SERVICE_TOKEN } from "./server.ts";

/**
 * `bun run bench store [--json] [--quick] [--n=0,50000] [--c=1,32] [--what=claim,silent]`: the store through real
 * HTTP, for several numbers of tombstones already stored and several concurrencies. Each measurement has a fresh
 * folder and a fresh host. Prints figures; asserts nothing.
 */

const SERVICE_HEADERS = `authorization: Bearer ${SERVICE_TOKEN}\r\nx-mono-agent-service-name: bench\r\n`;
const deadline = new Date(Date.now() + 86_400_000).toISOString();

interface Options {
  readonly json: boolean;
  readonly sizes: number[];
  readonly concurrencies: number[];
  readonly what: string[];
  readonly burstMs: number;
  /** How long complete lifecycles are held at concurrency 32. */
  readonly holdMs: number;
}

export async function bench(args: readonly string[]): Promise<void> {
  const options = parse(args);
  const { row, facts } = tablePrinter(options.json);
  if (options.what.includes("floor")) for (const floor of await floors()) row(floor);
  const folders: BenchFolder[] = [];
  try {
    for (const n of options.sizes) {
      const folder = benchFolder(n);
      folders.push(folder);
      facts(await startFacts(folder, n));
      for (const c of options.concurrencies) {
        for (const what of options.what) {
          const run = WORK[what];
          if (run === undefined) continue;
          // Never one that an earlier measurement has filled; removed at the end, as deleting slows the disk down.
          const fresh = benchFolder(n);
          folders.push(fresh);
          const server = await fresh.start();
          try {
            for (const measured of await run({ server, port: fresh.port, n, c, options })) row(measured);
          } finally {
            await server.stop();
          }
        }
      }
    }
  } finally {
    for (const folder of folders) folder.remove();
  }
}

function parse(args: readonly string[]): Options {
  const quick = args.includes("--quick");
  const given = (name: string) =>
    args
      .find((arg) => arg.startsWith(`--${name}=`))
      ?.split("=")[1]
      ?.split(",");
  const numbers = (name: string, fallback: number[]) => given(name)?.map(Number) ?? fallback;
  return {
    json: args.includes("--json"),
    sizes: numbers("n", quick ? [0, 50_000] : [0, 1_000, 10_000, 50_000]),
    concurrencies: numbers("c", quick ? [1, 32] : [1, 32, 256]),
    what: given("what") ?? ["floor", ...Object.keys(WORK)],
    burstMs: (numbers("burst", [quick ? 3 : 10])[0] ?? 0) * 1000,
    holdMs: (numbers("hold", [quick ? 8 : 60])[0] ?? 0) * 1000,
  };
}

/** The first start reads cold or as the cache happens to be; the second reads what the first has left there. */
async function startFacts(folder: BenchFolder, n: number): Promise<Facts> {
  await (await folder.start()).stop();
  const server = await folder.start();
  await Bun.sleep(1_000);
  const before = await server.report();
  const idleMs = 5_000;
  await Bun.sleep(idleMs);
  const after = await server.report();
  await server.stop();
  return {
    n,
    startMs: server.startMs,
    idleResidentMb: after.residentBytes / 1e6,
    idleCpu: (after.cpuMs - before.cpuMs) / idleMs,
    bytesPerTombstone: folder.bytesPerTombstone,
  };
}

interface Work {
  readonly server: BenchServer;
  readonly port: number;
  readonly n: number;
  readonly c: number;
  readonly options: Options;
}

const WORK: Record<string, (work: Work) => Promise<Row[]>> = {
  claim: (work) =>
    withClient(work, async (client) => [
      await measure(work, "claim", work.options.burstMs, (at) => claim(client, at, "silent")),
    ]),
  /** Requests that write nothing. */
  reads: (work) =>
    withClient(work, async (client) => {
      const request = claimRequest("silent");
      const warm = await claim(client, 0, "silent", request);
      const read = (what: string, operation: (at: number) => Promise<unknown>) =>
        measure(work, what, work.options.burstMs / 5, operation);
      return [
        await read("replayed claim", (at) => claim(client, at, "silent", request)),
        await read("wrong token", (at) => wrongToken(client, at, warm)),
        await read("status", (at) => status(client, at, warm)),
      ];
    }),
  silent: (work) => lifecycles(work, "silent", work.c === 32 ? work.options.holdMs : work.options.burstMs),
  capture: (work) => lifecycles(work, "capture", work.options.burstMs),
};

/** Complete lifecycles, and reads that are timed meanwhile. */
function lifecycles(work: Work, route: string, durationMs: number): Promise<Row[]> {
  return withClient(work, async (client) => {
    const { continuationId, token } = await claim(client, 0, route);
    const deliveries = await watchDeliveries(work.server);
    const reading = readMeanwhile({ port: work.port, forMs: durationMs, continuationId, token });
    const row = await measure(work, `lifecycle ${route}`, durationMs, (at) =>
      lifecycle(client, deliveries, at, route),
    );
    const read = await reading;
    await deliveries.close();
    const under = (what: string, measured: ReaderReport["status"]): Row => ({
      n: work.n,
      c: work.c,
      what: `  ${what} meanwhile`,
      ...measured,
    });
    return [row, under("status", read.status), under("wrong token", read.wrongToken)];
  });
}

async function withClient(work: Work, use: (client: LoadClient) => Promise<Row[]>): Promise<Row[]> {
  const client = await createLoadClient(work.port, work.c);
  try {
    return await use(client);
  } finally {
    client.close();
  }
}

async function measure(
  { server, n, c }: Work,
  what: string,
  durationMs: number,
  operation: (connection: number) => Promise<unknown>,
): Promise<Row> {
  server.watchStalls();
  await warmUp(c, operation);
  const before = await server.report();
  const durations: number[] = [];
  const halves = [0, 0];
  const begun = performance.now();
  const end = begun + durationMs;
  await Promise.all(
    Array.from({ length: c }, async (_, connection) => {
      for (let now = performance.now(); now < end; ) {
        const at = now;
        await operation(connection);
        now = performance.now();
        durations.push(now - at);
        halves[now - begun < durationMs / 2 ? 0 : 1]! += 1;
      }
    }),
  );
  const seconds = (performance.now() - begun) / 1000;
  const after = await server.report();
  const per = (key: "fsyncs" | "renames" | "bytes") => (after[key] - before[key]) / durations.length;
  return {
    n,
    c,
    what,
    perSecond: durations.length / seconds,
    ...percentiles(durations),
    laterHalf: halves[1]! / Math.max(1, halves[0]!),
    fsyncsPerOp: per("fsyncs"),
    renamesPerOp: per("renames"),
    bytesPerOp: per("bytes"),
    peakResidentMb: after.peakResidentBytes / 1e6,
    cpuUsPerOp: ((after.cpuMs - before.cpuMs) * 1000) / durations.length,
    stallMs: after.longestStallMs,
  };
}

/** So that compiling the code is not measured. */
async function warmUp(c: number, operation: (connection: number) => Promise<unknown>): Promise<void> {
  const end = performance.now() + 500;
  await Promise.all(
    Array.from({ length: c }, async (_, connection) => {
      while (performance.now() < end) await operation(connection);
    }),
  );
}

const run = `${Date.now()}`;
let counter = 0;

function claimRequest(route: string): string {
  counter += 1;
  return JSON.stringify({ route, taskKey: `${run}-${counter}`, taskHash: "h", deadline });
}

async function claim(client: LoadClient, connection: number, route: string, body = claimRequest(route)) {
  const path = "/v1/continuations/detached/claim";
  const response = await client.send(connection, "POST", path, SERVICE_HEADERS, body);
  if (response.status !== 200) throw new Error(`claim: ${response.status} ${response.body}`);
  return JSON.parse(response.body) as ClaimAnswer;
}

async function status(client: LoadClient, connection: number, { continuationId, token }: ClaimAnswer) {
  const path = `/v1/continuations/${continuationId}/status`;
  const response = await client.send(connection, "GET", path, `authorization: Bearer ${token}\r\n`);
  if (response.status !== 200) throw new Error(`status: ${response.status} ${response.body}`);
  return response.body;
}

async function wrongToken(client: LoadClient, connection: number, { continuationId }: ClaimAnswer) {
  const path = `/v1/continuations/${continuationId}/result`;
  const response = await client.send(connection, "PUT", path, "authorization: Bearer wrong\r\n", "{}");
  if (response.status !== 401) throw new Error(`wrong token: ${response.status} ${response.body}`);
}

/** Claim, result, and the news that it is delivered. */
async function lifecycle(
  client: LoadClient,
  deliveries: Deliveries,
  connection: number,
  route: string,
): Promise<void> {
  const claimed = await claim(client, connection, route);
  const put = await client.send(
    connection,
    "PUT",
    `/v1/continuations/${claimed.continuationId}/result`,
    `authorization: Bearer ${claimed.token}\r\n`,
    '{"idempotencyKey":"k","payload":{"summary":"measured"}}',
  );
  if (put.status !== 202) throw new Error(`result: ${put.status} ${put.body}`);
  await deliveries.of(claimed.continuationId);
}
