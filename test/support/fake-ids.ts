import { createHash } from "node:crypto";
import type { Ids } from "../../src/core/ports/platform.ts";

/** Ids that look like the real ones and are the same in every run of a test; another seed gives other ids. */
export function createFakeIds(seed = "seed"): Ids {
  let count = 0;
  const next = (kind: string) => createHash("sha512").update(`${seed}/${kind}/${count++}`).digest();
  return {
    uuid() {
      const hex = next("uuid").toString("hex");
      return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
    },
    token(bytes) {
      const parts: Buffer[] = [];
      for (let have = 0; have < bytes; have += 64) parts.push(next("token"));
      return Buffer.concat(parts).subarray(0, bytes).toString("base64url");
    },
    runId(nowMs) {
      const tail = BigInt(`0x${next("run").toString("hex").slice(0, 14)}`)
        .toString(36)
        .padStart(6, "0")
        .slice(-6);
      return `run-${nowMs.toString(36)}-${tail}`;
    },
  };
}
