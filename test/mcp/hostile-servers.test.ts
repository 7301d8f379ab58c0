import { afterEach, describe, expect, test } from "bun:test";
import { join } from "node:path";
import type { ToolHost } from "../../src/core/ports/tools.ts";
import { createConnection } from "../../src/mcp/connection.ts";
import { LIST_MAX_TOOLS, LIST_TIMEOUT_MS } from "../../src/mcp/listing.ts";
import { createClock } from "../../src/platform/clock.ts";
import { until } from "../support/binary.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { never, script, sessionRequest, toolHost } from "../support/mcp-host.ts";
import { silentLogger } from "../support/silent-logger.ts";

const RAW = join(import.meta.dir, "../support/mcp-raw-server.ts");

const hosts: ToolHost[] = [];
afterEach(async () => {
  await Promise.all(hosts.splice(0).map((host) => host.close()));
});

function open(mode: string) {
  const host = toolHost({ raw: script(RAW, [mode]) });
  hosts.push(host);
  return host.open(sessionRequest());
}

describe("a server that", () => {
  test.each([
    ["refuses", "it closed the connection, or answered with protocol error -32000"],
    ["newer", "it speaks a version of the protocol that this program does not know"],
    ["endless", "the process sent a message of more than 10 MiB before it answered"],
  ])("(%s) does not get to its tools is a warning that says why", async (mode, why) => {
    const { tools, warnings } = await open(mode);
    expect(tools).toEqual([]);
    expect(warnings.map(({ message }) => message)).toEqual([`raw: ${why}`]);
  });

  test.each([
    ["exit", "the process ended with exit code 5 during the call"],
    ["big", "the process sent a message of more than 10 MiB during the call"],
  ])("(%s) is lost in a call leaves an unknown outcome that says how", async (tool, why) => {
    const error = await (await open("")).call(tool, {}, never).catch((thrown: unknown) => thrown);
    expect(String(error)).toBe(`McpError: raw: ${why}; the outcome is unknown`);
  });

  test("closes its output and lives on is taken for lost, and ended", async () => {
    // The shell stays when the server behind it has gone.
    const wrapper = 'exec 3<&0; "$0" "$1" <&3 & exec 3<&- >&-; wait; exec sleep 600';
    const { command = "" } = script(RAW);
    const host = toolHost(
      { raw: { command: "/bin/sh", args: ["-c", wrapper, command, RAW] } },
      { clock: { now: () => 0, timer: (delayMs, fire) => createClock().timer(delayMs / 20, fire) } },
    );
    hosts.push(host);
    const session = await host.open(sessionRequest());
    const error = await session.call("exit", {}, never).catch((thrown: unknown) => thrown);
    expect(String(error)).toBe(
      "McpError: raw: the process closed its output during the call; the outcome is unknown",
    );
  });

  test("does not give its changed list holds up no call that is aborted", async () => {
    const session = await open("");
    expect((await session.call("change", {}, never)).text).toBe("changed");
    const stop = new AbortController();
    const call = session.call("odd", {}, stop.signal).catch((thrown: unknown) => thrown);
    stop.abort();
    expect(String(await call)).toBe("McpError: raw: the call was aborted before it was sent");
  });

  test("prints what is no message is understood all the same", async () => {
    const session = await open("noisy");
    expect(session.warnings).toEqual([]);
    expect((await session.call("odd", {}, never)).text).toBe("fine");
  });

  test("asks for what we don't do is told so at once", async () => {
    expect((await (await open("")).call("sample", {}, never)).text).toContain(
      "mono-agent has no sampling/createMessage",
    );
  });
});

describe("a list of tools", () => {
  test("beyond the bound is cut, with a warning", async () => {
    const { tools, warnings } = await open("many");
    expect(tools.length).toBe(LIST_MAX_TOOLS);
    expect(warnings.map(({ message }) => message)).toEqual([
      `raw: the list of tools is too long or does not end; its first ${LIST_MAX_TOOLS} are used`,
    ]);
  });

  test("with two tools of one name has the first of them, with a warning", async () => {
    const { tools, warnings } = await open("twins");
    expect(tools.map(({ name, description }) => [name, description])).toEqual([
      ["twin", "first"],
      ["__2Jname", ""],
    ]);
    expect(warnings.map(({ message }) => message)).toEqual([
      "raw: it lists 1 more under names that it has used already; the first of each counts",
    ]);
  });

  test("that comes too slowly, page by page, is given up as a whole", async () => {
    const clock = createFakeClock();
    const connection = createConnection({
      server: "raw",
      spec: script(RAW, ["slow"]),
      grant: "unselected",
      context: "unselected",
      baseEnv: process.env,
      authority: [],
      cwd: process.cwd(),
      timeouts: { inactivityMs: 5_000, totalMs: 5_000 },
      clock,
      logger: silentLogger,
    });
    try {
      const listing = connection.connect(never);
      await until("the list", async () => connection.isOpen() && clock.pending() > 0);
      clock.advance(LIST_TIMEOUT_MS);
      const { failed, warnings } = await listing;
      expect(failed).toBe(true);
      expect(warnings[0]?.message).toBe("raw: it did not answer in time, or the run was aborted");
      expect(clock.pending()).toBe(0);
    } finally {
      let closed = false;
      const closing = connection.close().then(() => {
        closed = true;
      });
      await until("the end", async () => {
        clock.advance(1_000);
        return closed;
      });
      await closing;
    }
  });
});
