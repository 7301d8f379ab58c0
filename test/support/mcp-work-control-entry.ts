/** The example as the binary runs it: `<entry>` (stdio), `<entry> --http`, `<entry> submit <summary> [task]`. */
import { runWorkControl, submitWork } from "../../src/mcp/example/index.ts";
import { createClock } from "../../src/platform/clock.ts";

const [action, ...rest] = process.argv.slice(2);
const place = { env: process.env, cwd: process.cwd(), clock: createClock() };
const stop = new AbortController();
process.once("SIGTERM", () => stop.abort());

if (action === "submit") {
  const [summary = "", task] = rest;
  const result = await submitWork({ ...place, summary, ...(task === undefined ? {} : { task }) });
  console.log(JSON.stringify(result));
} else if (action === "--http") {
  const onListening = (url: string) => console.log(url);
  await runWorkControl({ ...place, signal: stop.signal, http: { port: 0, onListening } });
} else {
  await runWorkControl({ ...place, signal: stop.signal });
}
