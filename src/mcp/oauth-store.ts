import { join } from "node:path";
import { z } from "zod";
import { McpError } from "../core/errors.ts";
import { HOST_ENTRIES } from "../core/host-files.ts";
import { fileJson } from "../core/json.ts";
import { KIB, SECOND_MS } from "../core/limits.ts";
import { readOwnerOnlyText } from "../core/owner-only.ts";
import type { Clock, FileSystem, OwnershipLock } from "../core/ports/platform.ts";
import { replaceSteps } from "../core/secure-files.ts";

/**
 * Owns: the owner-only file of one server's login: the client that was registered, and its tokens.
 *
 * I1. The file is written whole, synced and renamed into place; a file that others could read or write is refused.
 * I2. A login belongs to one URL: when the entry in mcp.json names another, nothing of it is used.
 * I3. Nothing is kept in memory: a login or a refresh by another process counts at once.
 * I4. Of all processes one refreshes at a time: an authorization server that rotates refresh tokens may end the login
 *     when the same one comes twice.
 */

export const LOGIN_FOLDER = HOST_ENTRIES.logins;
const FILE_MAX_BYTES = 64 * KIB;
/** A refresh by another process ends sooner (`REFRESH_TIMEOUT_MS`). */
export const LOCK_WAIT_MS = 35 * SECOND_MS;
export const LOCK_RETRY_MS = 100;

// Loose: what the authorization server gave is kept and sent back unchanged.
const clientSchema = z.looseObject({ client_id: z.string(), client_secret: z.string().optional() });
const tokensSchema = z.looseObject({
  access_token: z.string(),
  token_type: z.string(),
  refresh_token: z.string().optional(),
});
const loginSchema = z.strictObject({
  schemaVersion: z.literal(1),
  serverUrl: z.string(),
  redirectUrl: z.string(),
  client: clientSchema,
  tokens: tokensSchema.optional(),
});
export type Login = Omit<z.output<typeof loginSchema>, "schemaVersion" | "serverUrl">;

export interface OAuthStore {
  readonly server: string;
  readonly serverUrl: string;
  /** Where the login is kept. */
  readonly path: string;
  /** The login, or undefined when nobody logged in to this URL. Throws `McpError` when the file can't be trusted. */
  read(): Login | undefined;
  write(login: Login): void;
  /**
   * Runs `work` unless it is under way in this process already; then waits for that. No other process runs its own
   * meanwhile. Rejects when another one does not end.
   */
  once<T>(work: () => Promise<T>): Promise<T | undefined>;
}

export interface OAuthStoreOptions {
  readonly fs: FileSystem;
  /** The host's state directory. */
  readonly stateDir: string;
  readonly server: string;
  readonly serverUrl: string;
  /** Takes the lock at a path; undefined while somebody else, of this or another process, holds it. */
  readonly lock: (path: string) => OwnershipLock | undefined;
  readonly clock: Clock;
}

export function createOAuthStore(options: OAuthStoreOptions): OAuthStore {
  const { fs, stateDir, server, serverUrl, lock, clock } = options;
  const folder = join(stateDir, LOGIN_FOLDER);
  const path = join(folder, `${server}.json`);
  const lockPath = join(folder, `${server}.lock`);
  let underWay: Promise<unknown> | undefined;

  const unsafe = (problem: string) =>
    new McpError("store_unsafe_file", `${path} ${problem}; delete it and log in again`);

  const locked = async <T>(work: () => Promise<T>): Promise<T> => {
    const giveUpAt = clock.now() + LOCK_WAIT_MS;
    let held = lock(lockPath);
    while (held === undefined) {
      if (clock.now() >= giveUpAt)
        throw new McpError("mcp_failed", "its login is being refreshed by another process without an end");
      const again = Promise.withResolvers<void>();
      clock.timer(LOCK_RETRY_MS, again.resolve);
      await again.promise;
      held = lock(lockPath);
    }
    try {
      return await work();
    } finally {
      held.release();
    }
  };

  return {
    server,
    serverUrl,
    path,
    read() {
      const found = readOwnerOnlyText(fs, path, FILE_MAX_BYTES, "mcp-login.read");
      if (found === undefined) return undefined;
      if (found.kind === "unsafe") throw unsafe(found.problem);
      if (found.kind === "too_big") throw unsafe("is too big for a login");
      const parsed = loginSchema.safeParse(jsonOf(found.text));
      if (!parsed.success) throw unsafe("does not hold a login");
      const { schemaVersion: _, serverUrl: own, ...login } = parsed.data;
      return own === serverUrl ? login : undefined;
    },
    write(login) {
      const temporary = join(folder, `.${server}.tmp`);
      const data = fileJson({ schemaVersion: 1, serverUrl, ...login });
      fs.runSync([
        { op: "mkdir", path: stateDir, mode: 0o700, existsOk: true, label: "mcp-login.state" },
        { op: "mkdir", path: folder, mode: 0o700, existsOk: true, label: "mcp-login.folder" },
        // What an earlier crash left there was never used.
        { op: "unlink", path: temporary, missingOk: true, label: "mcp-login.clear" },
        ...replaceSteps(path, temporary, data, "mcp-login"),
        { op: "syncDir", path: folder, label: "mcp-login.sync" },
      ]);
    },
    async once(work) {
      if (underWay !== undefined) {
        await underWay;
        return undefined;
      }
      const mine = locked(work);
      underWay = mine;
      try {
        return await mine;
      } finally {
        underWay = undefined;
      }
    },
  };
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
