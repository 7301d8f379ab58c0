import { payloadHash } from "../core/derive.ts";
import { equalDigests, sha256Hex } from "../core/digest.ts";
import { ok, refuse } from "../core/errors.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import type { ResultEntry } from "./api.ts";
import type { Ledger } from "./ledger.ts";
import { statusOf } from "./status.ts";

/** Results and status reads of services. What they see is durable state; what they change goes through the ledger. */
export function createResultEntry(store: ContinuationStore, ledger: Ledger): ResultEntry {
  return {
    authenticate(continuationId, token) {
      const record = store.durable.get(continuationId);
      if (record === undefined) return refuse("not_found", "No such continuation.");
      if (!equalDigests(sha256Hex(token), record.resultTokenHash)) {
        return refuse("invalid_result_capability", "The result token does not belong to this continuation.");
      }
      return ok({
        async submit(body) {
          const hash = payloadHash(body.payload);
          if (body.payloadHash !== undefined && body.payloadHash !== hash) {
            return refuse(
              "payload_hash_mismatch",
              "payloadHash is not the SHA-256 of the payload's canonical JSON.",
            );
          }
          const applied = await ledger.apply(continuationId, {
            kind: "accept_result",
            idempotencyKey: body.idempotencyKey,
            payloadHash: hash,
            payload: body.payload,
          });
          if (!applied.ok) return applied;
          return ok({ continuationId, state: applied.value.state, accepted: true as const });
        },
        status: () => statusOf(record),
      });
    },
  };
}
