import {
  groupKey,
  type OriginGroup,
  originContextBindingMac,
  originContextFingerprint,
} from "../core/derive.ts";
import { ok } from "../core/errors.ts";
import type { RunClaims, RunClaimsIssuer, RunOrigin } from "../core/ports/run-claims.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import type { ClaimCapability } from "../core/ports/tools.ts";
import type { ContinuationRecord } from "../core/record.ts";
import type { OriginSettlement } from "./api.ts";
import type { ClaimDesk, OpenCapability } from "./claims.ts";
import type { ContinuationDeps } from "./deps.ts";
import { type Ledger, stopping } from "./ledger.ts";

/** Settles origin groups: what the issuer does at the end of a turn, and the host at start-up. */
export function createOriginSettlement(deps: ContinuationDeps, ledger: Ledger): OriginSettlement {
  const { store, clock } = deps;
  return {
    pending() {
      const groups = new Map<string, OriginGroup>();
      for (const record of store.durable.inStates(["claimed", "result_received"])) {
        if (record.originContextState !== "pending" || record.historyBoundary === undefined) continue;
        const group = {
          originRunId: record.originRunId,
          originConversationId: record.originConversationId,
          historyBoundary: record.historyBoundary,
        };
        groups.set(groupKey(group), group);
      }
      return [...groups.values()];
    },
    knows: (originRunId) => store.durable.knowsRun(originRunId),
    async activate(group, snapshotDigest) {
      await store.activate(group, snapshotDigest, new Date(clock.now()).toISOString());
    },
    async abandon(group) {
      await ledger.applyAll(idsOf(pendingMembers(store, group)), () => ({ kind: "abandon_origin" }));
    },
  };
}

function idsOf(records: readonly ContinuationRecord[]): string[] {
  return records.map((record) => record.continuationId);
}

function pendingMembers(store: ContinuationStore, group: OriginGroup): ContinuationRecord[] {
  return store.head.members(group).filter((record) => record.originContextState === "pending");
}

/**
 * The claims of one origin run from capability to settlement: issue → release and drain → finalize → (the host
 * commits the turn) → activate, or abandon when the turn fails before its commit.
 */
export function createIssuer(
  deps: ContinuationDeps,
  ledger: Ledger,
  desk: ClaimDesk,
  origins: OriginSettlement,
  continuationServers: readonly string[],
): RunClaimsIssuer {
  const { store } = deps;

  return {
    issue(origin: RunOrigin): RunClaims {
      const group = {
        originRunId: origin.originRunId,
        originConversationId: origin.conversationId,
        historyBoundary: origin.originRunId,
      };
      const capabilities = new Map<string, ClaimCapability>();
      const open: OpenCapability[] = [];
      for (const serverName of continuationServers) {
        const capability = desk.open({
          serverName,
          ...group,
          replyToConversationId: origin.replyTo,
          mode: "reply",
        });
        capabilities.set(serverName, capability.values);
        open.push(capability);
      }
      const pending = () => pendingMembers(store, group);

      return {
        capabilities,
        async release() {
          await Promise.all(open.map((capability) => capability.release()));
        },
        hasActiveClaims: () => pending().length > 0,

        async finalize(snapshot) {
          const stored = await store.snapshots.put(snapshot);
          if (!stored.ok) return stored;
          const { ref, release } = stored.value;
          try {
            await ledger.applyAll(idsOf(pending()), (record) => ({
              kind: "bind_snapshot",
              ref,
              fingerprint: originContextFingerprint(record.claimFingerprint, ref.digest),
              mac: originContextBindingMac(store.secret, record, ref),
            }));
          } finally {
            release();
          }
          if (ledger.closed) return stopping();
          return ok({ snapshotDigest: ref.digest, historyBoundary: group.historyBoundary });
        },

        async activate(snapshotDigest) {
          await origins.activate(group, snapshotDigest);
        },

        abandon: () => origins.abandon(group),
      };
    },
  };
}
