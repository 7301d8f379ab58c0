import { errorText } from "../../core/errors.ts";
import type { CrashDisk, Survival, UnsyncedChange } from "../../core/ports/crash-disk.ts";
import type { FileSystem } from "../../core/ports/platform.ts";
import type { ContinuationStore } from "../../core/ports/store.ts";
import { openContinuationStore } from "../open.ts";
import { storePaths } from "../paths.ts";
import { contentViolation, type Image } from "./image-check.ts";
import { CUT_ERRNO, createInflicted } from "./inflicted.ts";
import { createLedger, type Ledger, recordsKey, recordsOf, retained } from "./ledger.ts";
import { type Cast, createCast, createLife, type Life } from "./life.ts";
import { createRandom, createSimulatedClock, createSimulatedIds, STATE_DIR, silent } from "./simulated.ts";
import { randomSurvival, survivals } from "./survivals.ts";
import type { Step, Workload } from "./workload.ts";

/**
 * Owns: running a workload once, and taking down at each operation what a power cut just before it may leave.
 * Does not own: what must hold of these states (verdict.ts).
 *
 * I1. Nothing is checked while the workload runs, so the recording is the same whatever the checks do.
 */

const START_MS = Date.UTC(2026, 10, 30, 12);

/** What was promised at the moment of a cut. */
export interface Promised {
  readonly ledger: Ledger;
  readonly floor: number;
  readonly top: number;
  /** A store is being opened: retention may have gone further than the states say. */
  readonly recovering: boolean;
  /** The secret that tokens were made with; undefined before the first opening ended. */
  readonly secret: Uint8Array | undefined;
}

export interface CrashState {
  readonly image: number;
  readonly promised: Promised;
  /** Number and label of the operation that the power cut came before. */
  readonly operation: number;
  readonly label: string;
  readonly survival: string;
  /** What was not synced at the cut, and which of it survives. */
  readonly unsynced: readonly UnsyncedChange[];
  readonly survives: "all" | "none" | Survival;
}

export interface Recording {
  readonly images: readonly Image[];
  readonly states: readonly CrashState[];
  readonly operations: number;
  /** What went wrong before any power cut. */
  readonly failure: string | undefined;
}

export interface RecordOptions {
  readonly createDisk: (abilities: { swaps: boolean }) => CrashDisk;
  /** Puts something between the store and its disk; tests plant bugs with it. */
  readonly wrap?: (fs: FileSystem) => FileSystem;
}

