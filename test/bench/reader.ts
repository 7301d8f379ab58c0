import { join } from "node:path";
import type { ReaderReport, ReaderTask } from "./reader-entry.ts";

/** Reads timed by a process of its own, from now on; resolves when its time is over. */
export function readMeanwhile(task: ReaderTask): Promise<ReaderReport> {
  const { promise, resolve, reject } = Promise.withResolvers<ReaderReport>();
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "reader-entry.ts")], {
    stdio: ["ignore", "inherit", "inherit"],
    ipc: (message: unknown) => resolve(message as ReaderReport),
  });
  child.send(task);
  child.exited.then((code) => reject(new Error(`the reader ended: ${code}`)));
  return promise;
}
