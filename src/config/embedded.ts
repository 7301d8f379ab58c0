import { z } from "zod";
import { ConfigError } from "../core/errors.ts";
import type { JsonValue } from "../core/json.ts";
import { allowedWords, problemsText, schemaProblems } from "./problems.ts";
import { BLOCKS, serviceName } from "./schema.ts";
import { DETACHED_TOKEN_MIN_CHARS } from "./secrets.ts";

/** The settings of an embedded service are held to the same rules as those of the configuration file. */

const { host, port, limits, retention, namedRoutes, stateDir } = BLOCKS.continuations.unwrap().shape;
const { continuationServers } = BLOCKS.tools.unwrap().shape;

const optionsSchema = z.object({
  listen: z.strictObject({ host, port }),
  limits,
  retention,
  namedRoutes,
  detachedServices: z
    .record(serviceName, z.string())
    .superRefine((services, context) => {
      for (const [name, { length }] of Object.entries(services)) {
        if (length >= DETACHED_TOKEN_MIN_CHARS) continue;
        // Without the path of the token itself, which would quote it.
        const message = `the token of "${name}" has ${length} characters; allowed: at least ${DETACHED_TOKEN_MIN_CHARS}`;
        context.addIssue({ code: "custom", message });
      }
    })
    .default({}),
  continuationServers,
});

const storeSchema = z.object({ stateDir: stateDir.unwrap(), retention });

/** The settings of `openStore` with their defaults. Throws a `ConfigError` that lists everything that is wrong. */
export function checkedStoreOptions(options: object): z.output<typeof storeSchema> {
  return checked(storeSchema, options, "openStore");
}

/**
 * The settings of `createContinuations` with their defaults; its functions and its store are not looked at. Throws a
 * `ConfigError` that lists everything that is wrong.
 */
export function checkedOptions(options: object): z.output<typeof optionsSchema> {
  return checked(optionsSchema, options, "createContinuations");
}

function checked<T extends z.ZodObject>(schema: T, options: object, of: string): z.output<T> {
  const parsed = schema.safeParse(options);
  if (parsed.success) return parsed.data;
  const settings = Object.entries(options).filter(([name]) => name in schema.shape);
  const root: JsonValue = JSON.parse(JSON.stringify(Object.fromEntries(settings)));
  const problems = schemaProblems(parsed.error, root, allowedWords(schema), () => of);
  throw new ConfigError("config_invalid", problemsText(problems), { cause: parsed.error, problems });
}
