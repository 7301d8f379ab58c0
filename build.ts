import { stat } from "node:fs/promises";
import { join } from "node:path";
import { version } from "./package.json";

/** Compiles the one binary for this machine to dist/mono-agent. Prints its size to standard error, nothing to standard output. */
const outfile = join(import.meta.dir, "dist", process.platform === "win32" ? "mono-agent.exe" : "mono-agent");

const result = await Bun.build({
  // The second is the thread that writes files (src/platform/filesystem-threads.ts).
  entrypoints: ["src/main.ts", "src/platform/filesystem-worker.ts"].map((path) =>
    join(import.meta.dir, path),
  ),
  target: "bun",
  format: "esm",
  minify: true,
  bytecode: true,
  sourcemap: "none",
  define: { MONO_AGENT_VERSION: JSON.stringify(version) },
  compile: {
    outfile,
    // The folder that it is started in must not configure it.
    autoloadDotenv: false,
    autoloadBunfig: false,
    autoloadTsconfig: false,
    autoloadPackageJson: false,
  },
});

if (!result.success) {
  for (const log of result.logs) console.error(log);
  process.exit(1);
}
const { size } = await stat(outfile);
console.error(`${outfile}: ${(size / 1024 / 1024).toFixed(1)} MiB`);
