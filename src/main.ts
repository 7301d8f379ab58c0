import { processIo } from "./cli/io.ts";
import { runMonoAgent } from "./cli/root.ts";

// The exit code is set rather than forced, so that what was written still gets out.
process.exitCode = await runMonoAgent(process.argv.slice(2), processIo());
