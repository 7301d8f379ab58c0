import type { CommandDef } from "citty";
import { CliError } from "../../core/errors.ts";
import { STATES } from "../../core/record.ts";
import { type ListAnswer, listAnswerSchema } from "../../core/wire.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { listTable } from "./print.ts";
import { checkCursor, checkLimit, LIMIT_MAX, nextPage, operatorOf, printBody } from "./session.ts";

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
    checkCursor(cursor);
    if (state !== undefined && !STATES.some((known) => known === state)) {
      throw new CliError("usage", `--state must be one of ${STATES.join(", ")}`);
    }
    const body = await operatorOf(args, io).get("/v1/operator/continuations", { limit, cursor, state });
    const again = (next: string) => nextPage("list", args, next, io);
    printBody(body, listAnswerSchema, (page) => pageText(page, io.columns, again), args, io);
    return 0;
  });
}

function pageText(page: ListAnswer, columns: number | undefined, again: (cursor: string) => string): string {
  if (page.continuations.length === 0) return "no continuations\n";
  const more = page.nextCursor === undefined ? "" : `\nmore: ${again(page.nextCursor)}\n`;
  return `${listTable(page.continuations, columns)}${more}`;
}
