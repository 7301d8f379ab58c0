import { expect, test } from "bun:test";
import { join } from "node:path";
import { Glob } from "bun";
import { z } from "zod";
import { ERROR_TABLE } from "../../src/core/errors.ts";
import { MODES, ORIGIN_CONTEXT_STATES, STATES } from "../../src/core/record.ts";
import {
  claimAnswerSchema,
  claimBodySchema,
  detachedClaimBodySchema,
  healthSchema,
  listAnswerSchema,
  owedAnswerSchema,
  releasedSchema,
  resolveBodySchema,
  resultAnswerSchema,
  resultBodySchema,
  retryBodySchema,
  statusDetailSchema,
  watchEventSchema,
} from "../../src/core/wire.ts";
import type { Verification } from "../../src/host/verify.ts";

/** docs/protocol.md names everything that a caller can meet. */

const ROOT = join(import.meta.dir, "../..");
const text = await Bun.file(join(ROOT, "docs/protocol.md")).text();
/** Every word inside of code marks. */
const named = new Set([...text.matchAll(/`([^`]+)`/g)].flatMap(([, code = ""]) => code.match(/\w+/g) ?? []));

interface Node {
  readonly properties?: Readonly<Record<string, Node>>;
  readonly propertyNames?: unknown;
  readonly items?: Node;
}
function fieldsOf(node: Node): string[] {
  return [
    ...Object.entries(node.properties ?? {}).flatMap(([name, inner]) => [name, ...fieldsOf(inner)]),
    ...(node.items === undefined ? [] : fieldsOf(node.items)),
  ];
}

const bodies: [string, z.ZodType][] = [
  ["a claim", claimBodySchema],
  ["a detached claim", detachedClaimBodySchema],
  ["a claim's answer", claimAnswerSchema],
  ["a result", resultBodySchema],
  ["a result's answer", resultAnswerSchema],
  ["show", statusDetailSchema],
  ["owed", owedAnswerSchema],
  ["list", listAnswerSchema],
  ["health", healthSchema],
  ["watch", watchEventSchema],
  ["retry", retryBodySchema],
  ["resolve", resolveBodySchema],
  ["release", releasedSchema],
];
test.each(bodies)("every field of %s is named", (_, schema) => {
  const fields = fieldsOf(z.toJSONSchema(schema, { io: "input", unrepresentable: "any" }) as Node);
  expect(fields.length).toBeGreaterThan(0);
  expect(fields.filter((field) => !named.has(field))).toEqual([]);
});

test("every field of verify, every state, mode and context state is named", () => {
  const verification = {
    continuationId: "",
    state: "claimed",
    checks: [{ what: "", matches: "yes", detail: "" }],
    ok: true,
  } satisfies Verification;
  const fields = [...Object.keys(verification), ...Object.keys(verification.checks[0] ?? {})];
  const known = [...fields, ...STATES, ...MODES, ...ORIGIN_CONTEXT_STATES];
  expect(known.filter((word) => !named.has(word))).toEqual([]);
});

test("every code that the protocol refuses with stands in the row of its status", async () => {
  const codes = new Set<string>();
  for (const folder of ["src/http", "src/continuation", "src/core"]) {
    for await (const file of new Glob("*.ts").scan(join(ROOT, folder))) {
      const source = await Bun.file(join(ROOT, folder, file)).text();
      const refusals = source.matchAll(/(?:refuse|refused)\(\s*"(\w+)"|code: "(\w+)",\s+message/g);
      for (const [, first, second] of refusals) codes.add(first ?? second ?? "");
    }
  }
  expect(codes.size).toBeGreaterThan(25);
  const rows = text.split("\n").filter((line) => /^\| [45]\d\d/.test(line));
  const missing = Object.entries(ERROR_TABLE).filter(([code, { status }]) => {
    if (!codes.has(code) || (status === 400 && code.startsWith("invalid_"))) return false;
    const row = rows.find((line) => line.split("|")[1]?.includes(String(status)));
    return row?.includes(`\`${code}\``) !== true;
  });
  expect(missing).toEqual([]);
});
