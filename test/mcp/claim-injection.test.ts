import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { CLAIM_ENV, CLAIM_HEADERS } from "../../src/core/mcp-servers.ts";
import { type ClaimGrant, childEnvironment, requestHeaders } from "../../src/mcp/claim-injection.ts";
import { capability } from "../support/mcp-host.ts";

const anyCase = (name: string) =>
  fc
    .array(fc.boolean(), { minLength: name.length, maxLength: name.length })
    .map((upper) => [...name].map((c, i) => (upper[i] ? c.toUpperCase() : c.toLowerCase())).join(""));
const name = (reserved: readonly string[]) =>
  fc.oneof(fc.constantFrom("PATH", "x-own", "Authorization"), fc.constantFrom(...reserved).chain(anyCase));
const values = (reserved: readonly string[]) => fc.dictionary(name(reserved), fc.constant("fake"));
const grants = fc.constantFrom<ClaimGrant>(capability, "empty", "unselected");

function reservedIn(result: Record<string, string>, reserved: readonly string[]) {
  const lower = new Set(reserved.map((each) => each.toLowerCase()));
  return Object.fromEntries(Object.entries(result).filter(([key]) => lower.has(key.toLowerCase())));
}

describe("reserved names", () => {
  const env = Object.values(CLAIM_ENV);
  test("in an environment hold the host's values or nothing, whatever stood there in any case", () => {
    fc.assert(
      fc.property(values(env), values(env), grants, (base, configured, grant) => {
        Object.freeze(base);
        Object.freeze(configured);
        const expected =
          grant === "unselected"
            ? {}
            : Object.fromEntries(
                (["url", "token", "fingerprint", "mode"] as const).map((key) => [
                  CLAIM_ENV[key],
                  grant === "empty" ? "" : grant[key],
                ]),
              );
        const result = childEnvironment(base, configured, grant, "unselected");
        expect(reservedIn(result, env)).toEqual(expected);
        if ("PATH" in base || "PATH" in configured) expect(result.PATH).toBe("fake");
      }),
    );
  });

  const headers = Object.values(CLAIM_HEADERS);
  test("in headers hold the host's values or nothing, whatever stood there in any case", () => {
    fc.assert(
      fc.property(values(headers), grants, (configured, grant) => {
        Object.freeze(configured);
        const expected =
          typeof grant === "string"
            ? {}
            : Object.fromEntries(
                (["url", "token", "fingerprint", "mode"] as const).map((key) => [
                  CLAIM_HEADERS[key],
                  grant[key],
                ]),
              );
        expect(reservedIn(requestHeaders(configured, grant), headers)).toEqual(expected);
      }),
    );
  });
});
