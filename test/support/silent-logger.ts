import type { Logger } from "../../src/core/ports/platform.ts";

/** Swallows every line. */
export const silentLogger: Logger = { debug() {}, info() {}, warn() {}, error() {} };

/** Keeps every line as text, to search it for what must never be there. */
export function createRecordingLogger(): Logger & { readonly lines: string[] } {
  const lines: string[] = [];
  const add = (level: string) => (message: string, fields?: object) => {
    lines.push(`${level} ${message} ${JSON.stringify(fields ?? {})}`);
  };
  return { lines, debug: add("debug"), info: add("info"), warn: add("warn"), error: add("error") };
}
