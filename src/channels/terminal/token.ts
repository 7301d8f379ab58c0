import { join } from "node:path";
import { ChannelError } from "../../core/errors.ts";
import { readOwnerOnlyText } from "../../core/owner-only.ts";
import type { FileSystem, Ids } from "../../core/ports/platform.ts";
import { replaceSteps } from "../../core/secure-files.ts";
import { TERMINAL_TOKEN_FILE, TERMINAL_TOKEN_PATTERN } from "../../core/terminal.ts";

const TOKEN_BYTES = 32;
/** A token and its newline, with room for a mistake to be told apart from a huge file. */
const MAX_BYTES = 256;

export interface TokenDeps {
  readonly fs: FileSystem;
  readonly ids: Ids;
  readonly stateDir: string;
}

/**
 * The terminal token from its owner-only file, which is created (atomically, 0600, durable) when it is missing. Rejects
 * with `store_unsafe_file` when the file could be read or written by others, or does not hold a token.
 * The caller owns the state directory, so nobody else creates the file meanwhile.
 */
export async function loadTerminalToken({ fs, ids, stateDir }: TokenDeps): Promise<string> {
  const known = readTerminalToken(fs, stateDir);
  if (known !== undefined) return known;
  const token = ids.token(TOKEN_BYTES);
  const temporary = join(stateDir, `.${TERMINAL_TOKEN_FILE}.tmp`);
  await fs.run([
    { op: "mkdir", path: stateDir, mode: 0o700, existsOk: true, label: "terminal-token.folder" },
    // What an earlier crash left there was never used.
    { op: "unlink", path: temporary, missingOk: true, label: "terminal-token.clear" },
    ...replaceSteps(join(stateDir, TERMINAL_TOKEN_FILE), temporary, `${token}\n`, "terminal-token"),
    { op: "syncDir", path: stateDir, label: "terminal-token.sync" },
  ]);
  return token;
}

/** The token in the file; undefined when there is none yet. Throws what `loadTerminalToken` rejects with. */
export function readTerminalToken(fs: FileSystem, stateDir: string): string | undefined {
  const path = join(stateDir, TERMINAL_TOKEN_FILE);
  const found = readOwnerOnlyText(fs, path, MAX_BYTES, "terminal-token.read");
  if (found === undefined) return undefined;
  if (found.kind === "unsafe") throw unsafe(path, found.problem);
  const text = found.kind === "text" ? found.text.trimEnd() : "";
  if (!TERMINAL_TOKEN_PATTERN.test(text)) throw unsafe(path, "does not hold a token");
  return text;
}

function unsafe(path: string, problem: string): ChannelError {
  return new ChannelError(
    "store_unsafe_file",
    `${path} ${problem}. Delete it to get a new token, or repair its owner and mode.`,
  );
}
