import { processIo } from "./cli/io.ts";
import { runMonoAgent } from "./cli/root.ts";

const code = await runMonoAgent(process.argv.slice(2), processIo());
// The exit code is set rather than forced, so that what was written still gets out. One that is set says what was lost.
process.exitCode ||= code;
