import { randomBytes, randomInt, randomUUID } from "node:crypto";
import type { Ids } from "../core/ports/platform.ts";

const RUN_SUFFIX_CHARS = 6;

/** Ids from the system's cryptographic randomness. */
export function createIds(): Ids {
  return {
    uuid: () => randomUUID(),
    token: (bytes) => randomBytes(bytes).toString("base64url"),
    runId(nowMs) {
      const suffix = randomInt(36 ** RUN_SUFFIX_CHARS)
        .toString(36)
        .padStart(RUN_SUFFIX_CHARS, "0");
      return `run-${Math.trunc(nowMs).toString(36)}-${suffix}`;
    },
  };
}
