import { join } from "node:path";
import { ChannelError } from "../../core/errors.ts";
import { ownerOnlyProblem } from "../../core/owner-only.ts";
import type { FileSystem, Ids } from "../../core/ports/platform.ts";
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
  const path = join(stateDir, TERMINAL_TOKEN_FILE);
  const known = readToken(fs, path);
  if (known !== undefined) return known;
  const token = ids.token(TOKEN_BYTES);
  const temporary = join(stateDir, `.${TERMINAL_TOKEN_FILE}.tmp`);
  await fs.run([
    { op: "mkdir", path: stateDir, mode: 0o700, existsOk: true, label: "terminal-token.folder" },
    // What an earlier crash left there was never used.
    { op: "unlink", path: temporary, missingOk: true, label: "terminal-token.clear" },
    {
      op: "write",
      path: temporary,
      data: `${token}\n`,
      mode: 0o600,
      sync: true,
      label: "terminal-token.write",
    },
    { op: "rename", from: temporary, to: path, label: "terminal-token.publish" },
    { op: "syncDir", path: stateDir, label: "terminal-token.sync" },
  ]);
  return token;
}

function readToken(fs: FileSystem, path: string): string | undefined {
  const named = fs.lstat(path, "terminal-token.lstat");
  if (named === undefined) return undefined;
  if (named.kind !== "file") throw unsafe(path, ownerOnlyProblem(named, fs.uid) ?? "is not a regular file");
  const file = fs.open(path, "terminal-token.open");
  if (file === undefined) return undefined;
  try {
    // The open descriptor decides: the name may point elsewhere by now.
    const problem = ownerOnlyProblem(file.stat(), fs.uid);
    if (problem !== undefined) throw unsafe(path, problem);
    const text = new TextDecoder().decode(file.read(MAX_BYTES)).trimEnd();
    if (!TERMINAL_TOKEN_PATTERN.test(text)) throw unsafe(path, "does not hold a token");
    return text;
  } finally {
    file.close();
  }
}

function unsafe(path: string, problem: string): ChannelError {
  return new ChannelError(
    "store_unsafe_file",
    `${path} ${problem}. Delete it to get a new token, or repair its owner and mode.`,
  );
}
