import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { MARK_ENV, runProcessGuard } from "../../src/mcp/process-guard.ts";
import { processesWithEnvironment } from "../../src/platform/process-table.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { groupAlive } from "../support/mcp-host.ts";

const HOST = join(import.meta.dir, "../support/mcp-killed-host-entry.ts");
const ROUNDS = 50;
const AT_ONCE = 5;

function startHost(kinds: readonly string[], env: Record<string, string> = {}) {
  return Bun.spawn([process.execPath, HOST, ...kinds], {
    stdout: "pipe",
    stderr: "inherit",
    stdin: "ignore",
    env: { ...process.env, ...env },
  });
}

/** Starts a host and SIGKILLs it once its servers answer; resolves with the process groups of its servers. */
async function killedHost(kinds: readonly string[]): Promise<number[]> {
  const host = startHost(kinds);
  const groups: number[] = [];
  let rest = "";
  for await (const chunk of host.stdout) {
    const lines = (rest + new TextDecoder().decode(chunk)).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "ready") host.kill("SIGKILL");
      else groups.push(Number(line));
    }
  }
  await host.exited;
  return groups;
}

const gone = async (groups: readonly number[]) => {
  const deadline = performance.now() + 8_000;
  while (groups.some(groupAlive)) {
    if (performance.now() > deadline) throw new Error(`still there: ${groups.filter(groupAlive)}`);
    await Bun.sleep(50);
  }
};

describe("no server survives a SIGKILL of the host", () => {
  test(`in ${ROUNDS} rounds, whether the server heeds the end of its input, SIGTERM or nothing`, async () => {
    const kinds = ["plain", "wrapper", "stubborn"];
    const all: number[] = [];
    for (let round = 0; round < ROUNDS; round += AT_ONCE) {
      // The next hosts start while the guards of these are at work, as after a crash.
      const hosts = Array.from({ length: AT_ONCE }, (_, at) =>
        killedHost([kinds[(round + at) % kinds.length] ?? "plain"]),
      );
      all.push(...(await Promise.all(hosts)).flat());
    }
    expect(new Set(all).size).toBe(ROUNDS);
    await gone(all);
  }, 120_000);

  test.each([0, 1, 2, 5, 10, 20, 40, 80])(
    "%i ms after the first of two servers exists",
    async (afterMs) => {
      const name = "MONO_AGENT_TEST_KILLED";
      const value = crypto.randomUUID();
      const running = () => processesWithEnvironment(`${name}=${value}`);
      const host = startHost(["mute", "stubborn"], { [name]: value });
      while (running().length < 2) await Bun.sleep(1);
      await Bun.sleep(afterMs);
      host.kill("SIGKILL");
      await host.exited;
      const deadline = performance.now() + 10_000;
      // One that the host was about to start may appear a little later, and is ended then.
      for (let looks = 0; looks < 10 && performance.now() < deadline; looks += 1) {
        if (running().length > 0) looks = 0;
        await Bun.sleep(50);
      }
      expect(running()).toEqual([]);
    },
    30_000,
  );
});

describe("the guard", () => {
  const lines = async function* (...text: string[]) {
    for (const line of text) yield new TextEncoder().encode(line);
  };

  /** Runs a guard over a world of processes; `act` sees each signal and may end a process. */
  async function guard(
    said: string[],
    running: Set<number>,
    marked: Record<string, { pid: number; group: number }[]> = {},
    dies?: string,
  ) {
    const clock = createFakeClock();
    const start = clock.now();
    const sent: [number, string, number][] = [];
    const done = runProcessGuard({
      input: lines(...said),
      clock,
      marked: (entry) => (marked[entry] ?? []).filter(({ pid }) => running.has(pid)),
      isRunning: (pid) => running.has(pid),
      signalGroup(group, signal) {
        sent.push([group, signal, clock.now() - start]);
        if (signal === dies) running.clear();
      },
    });
    let ended = false;
    void done.then(() => {
      ended = true;
    });
    while (!ended) {
      await new Promise((resolve) => setImmediate(resolve));
      clock.advance(50);
    }
    return sent;
  }

  test("leaves alone what ended by itself or was given back", async () => {
    expect(await guard(["? a\n+ a 11\n? b\n", "+ b 1", "2\n- b\n"], new Set([12]))).toEqual([]);
  });

  test("ends what stays: SIGTERM after a second, SIGKILL after three, and the group of whoever needed either", async () => {
    const polite = await guard(["+ a 11\n"], new Set([11]), {}, "SIGTERM");
    expect(polite.map(([, signal]) => signal)).toEqual(["SIGTERM", "SIGKILL"]);
    const stubborn = await guard(["+ a 11\n"], new Set([11]), {}, "SIGKILL");
    expect(stubborn[0]).toEqual([11, "SIGTERM", expect.any(Number)]);
    expect(stubborn[0]?.[2]).toBeGreaterThanOrEqual(1_000);
    expect(stubborn[1]?.[1]).toBe("SIGKILL");
    expect(stubborn[1]?.[2]).toBeGreaterThanOrEqual(3_000);
  });

  test("finds by its mark a server that was announced, but whose host died before it could name it", async () => {
    const sent = await guard(
      ["? m1\n"],
      new Set([21]),
      { [`${MARK_ENV}=m1`]: [{ pid: 21, group: 21 }] },
      "SIGTERM",
    );
    expect(sent.map(([group]) => group)).toEqual([21, 21]);
  });

  test("ends the helpers of a server that is gone itself, but not one that left its group", async () => {
    const helpers = (group: number) => ({ [`${MARK_ENV}=a`]: [{ pid: 31, group }] });
    expect(await guard(["+ a 11\n"], new Set([31]), helpers(31))).toEqual([]);
    const sent = await guard(["+ a 11\n"], new Set([31]), helpers(11), "SIGKILL");
    expect(sent.map(([group, signal]) => [group, signal])).toEqual([
      [11, "SIGTERM"],
      [11, "SIGKILL"],
      [11, "SIGKILL"],
    ]);
  });

  test("gives up in the end on a process that nothing ends", async () => {
    const sent = await guard(["+ a 11\n"], new Set([11]));
    expect(sent.at(-1)?.[2]).toBeLessThan(11_000);
  });
});
