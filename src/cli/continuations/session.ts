import type { z } from "zod";
import { CliError } from "../../core/errors.ts";
import { CURSOR_MAX_CHARS, FIELD_MAX_CHARS } from "../../core/limits.ts";
import { statusSchema } from "../../core/wire.ts";
import { createFileSystem } from "../../platform/filesystem.ts";
import type { CliIo } from "../io.ts";
import { type ConfigFlags, configOf } from "../settings.ts";
import { programOf, typedFlags } from "../shell.ts";
import { createOperatorClient, type OperatorClient } from "./operator-client.ts";
import { statusLines } from "./print.ts";

export const ID_ARG = {
  id: { type: "positional", required: true, description: "Continuation id" },
} as const;

/** The largest page that any host may be set to. */
export const LIMIT_MAX = 500;

/** Throws for a `--limit` that no host takes. */
export function checkLimit(limit: string | undefined): void {
  if (limit === undefined || (/^[1-9][0-9]*$/.test(limit) && Number(limit) <= LIMIT_MAX)) return;
  throw new CliError("usage", `--limit must be a whole number from 1 to ${LIMIT_MAX}`);
}

/** Throws for a `--cursor` that no host gave. */
export function checkCursor(cursor: string | undefined): void {
  if (cursor === undefined || cursor.length <= CURSOR_MAX_CHARS) return;
  throw new CliError("usage", `--cursor has at most ${CURSOR_MAX_CHARS} characters`);
}

/** The command that shows the next page, ready to be copied. */
export function nextPage(
  action: "list" | "owed",
  flags: ConfigFlags & Readonly<Record<"limit" | "cursor", string | undefined>> & { readonly state?: string },
  cursor: string,
  io: CliIo,
): string {
  const { limit, state, config } = flags;
  const typed = typedFlags({ limit, state, config, "env-file": flags["env-file"], cursor });
  return `${programOf(io)} continuations ${action}${typed}`;
}

export function operatorOf(flags: ConfigFlags, io: CliIo): OperatorClient {
  const { config } = configOf(flags, io, { secretsOptional: true, withoutServers: true });
  return createOperatorClient(config, createFileSystem(), programOf(io));
}

/** Prints the body unchanged with `--json`, else what `human` makes of it. */
export function printBody<T>(
  body: unknown,
  schema: z.ZodType<T>,
  human: (value: T) => string,
  flags: { readonly json?: boolean | undefined },
  io: CliIo,
): void {
  if (flags.json === true) {
    io.out(`${JSON.stringify(body, null, 2)}\n`);
    return;
  }
  const parsed = schema.safeParse(body);
  if (!parsed.success)
    throw new CliError("operation_failed", "the host's answer has an unexpected form; see --json");
  io.out(human(parsed.data));
}

/** One change of one continuation; prints the status that it led to. */
export async function act(
  action: "retry" | "cancel" | "resolve" | "release",
  flags: ConfigFlags & { readonly id: string; readonly json?: boolean | undefined },
  body: Readonly<Record<string, unknown>>,
  io: CliIo,
): Promise<0> {
  const operator = operatorOf(flags, io);
  const timeoutMs = action === "resolve" ? operator.patienceMs : undefined;
  const answer = await operator.post(`${pathOf(flags.id)}/${action}`, body, timeoutMs);
  printBody(answer, statusSchema, statusLines, flags, io);
  return 0;
}

/** The path of one continuation. `.` and `..` would be resolved on the way and name another path. */
export function pathOf(id: string): string {
  if (id === "" || id === "." || id === "..") throw new CliError("usage", `"${id}" is no continuation id`);
  if (id.length > FIELD_MAX_CHARS)
    throw new CliError("usage", `an id has at most ${FIELD_MAX_CHARS} characters`);
  return `/v1/operator/continuations/${encodeURIComponent(id)}`;
}
