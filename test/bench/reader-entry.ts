import { createLoadClient, percentiles } from "./http-load.ts";

/**
 * Times reads while somebody else makes load, in a process of its own: beside some hundred busy connections they would
 * wait for the answers of these to be read, and that wait is not the server's.
 */

export interface ReaderTask {
  readonly port: number;
  readonly forMs: number;
  /** A continuation and its result token. */
  readonly continuationId: string;
  readonly token: string;
}

export interface ReaderReport {
  readonly status: Percentiles;
  readonly wrongToken: Percentiles;
}

type Percentiles = ReturnType<typeof percentiles>;

/** Between two pairs of reads. */
const PAUSE_MS = 5;

process.on("message", async ({ port, forMs, continuationId, token }: ReaderTask) => {
  const client = await createLoadClient(port, 1);
  const path = `/v1/continuations/${continuationId}`;
  const timed = async (expected: number, method: string, route: string, bearer: string, body?: string) => {
    const at = performance.now();
    const headers = `authorization: Bearer ${bearer}\r\n`;
    const response = await client.send(0, method, `${path}/${route}`, headers, body);
    if (response.status !== expected) throw new Error(`${route}: ${response.status} ${response.body}`);
    return performance.now() - at;
  };
  const status: number[] = [];
  const wrongToken: number[] = [];
  const end = performance.now() + forMs;
  while (performance.now() < end) {
    status.push(await timed(200, "GET", "status", token));
    wrongToken.push(await timed(401, "PUT", "result", "wrong", "{}"));
    await Bun.sleep(PAUSE_MS);
  }
  client.close();
  const report: ReaderReport = { status: percentiles(status), wrongToken: percentiles(wrongToken) };
  process.send?.(report);
  process.exit(0);
});
