import { expect, test } from "bun:test";
import type { Report, Share } from "./model-worker.ts";

/**
 * MODEL_RUNS sequences (20,000), shared by two threads with seeds MODEL_SEED and MODEL_SEED + 1 (random). A failure
 * prints its seed and the smallest sequence that shows it.
 */

const RUNS = Number(process.env.MODEL_RUNS ?? 20_000);
const SEED = Number(process.env.MODEL_SEED ?? Math.floor(Math.random() * 0x7fffffff));
const THREADS = 2;

function runShare(share: Share): Promise<Report> {
  const worker = new Worker(new URL("./model-worker.ts", import.meta.url).href);
  return new Promise<Report>((resolve, reject) => {
    worker.onmessage = ({ data }: MessageEvent<Report>) => resolve(data);
    worker.onerror = ({ message }) => reject(new Error(`seed ${share.seed}: ${message}`));
    worker.postMessage(share);
  }).finally(() => worker.terminate());
}

test(`the service does what the reference model says, over ${RUNS} command sequences with kills and power cuts`, async () => {
  const began = performance.now();
  const reports = await Promise.all(
    Array.from({ length: THREADS }, (_, thread) =>
      runShare({ seed: SEED + thread, runs: Math.ceil(RUNS / THREADS) }),
    ),
  );
  const sum = (of: (report: Report) => number) => reports.reduce((total, report) => total + of(report), 0);
  const seconds = (performance.now() - began) / 1000;
  console.log(
    `model: seed ${SEED}, ${sum((it) => it.sequences)} sequences, ${sum((it) => it.commands)} commands, ` +
      `${sum((it) => it.kills)} kills and ${sum((it) => it.cuts)} power cuts within a command, ` +
      `${sum((it) => it.waits)} waits for a slot, ${sum((it) => it.drops)} records dropped by retention, ${seconds.toFixed(1)} s`,
  );
  for (const { failure } of reports) if (failure !== undefined) throw new Error(failure);
  expect(sum((it) => it.sequences)).toBeGreaterThanOrEqual(RUNS);
  expect(sum((it) => it.waits)).toBeGreaterThan(RUNS / 20);
  expect(sum((it) => it.drops)).toBeGreaterThan(RUNS / 20);
  // Commands that reach nothing would prove nothing.
  for (const state of ["delivery_unknown", "delivery_retry", "dead_lettered", "synthesizing", "delivered"]) {
    expect(sum((it) => it.states.get(state) ?? 0)).toBeGreaterThan(RUNS / 20);
  }
}, 900_000);
