import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { FileFault } from "../core/ports/platform.ts";

export interface TemporaryFolder {
  readonly path: string;
  read(name: string): string;
  write(name: string, text: string): void;
  /** A file that a child process may have as its output. */
  output(name: string): Bun.BunFile;
  /** Removes it with everything in it. */
  remove(): void;
}

/** A new owner-only folder below the system's folder for temporaries, which a `FileFault` names when that fails. */
export function makeTemporaryFolder(prefix: string): TemporaryFolder {
  const path = makeFolder(tmpdir(), prefix);
  const inside = (name: string) => join(path, name);
  return {
    path,
    read: (name) => readFileSync(inside(name), "utf8"),
    write: (name, text) => writeFileSync(inside(name), text),
    output: (name) => Bun.file(inside(name)),
    remove: () => rmSync(path, { recursive: true, force: true }),
  };
}

function makeFolder(parent: string, prefix: string): string {
  try {
    return mkdtempSync(join(parent, prefix));
  } catch (error) {
    const errno = error instanceof Error && "code" in error ? String(error.code) : "EUNKNOWN";
    throw new FileFault("temporary.mkdir", parent, errno, { cause: error });
  }
}
