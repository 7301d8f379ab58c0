import type { CommandDef } from "citty";
import { CliError } from "../../core/errors.ts";
import { CURSOR_MAX_CHARS } from "../../core/limits.ts";
import { STATES } from "../../core/record.ts";
import { type ListAnswer, listAnswerSchema } from "../../core/wire.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { programOf, typedFlags } from "../shell.ts";
import { listTable } from "./print.ts";
import { checkLimit, LIMIT_MAX, operatorOf, printBody } from "./session.ts";

export const LIST_ARGS = {
  limit: {
    type: "string",
    valueHint: "n",
    description: `Rows of a page, 1 to ${LIMIT_MAX} (default: the host's page size)`,
  },
  cursor: { type: "string", valueHint: "cursor", description: "Where the next page starts" },
  state: { type: "string", valueHint: "state", description: "Only continuations in this state" },
  ...CONFIG_ARGS,
  ...JSON_ARG,
} as const;

export function listCommand(io: CliIo): CommandDef {
  return leaf("list", "List continuations, newest first", LIST_ARGS, async (args) => {
    const { limit, cursor, state } = args;
    checkLimit(limit);
    if (cursor !== undefined && cursor.length > CURSOR_MAX_CHARS) {
      throw new CliError("usage", `--cursor has at most ${CURSOR_MAX_CHARS} characters`);
    }
    if (state !== undefined && !STATES.some((known) => known === state)) {
      throw new CliError("usage", `--state must be one of ${STATES.join(", ")}`);
    }
    const body = await operatorOf(args, io).get("/v1/operator/continuations", { limit, cursor, state });
    const again = (next: string) =>
      `${programOf(io)} continuations list${typedFlags({ limit, state, config: args.config, "env-file": args["env-file"], cursor: next })}`;
    printBody(body, listAnswerSchema, (page) => pageText(page, io.columns, again), args, io);
    return 0;
  });
}

function pageText(page: ListAnswer, columns: number | undefined, again: (cursor: string) => string): string {
  if (page.continuations.length === 0) return "no continuations\n";
  const more = page.nextCursor === undefined ? "" : `\nmore: ${again(page.nextCursor)}\n`;
  return `${listTable(page.continuations, columns)}${more}`;
}
