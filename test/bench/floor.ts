import { closeSync, fsyncSync, mkdtempSync, openSync, renameSync, rmSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createLoadClient, percentiles } from "./http-load.ts";
import type { Row } from "./report.ts";

/** What this machine could do at best: a bare hono answer through the same client, and bare durable writes. */
export async function floors(): Promise<Row[]> {
  return [await helloWorld(1), await helloWorld(32), ...durableWrites()];
}

const SECONDS = 2;

async function helloWorld(c: number): Promise<Row> {
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "floor-entry.ts")], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const { value } = await child.stdout.getReader().read();
  const client = await createLoadClient(Number(new TextDecoder().decode(value)), c);
  const durations: number[] = [];
  const end = performance.now() + SECONDS * 1000;
  await Promise.all(
    Array.from({ length: c }, async (_, connection) => {
      while (performance.now() < end) {
        const at = performance.now();
        await client.send(connection, "POST", "/", "", '{"hello":"world"}');
        durations.push(performance.now() - at);
      }
    }),
  );
  client.close();
  child.kill();
  await child.exited;
  return { c, what: "floor: hono hello", perSecond: durations.length / SECONDS, ...percentiles(durations) };
}

function durableWrites(): Row[] {
  const folder = mkdtempSync(join(process.env.BENCH_DIR ?? tmpdir(), "mono-agent-floor-"));
  const directory = openSync(folder, "r");
  const log = openSync(join(folder, "log"), "w");
  const line = Buffer.alloc(4096, 65);
  let counter = 0;
  const measure = (what: string, write: () => void): Row => {
    const durations: number[] = [];
    const end = performance.now() + SECONDS * 1000;
    while (performance.now() < end) {
      const at = performance.now();
      write();
      durations.push(performance.now() - at);
    }
    return { c: 1, what: `floor: ${what}`, perSecond: durations.length / SECONDS, ...percentiles(durations) };
  };
  const replace = (size: number) => () => {
    counter += 1;
    const temporary = join(folder, `.${counter}.tmp`);
    const file = openSync(temporary, "wx", 0o600);
    writeSync(file, Buffer.alloc(size, 65));
    fsyncSync(file);
    closeSync(file);
    renameSync(temporary, join(folder, "file"));
    fsyncSync(directory);
  };
  try {
    return [
      measure("append + fsync", () => {
        writeSync(log, line);
        fsyncSync(log);
      }),
      measure("replace 2 KiB durably", replace(2048)),
      measure("replace 256 KiB durably", replace(256 * 1024)),
    ];
  } finally {
    closeSync(directory);
    closeSync(log);
    rmSync(folder, { recursive: true });
  }
}
