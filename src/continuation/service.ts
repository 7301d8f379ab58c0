import { operatorToken } from "../core/derive.ts";
import { equalTokens } from "../core/digest.ts";
import type { ContinuationService } from "./api.ts";
import { createClaimDesk } from "./claims.ts";
import { createDeliveryJob } from "./delivery-job.ts";
import type { ContinuationDeps } from "./deps.ts";
import { createLedger } from "./ledger.ts";
import { createOperatorActions } from "./operator.ts";
import { createProver } from "./proof.ts";
import { createResultEntry } from "./results.ts";
import { createIssuer, createOriginSettlement } from "./settlement.ts";
import { createSynthesisJob } from "./synthesis-job.ts";
import { createWorker } from "./worker.ts";

export interface ContinuationServiceOptions extends ContinuationDeps {
  /** Names of the MCP servers that get a claim capability in each run. */
  readonly continuationServers: readonly string[];
}

/**
 * Composes the continuation domain over an open store. Nothing runs until `startWorker`, which first ends what a
 * dead process left half done: interrupted synthesis and delivery become terminal and are never repeated.
 */
export function createContinuationService(options: ContinuationServiceOptions): ContinuationService {
  const { store, clock, logger } = options;
  const owner = options.ids.uuid();
  const stop = new AbortController();
  const ledger = createLedger(store, clock);
  const desk = createClaimDesk(options, ledger);
  const origins = createOriginSettlement(options, ledger);
  const synthesize = createSynthesisJob(options, ledger, owner);
  const deliver = createDeliveryJob(options, ledger, owner);
  const prove = createProver(options, ledger);
  const worker = createWorker({
    store,
    ledger,
    clock,
    logger,
    maxConcurrent: options.limits.maxConcurrent,
    process: (record, signal) =>
      record.state === "result_received" ? synthesize(record, signal) : deliver(record, signal),
  });
  const expectedOperatorToken = operatorToken(store.secret);
  let proving: Promise<unknown> = Promise.resolve();

  /** Ends what a dead process left half done. A lease found here has no living owner: the store has one process. */
  const recover = async () => {
    const interrupted = store.durable.inStates([
      "synthesizing",
      "ready_to_deliver",
      "delivery_retry",
      "result_received",
    ]);
    await ledger.applyAll(interrupted, () => ({ kind: "recover" }));
  };

  return {
    issuer: createIssuer(options, ledger, desk, origins, options.continuationServers),
    origins,
    claims: desk,
    results: createResultEntry(store, ledger),
    operator: createOperatorActions(options, ledger, stop.signal),
    isOperator: (token) => equalTokens(token, expectedOperatorToken),

    async startWorker() {
      await recover();
      proving = Promise.all(
        store.durable.inStates(["delivery_unknown"]).map((record) => prove(record, stop.signal)),
      ).catch(() => undefined);
      worker.start();
    },

    processDue: (limit) => worker.processDue(limit),

    async stop() {
      stop.abort();
      await worker.stop();
      await proving;
      ledger.close();
    },
  };
}
