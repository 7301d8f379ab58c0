import { expect, test } from "bun:test";
import { join } from "node:path";
import { Glob } from "bun";
import { z } from "zod";
import { ERROR_TABLE } from "../../src/core/errors.ts";
import { MODES, ORIGIN_CONTEXT_STATES, STATES } from "../../src/core/record.ts";
import {
  type BackupReport,
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
import type { DoctorReport } from "../../src/host/doctor-report.ts";
import type { McpServerReport, McpServerRow } from "../../src/host/mcp-operator.ts";
import type { MigrationPlan, PruneReport } from "../../src/host/migrate.ts";
import type { ModelCheck } from "../../src/host/model-check.ts";
import type { RestoreReport } from "../../src/host/restore.ts";
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

/** One value of each report that is no schema, with every field that it can have. */
const finding = { works: true, detail: "" };
const reports: Record<string, object> = {
  doctor: {
    ok: true,
    structurallyValid: true,
    operationallyReady: true,
    sections: [{ id: "", label: "", status: "ok", details: [] }],
  } satisfies Required<DoctorReport>,
  migrate: {
    stateDir: "",
    exists: true,
    kind: "none",
    ok: true,
    refusals: [{ path: "", code: "not_found", message: "" }],
    sources: { v1: { records: 0, bytes: 0 }, v2: { records: 0, bytes: 0, unfinished: 0 }, compacted: 0 },
    resumed: false,
    v3Records: 0,
    records: 0,
    states: {},
    legacyMissing: 0,
    detachedLatest: 0,
    writes: { records: 0, bytes: 0 },
    retention: { records: 0, payloads: 0, texts: 0 },
  } satisfies Required<MigrationPlan>,
  prune: { files: 0, bytes: 0, backup: "" } satisfies Required<PruneReport>,
  backup: { path: "", createdAt: "", records: 0, files: 0, bytes: 0, warnings: [] } satisfies BackupReport,
  restore: {
    hostDir: "",
    stateDir: "",
    backupCreatedAt: "",
    files: 0,
    records: 0,
    held: 0,
  } satisfies Required<RestoreReport>,
  "model check": {
    model: "",
    address: "",
    usable: true,
    text: finding,
    streaming: finding,
    tools: finding,
    images: finding,
    firstTextMs: 0,
    totalMs: 0,
    tokensPerSecond: 0,
  } satisfies Required<ModelCheck>,
  "mcp list": {
    name: "",
    transport: "stdio",
    target: "",
    enabled: true,
    trusted: true,
    continuations: true,
    requestContext: true,
    login: true,
    loginProblem: "",
  } satisfies Required<McpServerRow>,
  "mcp test": {
    server: "",
    version: "",
    protocol: "",
    connectMs: 0,
    tools: [{ name: "", description: "", digest: "" }],
    warnings: [],
  } satisfies Required<McpServerReport>,
};
const keysOf = (value: unknown): string[] =>
  typeof value === "object" && value !== null
    ? Object.entries(value).flatMap(([key, inner]) => [
        ...(Array.isArray(value) ? [] : [key]),
        ...keysOf(inner),
      ])
    : [];
test.each(Object.entries(reports))("every field of the report of %s is named", (_, report) => {
  expect(keysOf(report).filter((field) => !named.has(field))).toEqual([]);
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
