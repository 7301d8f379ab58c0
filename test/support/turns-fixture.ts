import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Logger } from "../../src/core/ports/platform.ts";
import type { AdmitTurn, TurnStore } from "../../src/core/ports/turns.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { openTurnStore } from "../../src/turns/turn-store.ts";

export interface LogLine {
  readonly level: "debug" | "info" | "warn" | "error";
  readonly message: string;
  readonly fields?: Record<string, unknown>;
}

/** A logger that keeps its lines. */
export function createRecordingLogger(): Logger & { readonly lines: LogLine[] } {
  const lines: LogLine[] = [];
  const log = (level: LogLine["level"]) => (message: string, fields?: Record<string, unknown>) => {
    lines.push(fields === undefined ? { level, message } : { level, message, fields });
  };
  return { lines, debug: log("debug"), info: log("info"), warn: log("warn"), error: log("error") };
}

export interface LedgerFolder {
  readonly dir: string;
  readonly path: string;
  open(): Promise<TurnStore>;
  remove(): void;
}

/** A temporary folder for a ledger on the real filesystem. */
export function createLedgerFolder(): LedgerFolder {
  const dir = mkdtempSync(join(tmpdir(), "mono-turns-"));
  const path = join(dir, "host.sqlite");
  return {
    dir,
    path,
    open: () => openTurnStore({ path, fs: createFileSystem(), logger: createRecordingLogger() }),
    remove: () => rmSync(dir, { recursive: true, force: true }),
  };
}

/** A turn of the conversation `terminal:a`, its request id made from its turn id. */
export function admission(turnId: string, overrides: Partial<AdmitTurn> = {}): AdmitTurn {
  return {
    turnId,
    requestId: `request-${turnId}`,
    conversationId: "terminal:a",
    baseId: "terminal:a",
    thread: "main",
    text: `question ${turnId}`,
    replyTo: "terminal:a",
    now: AT,
    maxQueued: 100,
    ...overrides,
  };
}

export const AT = "2026-11-30T12:00:00.000Z";

/** Admits a turn, runs it and commits `answer`. The run is named after the turn. */
export async function completeTurn(
  store: TurnStore,
  turnId: string,
  answer: string,
  overrides: Partial<AdmitTurn> = {},
): Promise<void> {
  await store.admit(admission(turnId, overrides));
  await store.startRun(turnId, `run-${turnId}`, AT);
  await store.commitTurn({ turnId, runId: `run-${turnId}`, assistantText: answer, now: AT });
}
