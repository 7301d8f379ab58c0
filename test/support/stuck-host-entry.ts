import { loadConfig } from "../../src/config/load.ts";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import { startMonoAgent } from "../../src/host/index.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createLogger } from "../../src/platform/logger.ts";

/** A host whose store never finishes the first write that contains the text given as argument: killed there, it was killed exactly there. */
const needle = process.argv[2] ?? "";
const real = createFileSystem();
const fs: FileSystem = {
  ...real,
  run(steps) {
    const stuck = steps.some((step) => step.op === "write" && Buffer.from(step.data).includes(needle));
    return stuck ? new Promise(() => {}) : real.run(steps);
  },
};
const config = loadConfig({ cwd: process.cwd(), env: process.env });
const logger = createLogger({
  level: "info",
  json: true,
  color: false,
  write: (text) => void process.stderr.write(text),
});
await startMonoAgent({ config, logger, fs, env: process.env });
