import { parentPort } from "node:worker_threads";

/** A thread that dies of its first list, as one does that runs out of memory. */
parentPort?.on("message", () => process.exit(1));
