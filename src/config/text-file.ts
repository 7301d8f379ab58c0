import { readFileSync, statSync } from "node:fs";
import { KIB, MIB } from "../core/limits.ts";

export const CONFIG_FILE_MAX_BYTES = 1 * MIB;
export const IDENTITY_MAX_BYTES = 256 * KIB;

export type TextFile =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "missing" }
  | { readonly kind: "unreadable"; readonly reason: string };

/** Reads a settings file as UTF-8, once. Never throws: what is wrong becomes a configuration problem. */
export function readTextFile(path: string, maxBytes: number): TextFile {
  try {
    const stat = statSync(path);
    if (!stat.isFile()) return { kind: "unreadable", reason: "it is not a regular file" };
    if (stat.size > maxBytes) {
      return { kind: "unreadable", reason: `it has ${stat.size} bytes; allowed: at most ${maxBytes}` };
    }
    const text = new TextDecoder("utf-8", { fatal: true }).decode(readFileSync(path));
    return { kind: "text", text };
  } catch (error) {
    if (error instanceof TypeError) return { kind: "unreadable", reason: "it is not UTF-8 text" };
    const code = error instanceof Error && "code" in error ? String(error.code) : "unknown fault";
    return code === "ENOENT" || code === "ENOTDIR"
      ? { kind: "missing" }
      : { kind: "unreadable", reason: `it can't be read (${code})` };
  }
}
