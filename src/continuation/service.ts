import { operatorToken } from "../core/derive.ts";
import { equalTokens } from "../core/digest.ts";
import type { ContinuationService } from "./api.ts";
import { createClaimDesk } from "./claims.ts";
import { createDeliveryJob } from "./delivery-job.ts";
import type { ContinuationDeps } from "./deps.ts";
import { createHold } from "./hold.ts";
import { createLedger } from "./ledger.ts";
import { createOperatorActions } from "./operator.ts";
import { createProver } from "./proof.ts";
import { isReady } from "./readiness.ts";
import { createResultEntry } from "./results.ts";
import { createDecider } from "./settle-delivered.ts";
import { createIssuer, createOriginSettlement } from "./settlement.ts";
import { createSweeper } from "./sweeper.ts";
import { createSynthesisJob } from "./synthesis-job.ts";
import { createWorker } from "./worker.ts";

export interface ContinuationServiceOptions extends ContinuationDeps {
  /** Names of the MCP servers that get a claim capability in each run. */
  readonly continuationServers: readonly string[];
}

/**
 * Composes the continuation domain over an open store. Nothing runs until `recover` or `startWorker`, which first end what a
 * dead process left half done: an interrupted synthesis ends and is never repeated; an interrupted post is of unknown
 * outcome and is repeated only when it is proved absent, or an operator says so. After a restore, what was unfinished is
 * held (hold.ts).
 */
export function createContinuationService(options: ContinuationServiceOptions): ContinuationService {
  const { store, clock, logger } = options;
  const owner = options.ids.uuid();
  const stop = new AbortController();
  // What comes from outside is refused as soon as the stop begins; jobs and settlements may still finish.
  const outside = createLedger(store, clock, logger);
  const inside = createLedger(store, clock, logger);
  const hold = createHold(store, logger, options.hold);
  const decider = createDecider(options, outside, stop.signal);
  const desk = createClaimDesk(options, outside);
  const origins = createOriginSettlement(options, inside);
  const synthesize = createSynthesisJob(options, inside, owner);
  const deliver = createDeliveryJob(options, inside, owner);
  const prover = createProver(options, outside, decider, hold, stop.signal);
  const worker = createWorker({
    store,
    ledger: inside,
    hold,
    decider,
    clock,
    logger,
    maxConcurrent: options.limits.maxConcurrent,
    isReady: (record) => isReady(record, options),
    process: async (record) => {
      if (record.state === "result_received") return synthesize(record, stop.signal);
      await deliver(record, stop.signal);
      if (store.durable.get(record.continuationId)?.state === "delivery_unknown") {
        prover.consider(record.continuationId);
      }
    },
  });
  const sweeper = createSweeper({ store, clock, logger });
  const announceReady = () => {
    worker.announceReady();
    prover.announceReady();
  };
  const silence = options.delivery.onReady?.(announceReady);
  const expectedOperatorToken = operatorToken(store.secret);

  let recovered: Promise<void> | undefined;

  /**
   * Ends what a dead process left half done. A lease found here has no living owner, the store has one process, unless
   * it is our own: a host that drives time itself may have begun to work before.
   */
  const endInterrupted = async () => {
    const interrupted = store.durable
      .inStates(["synthesizing", "ready_to_deliver", "delivery_retry", "result_received"])
      .filter((record) => record.leaseOwner !== owner)
      .filter((record) => record.state !== "synthesizing" || !hold.has(record.continuationId))
      .map((record) => record.continuationId);
    await inside.applyAll(interrupted, () => ({ kind: "recover" }));
  };

  const recover = () => {
    recovered ??= (async () => {
      await endInterrupted();
      sweeper.start();
      prover.considerAll();
    })();
    return recovered;
  };

  return {
    issuer: createIssuer(options, inside, desk, origins, options.continuationServers),
    origins,
    claims: desk,
    results: createResultEntry(store, outside),
    operator: createOperatorActions(options, outside, decider, prover, hold),
    isOperator: (token) => equalTokens(token, expectedOperatorToken),

    recover,

    async startWorker() {
      await recover();
      worker.start();
    },

    processDue: (limit) => worker.processDue(limit),

    announceReady,

    async stop() {
      outside.close();
      silence?.();
      sweeper.stop();
      await worker.stop(() => stop.abort());
      stop.abort();
      await prover.stop();
      await hold.stop();
      inside.close();
    },
  };
}
