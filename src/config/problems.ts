import { z } from "zod";
import type { ConfigProblem } from "../core/errors.ts";
import { isJsonObject, type JsonValue } from "../core/json.ts";
import { nearestName } from "./nearest.ts";

/**
 * Turns what a schema refused into sentences for people: the dotted path, what was found, what is allowed and,
 * for an unknown key, the nearest known one.
 *
 * I1. A string is quoted only where no secret can stand; elsewhere its length is told.
 */

type Path = readonly PropertyKey[];

const SECRET_KEY = /env|key|token|secret|password|authorization|header|url|args|command/i;
const QUOTED_MAX_CHARS = 60;

/** `continuations.detachedServices[0].name`; a name that is no plain word stands in quotes and brackets. */
export function dottedPath(path: Path): string {
  let text = "";
  for (const part of path) {
    if (typeof part === "number") text += `[${part}]`;
    else if (/^[\w$-]+$/.test(String(part))) text += text === "" ? String(part) : `.${String(part)}`;
    else text += `[${JSON.stringify(String(part))}]`;
  }
  return text;
}

/** What stands at a path, in words. */
function found(value: JsonValue | undefined, path: Path): string {
  if (value === undefined) return "nothing";
  if (value === null || typeof value === "number" || typeof value === "boolean") return String(value);
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (typeof value === "object") return "an object";
  const secret = path.some((part) => typeof part === "string" && SECRET_KEY.test(part));
  if (secret || value.length > QUOTED_MAX_CHARS) return `a text of ${value.length} characters`;
  return JSON.stringify(value);
}

function valueAt(root: JsonValue, path: Path): JsonValue | undefined {
  let value: JsonValue | undefined = root;
  for (const part of path) {
    if (Array.isArray(value)) value = value[Number(part)];
    else if (isJsonObject(value) && Object.hasOwn(value, part)) value = value[String(part)];
    else return undefined;
  }
  return value;
}

interface SchemaNode {
  readonly type?: string;
  readonly description?: string;
  readonly enum?: readonly unknown[];
  readonly minimum?: number;
  readonly maximum?: number;
  readonly properties?: Readonly<Record<string, SchemaNode>>;
  readonly items?: SchemaNode;
  readonly propertyNames?: SchemaNode;
  readonly additionalProperties?: SchemaNode | boolean;
  readonly anyOf?: readonly SchemaNode[];
}

/** What a schema allows, in words, read from its JSON Schema so that it can't differ from what is checked. */
export interface AllowedWords {
  at(path: Path): string;
  keyName(path: Path): string;
  keysAt(path: Path): readonly string[];
}

export function allowedWords(schema: z.ZodType): AllowedWords {
  const root = z.toJSONSchema(schema, { io: "input", unrepresentable: "any" }) as SchemaNode;
  const nodeAt = (path: Path): SchemaNode | undefined => {
    let node: SchemaNode | undefined = root;
    for (const part of path) {
      const rest: SchemaNode | boolean | undefined = node?.additionalProperties;
      if (typeof part === "number") node = node?.items;
      else node = propertiesOf(node)?.[String(part)] ?? (typeof rest === "object" ? rest : undefined);
    }
    return node;
  };
  return {
    at: (path) => describe(nodeAt(path)),
    keyName: (path) => describe(nodeAt(path)?.propertyNames),
    keysAt: (path) => Object.keys(propertiesOf(nodeAt(path)) ?? {}),
  };
}

/** The members of an object, also where the object is one of several shapes. */
function propertiesOf(node: SchemaNode | undefined): SchemaNode["properties"] {
  return node?.properties ?? node?.anyOf?.find((shape) => shape.properties !== undefined)?.properties;
}

function describe(node: SchemaNode | undefined): string {
  if (node?.description !== undefined) return node.description;
  if (node?.enum !== undefined) return node.enum.map((value) => JSON.stringify(value)).join(", ");
  switch (node?.type) {
    case "integer":
      return node.maximum === Number.MAX_SAFE_INTEGER
        ? `an integer from ${node.minimum ?? 0}`
        : `an integer from ${node.minimum} to ${node.maximum}`;
    case "boolean":
      return "true or false";
    case "object":
      return "an object";
    case "array":
      return node.items?.description === undefined ? "a list" : `a list, each ${node.items.description}`;
    default:
      return "a text";
  }
}

/** Where the value at a path came from: the file, or the environment variable that overrides it. */
export type SourceOf = (path: Path) => string;

/** The problems behind a refused parse, in the order of the schema. */
export function schemaProblems(
  error: z.ZodError,
  root: JsonValue,
  allowed: AllowedWords,
  sourceOf: SourceOf,
): ConfigProblem[] {
  return error.issues.flatMap((issue) => issueProblems(issue, root, allowed, sourceOf));
}

function issueProblems(
  issue: z.core.$ZodIssue,
  root: JsonValue,
  allowed: AllowedWords,
  sourceOf: SourceOf,
): ConfigProblem[] {
  const { path } = issue;
  const problem = (message: string, at: Path = path): ConfigProblem => ({
    source: sourceOf(at),
    path: dottedPath(at),
    message,
  });
  const value = valueAt(root, path);
  switch (issue.code) {
    case "unrecognized_keys":
      return issue.keys.map((key) => problem(unknownKey(key, allowed.keysAt(path)), [...path, key]));
    case "invalid_key":
      return [problem(`is not a name that is allowed here; allowed: ${allowed.keyName(path.slice(0, -1))}`)];
    case "custom":
      return [
        problem(
          value === undefined || typeof value === "object"
            ? issue.message
            : `${issue.message}; found ${found(value, path)}`,
        ),
      ];
    default:
      if (value === undefined) return [problem(`is required; allowed: ${allowed.at(path)}`)];
      return [problem(`found ${found(value, path)}; allowed: ${allowed.at(path)}`)];
  }
}

/** The message for a key that is not known here. `tolerated` keys are no error elsewhere, so they may be meant too. */
export function unknownKey(key: string, known: readonly string[], tolerated: readonly string[] = []): string {
  const nearest = nearestName(key, [...known, ...tolerated]);
  const hint = nearest === undefined ? "" : `; did you mean "${nearest}"?`;
  return `unknown key${hint}; allowed here: ${known.join(", ")}`;
}

/** All problems as one text, a line each. */
export function problemsText(problems: readonly ConfigProblem[]): string {
  const count = problems.length === 1 ? "1 problem" : `${problems.length} problems`;
  const lines = problems.map(
    ({ source, path, message }) => `  ${path === "" ? source : `${path} (${source})`}: ${message}`,
  );
  return [`the configuration has ${count}:`, ...lines].join("\n");
}
