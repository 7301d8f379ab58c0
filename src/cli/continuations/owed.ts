import type { CommandDef } from "citty";
import { type OwedAnswer, owedAnswerSchema } from "../../core/wire.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo, ExitCode } from "../io.ts";
import { ageText, plain } from "./print.ts";
import { checkCursor, checkLimit, LIMIT_MAX, nextPage, operatorOf, printBody } from "./session.ts";

const OWED_ARGS = {
  limit: {
    type: "string",
    valueHint: "n",
    description: `Promises of a page, 1 to ${LIMIT_MAX} (default: the host's page size)`,
  },
  cursor: { type: "string", valueHint: "cursor", description: "Where the next page starts" },
  ...CONFIG_ARGS,
  ...JSON_ARG,
} as const;

/** Promises that are not kept yet, by page. Exit code 1 when one needs a person, on whichever page. */
export function owedCommand(io: CliIo): CommandDef {
  return leaf(
    "owed",
    "Every promise not yet kept: its age, deadline and what it waits for; exits 1 when one needs a person",
    OWED_ARGS,
    async (given): Promise<ExitCode> => {
      const { limit, cursor } = given;
      checkLimit(limit);
      checkCursor(cursor);
      const body = await operatorOf(given, io).get("/v1/operator/owed", { limit, cursor });
      const again = (next: string) => nextPage("owed", given, next, io);
      printBody(body, owedAnswerSchema, (page) => owedLines(page, again), given, io);
      const parsed = owedAnswerSchema.safeParse(body);
      return parsed.success && parsed.data.needPerson === 0 ? 0 : 1;
    },
  );
}

function owedLines(page: OwedAnswer, again: (cursor: string) => string): string {
  const { owed, total, needPerson, nextCursor } = page;
  if (total === 0) return "nothing is owed\n";
  const items = owed.map((item) => {
    const mark = item.needsPerson ? "! " : "  ";
    const due = item.overdue ? "overdue since" : "due";
    return [
      `${mark}${item.continuationId}  ${item.state}, ${ageText(item.ageMs)} old, ${due} ${plain(item.deadline)}`,
      `    waits for ${plain(item.waitsFor)}`,
    ].join("\n");
  });
  const more = nextCursor === undefined ? [] : [`\nmore: ${again(nextCursor)}`];
  const counted = [
    ...(total > owed.length ? [`${total} are owed in all`] : []),
    ...(needPerson > 0 ? [`${needPerson} ${needPerson === 1 ? "needs" : "need"} a person (!)`] : []),
  ].join(", ");
  return `${[...items, ...more, ...(counted === "" ? [] : [counted])].join("\n")}\n`;
}
