import type { CommandDef } from "citty";
import { type OwedAnswer, owedAnswerSchema } from "../../core/wire.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo, ExitCode } from "../io.ts";
import { ageText, plain } from "./print.ts";
import { checkLimit, operatorOf, printBody } from "./session.ts";

const OWED_ARGS = {
  limit: { type: "string", valueHint: "n", description: "At most so many, nearest deadline first" },
  ...CONFIG_ARGS,
  ...JSON_ARG,
} as const;

/** Every promise that is not kept yet. Exit code 1 when one of them needs a person. */
export function owedCommand(io: CliIo): CommandDef {
  return leaf(
    "owed",
    "Every promise not yet kept: its age, deadline and what it waits for; exits 1 when one needs a person",
    OWED_ARGS,
    async (given): Promise<ExitCode> => {
      checkLimit(given.limit);
      const body = await operatorOf(given, io).get("/v1/operator/owed", { limit: given.limit });
      printBody(body, owedAnswerSchema, owedLines, given, io);
      const parsed = owedAnswerSchema.safeParse(body);
      return parsed.success && parsed.data.needPerson === 0 ? 0 : 1;
    },
  );
}

function owedLines({ owed, total, needPerson }: OwedAnswer): string {
  if (total === 0) return "nothing is owed\n";
  const items = owed.map((item) => {
    const mark = item.needsPerson ? "! " : "  ";
    const due = item.overdue ? "overdue since" : "due";
    return [
      `${mark}${item.continuationId}  ${item.state}, ${ageText(item.ageMs)} old, ${due} ${plain(item.deadline)}`,
      `    waits for ${plain(item.waitsFor)}`,
    ].join("\n");
  });
  const more = total > owed.length ? `${total - owed.length} more, with later deadlines\n` : "";
  const person = needPerson === 0 ? "" : `${needPerson} need a person (!)\n`;
  return `${items.join("\n")}\n${more}${person}`;
}