export async function record(workload: Workload, options: RecordOptions): Promise<Recording> {
  const clock = createSimulatedClock(START_MS);
  const ids = createSimulatedIds(String(workload.seed));
  const random = createRandom(workload.seed ^ 0x5eed);
  const cast: Cast = createCast();
  const images: Image[] = [];
  const states: CrashState[] = [];
  const known = new Map<string, number>();
  let operations = 0;
  let failure: string | undefined;
  let planned: { left: number; fault: Extract<Step, { op: "fail" }> } | undefined;

  let disk = options.createDisk({ swaps: workload.swaps });
  let ledger = createLedger(new Map());
  let secret: Uint8Array | undefined;
  let recovering = true;
  let store: ContinuationStore | undefined;
  let life: Life | undefined;
  /** Of the store that is open now or being opened. */
  let inflicted = createInflicted();
  let spotless = true;

  function failed(message: string): void {
    failure ??= `after ${operations} operations: ${message}`;
  }

  function take(label: string): void {
    const promised = {
      ledger,
      floor: ledger.floor,
      top: ledger.states.length - 1,
      recovering,
      secret,
    };
    const unsynced = [...disk.unsynced()];
    for (const { name, survival } of survivals(unsynced, random)) {
      const left = disk.afterPowerCut(survival);
      const key = `${left.digest()}@${clock.now()}`;
      let image = known.get(key);
      if (image === undefined) {
        image = images.push({ disk: left, nowMs: clock.now() }) - 1;
        known.set(key, image);
      }
      states.push({
        image,
        promised,
        operation: operations,
        label,
        survival: name,
        unsynced,
        survives: survival,
      });
    }
  }

  function watch(): void {
    disk.failWhen((operation) => {
      operations += 1;
      take(operation.label);
      if (planned === undefined || planned.left > 0) {
        if (planned !== undefined) planned.left -= 1;
        return undefined;
      }
      const { errno, done } = planned.fault;
      planned = undefined;
      inflicted.add(errno);
      return done === true ? { errno, done } : errno;
    });
  }

  /** The process is killed after so many more operations: all later ones fail. */
  function killAfter(operations: number): void {
    disk.cutAfter(operations);
    inflicted.add(CUT_ERRNO);
  }

  /** Opens the store on the disk. An injected fault may refuse it once; the next try goes through. */
  async function open(interrupt?: number): Promise<void> {
    recovering = true;
    inflicted = createInflicted();
    if (interrupt !== undefined) killAfter(interrupt);
    watch();
    try {
      store = await openContinuationStore({
        stateDir: STATE_DIR,
        fs: options.wrap?.(disk) ?? disk,
        clock,
        ids,
        logger: silent,
        retention: workload.retention,
        carryLimits: workload.carryLimits,
        acquireLock: () => ({ release: () => {} }),
      });
    } catch (error) {
      store = undefined;
      life = undefined;
      if (inflicted.rejection(error) !== undefined) {
        return failed(`opening was refused: ${errorText(error)}`);
      }
      if (interrupt !== undefined) disk = disk.takeOver();
      return open();
    }
    disk.cutAfter(Number.POSITIVE_INFINITY);
    // What the opening has outlived may not harm its life; a temporary that it could not remove may lie about.
    spotless = inflicted.nothing;
    inflicted = createInflicted();
    const found = recordsOf(store);
    const explained = ledger.states
      .slice(ledger.floor)
      .some((state) => recordsKey(retained(state, workload.retention, clock.now())) === recordsKey(found));
    if (!explained) failed("the store was opened with records that no order of its changes explains");
    if (secret !== undefined && !Buffer.from(secret).equals(store.secret)) failed("the secret changed");
    secret = store.secret;
    ledger = createLedger(found);
    recovering = false;
    life = createLife({ store, ledger, clock, cast, inflicted, failed });
  }

  /** Requires that the store still writes, unless its disk was made to fail. */
  function requireSound(): void {
    const poison = store === undefined ? undefined : inflicted.poison(store);
    if (poison !== undefined) failed(poison);
  }

  /** Lets what is under way end, whether the disk is still there or not. */
  async function close(): Promise<void> {
    await life?.settle();
    await store?.close();
    requireSound();
    if (store === undefined || !spotless || !inflicted.nothing) return;
    const left = contentViolation(disk, storePaths(STATE_DIR), store, recordsOf(store));
    if (left !== undefined) failed(`closed in order, ${left.message}`);
  }

  await open(workload.interrupt);
  for (const step of workload.steps) {
    if (failure !== undefined || store === undefined || life === undefined) break;
    switch (step.op) {
      case "settle":
        await life.settle();
        break;
      case "pause":
        for (let turn = 0; turn < step.turns; turn += 1) await Promise.resolve();
        break;
      case "fail":
        planned = { left: step.after, fault: step };
        break;
      case "restart":
        await close();
        if (step.interrupt !== undefined) disk = disk.takeOver();
        await open(step.interrupt);
        break;
      case "crash": {
        const { survival } = randomSurvival(disk.unsynced(), createRandom(step.seed));
        const left = disk.afterPowerCut(survival);
        killAfter(0);
        await close();
        disk = left;
        await open();
        break;
      }
      case "kill": {
        if (step.after !== undefined) {
          killAfter(step.after);
          await life.settle();
        }
        const next = disk.takeOver();
        inflicted.add(CUT_ERRNO);
        await close();
        disk = next;
        await open(step.interrupt);
        break;
      }
      default:
        try {
          life.perform(step);
        } catch (error) {
          failed(`${step.op} threw ${errorText(error)}`);
        }
    }
    requireSound();
  }
  await close();
  operations += 1;
  take("the end");
  return { images, states, operations, failure };
}
