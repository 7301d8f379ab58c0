import { StoreError } from "../core/errors.ts";
import type { FileSystem, Ids } from "../core/ports/platform.ts";
import { readSecureFile, replaceSteps } from "../core/secure-files.ts";
import type { StorePaths } from "./paths.ts";

/** The state directory's secret: 32 random bytes, base64url and a newline (store-format.md §1). */

export const SECRET_BYTES = 32;
const SECRET_MAX_BYTES = 4096;

export type SecretFile =
  | { readonly kind: "valid"; readonly secret: Uint8Array }
  | { readonly kind: "absent" | "invalid" };

/** Reads the secret without judging what a missing or broken one means: that depends on whether there are records. */
export function readSecret(fs: FileSystem, paths: StorePaths): SecretFile {
  const data = readSecureFile(fs, paths.secret, SECRET_MAX_BYTES, "secret.read");
  if (data === undefined) return { kind: "absent" };
  const text = Buffer.from(data).toString("utf8").trim();
  const secret = Buffer.from(text, "base64url");
  const valid = secret.length === SECRET_BYTES && secret.toString("base64url") === text;
  return valid ? { kind: "valid", secret } : { kind: "invalid" };
}

/** Writes a new secret atomically and durably, so that no crash can leave an empty one behind. */
export function writeSecret(fs: FileSystem, paths: StorePaths, ids: Ids): Uint8Array {
  const text = ids.token(SECRET_BYTES);
  fs.runSync([
    ...replaceSteps(paths.secret, paths.temporary(paths.secret), `${text}\n`, "secret"),
    { op: "syncDir", path: paths.stateDir, label: "secret.sync" },
  ]);
  return Buffer.from(text, "base64url");
}

export function secretRefusal(paths: StorePaths, kind: "absent" | "invalid"): StoreError {
  return new StoreError(
    "store_secret_invalid",
    `${paths.secret} is ${kind === "absent" ? "missing" : "empty or damaged"} beside existing continuations, whose tokens and bindings depend on it: restore it from a backup, or move the whole state directory away to start empty`,
  );
}
