import { CliError } from "../core/errors.ts";
import { readOwnerOnlyText } from "../core/owner-only.ts";
import type { FileSystem } from "../core/ports/platform.ts";

const SECRET_FILE_MAX_BYTES = 1024;

/**
 * The text of a small owner-only file; undefined when it is not there. An unsafe one is refused, because whoever can
 * write it could make us send our token to them or take theirs for ours.
 */
export function readSecretText(fs: FileSystem, path: string): string | undefined {
  const found = readOwnerOnlyText(fs, path, SECRET_FILE_MAX_BYTES, "operator.secret");
  if (found === undefined) return undefined;
  if (found.kind === "text") return found.text;
  throw new CliError(
    "store_unsafe_file",
    found.kind === "too_big"
      ? `${path} is too big for a secret`
      : `${path} ${found.problem}; it must be yours alone (chmod 600) before anything is sent with it`,
  );
}
