import {
  chmodSync,
  closeSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { sha256Joined } from "../../core/digest.ts";
import { fileJson } from "../../core/json.ts";

/**
 * What this service must not forget: one owner-only file for each piece of delegated work, so that two processes
 * of it never overwrite each other's work. It is written before anything is said or sent that depends on it.
 */
export const workSchema = z.object({
  taskKey: z.string(),
  taskHash: z.string(),
  /** Names the run, conversation and server that the claim is bound to. */
  fingerprint: z.string(),
  task: z.string(),
  createdAt: z.string(),
  deadline: z.string(),
  /** Present once the host has accepted the claim. */
  claim: z
    .object({
      continuationId: z.string(),
      resultUrl: z.url(),
      statusUrl: z.url(),
      token: z.string(),
    })
    .optional(),
  /** Written before it is first sent; from then on it is the only result that is ever sent. */
  result: z.object({ idempotencyKey: z.string(), payload: z.json() }).optional(),
  submittedAt: z.string().optional(),
});
export type Work = z.infer<typeof workSchema>;

export interface WorkFiles {
  /** The same run asking for the same task again finds its file. */
  find(fingerprint: string, taskKey: string): Work | undefined;
  /** Newest first. */
  list(): Work[];
  /** Returns once the file and its name are on disk. */
  save(work: Work): void;
}

export function openWorkFiles(stateDir: string): WorkFiles {
  mkdirSync(stateDir, { recursive: true, mode: 0o700 });
  chmodSync(stateDir, 0o700);
  const pathOf = (fingerprint: string, taskKey: string) =>
    join(stateDir, `${sha256Joined(fingerprint, taskKey)}.json`);
  const read = (path: string): Work | undefined => {
    try {
      return workSchema.parse(JSON.parse(readFileSync(path, "utf8")));
    } catch (error) {
      if (error instanceof Error && "code" in error && error.code === "ENOENT") return undefined;
      throw new Error(`${path} is not a work file`, { cause: error });
    }
  };
  return {
    find: (fingerprint, taskKey) => read(pathOf(fingerprint, taskKey)),
    list: () =>
      readdirSync(stateDir)
        .filter((name) => name.endsWith(".json"))
        .flatMap((name) => read(join(stateDir, name)) ?? [])
        .sort((a, b) => (a.createdAt < b.createdAt ? 1 : -1)),
    save(work) {
      const path = pathOf(work.fingerprint, work.taskKey);
      const temporary = `${path}.${process.pid}.tmp`;
      const file = openSync(temporary, "w", 0o600);
      try {
        writeFileSync(file, fileJson(work));
        fsyncSync(file);
      } finally {
        closeSync(file);
      }
      renameSync(temporary, path);
      syncFolder(stateDir);
    },
  };
}

/** Makes a new name in the folder survive a power cut. Windows has no such call. */
function syncFolder(path: string): void {
  if (process.platform === "win32") return;
  const folder = openSync(path, "r");
  try {
    fsyncSync(folder);
  } finally {
    closeSync(folder);
  }
}
