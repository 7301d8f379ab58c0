import { describe, expect, test } from "bun:test";
import { StoreError } from "../../src/core/errors.ts";
import { createLoopbackApp } from "../../src/http/loopback.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { createRecordingLogger, silentLogger } from "../support/silent-logger.ts";

/** A `Host` header names the address that the port is bound to, or `localhost`, which no name server can give away. */

const PORT = 4319;
const NAMES = ["localhost", "127.0.0.1", "[::1]", "[0:0:0:0:0:0:0:1]", "127.0.0.2", "evil.example"];

async function accepted(host: string, port: number, suffix: string): Promise<string[]> {
  const app = createLoopbackApp(
    { bound: { host, port }, logger: silentLogger, clock: createFakeClock() },
    (routes) => {
      routes.all("/", () => new Response("in"));
    },
  );
  const names: string[] = [];
  for (const name of NAMES) {
    const headers = { host: `${name}${suffix}` };
    const { status } = await app.fetch(new Request("http://localhost/", { headers }));
    if (status === 200) names.push(name);
  }
  return names;
}

describe("a port that is bound to", () => {
  test.each([
    ["127.0.0.1", ["localhost", "127.0.0.1"]],
    ["localhost", ["localhost", "127.0.0.1"]],
    ["::1", ["localhost", "[::1]"]],
  ])("%s", async (host, names) => {
    expect(await accepted(host, PORT, `:${PORT}`)).toEqual(names);
    expect(await accepted(host, PORT, "")).toEqual([]);
    expect(await accepted(host, PORT, ":80")).toEqual([]);
    // HTTP leaves its usual port out.
    expect(await accepted(host, 80, "")).toEqual(names);
  });
});

describe("what is thrown at every request", () => {
  async function requests() {
    const [logger, clock] = [createRecordingLogger(), createFakeClock()];
    const bound = { host: "127.0.0.1", port: PORT };
    let thrown: unknown;
    const app = createLoopbackApp({ bound, logger, clock }, (routes) => {
      routes.all("/", () => {
        throw thrown;
      });
    });
    const send = async (error: unknown, times: number) => {
      thrown = error;
      for (let time = 0; time < times; time += 1) {
        const headers = { host: `127.0.0.1:${PORT}` };
        await app.fetch(new Request("http://localhost/", { headers }));
      }
      return logger.lines.splice(0);
    };
    return { clock, send };
  }

  test("because the store needs a restart is logged once a minute, with how many there were since", async () => {
    const { clock, send } = await requests();
    const poisoned = new StoreError("store_poisoned", "closed to writes");
    expect(await send(poisoned, 300)).toEqual([
      'error request failed {"code":"store_poisoned","error":"closed to writes"}',
    ]);
    expect(await send(new StoreError("store_write_failed", "no space"), 2)).toHaveLength(1);
    clock.advance(59_999);
    expect(await send(poisoned, 1)).toEqual([]);
    clock.advance(1);
    expect(await send(poisoned, 2)).toEqual([
      'error request failed {"code":"store_poisoned","error":"closed to writes","notLogged":300}',
    ]);
    // Also when the wall time was set back.
    clock.advance(-3_600_000);
    expect(await send(poisoned, 1)).toHaveLength(1);
  });

  test("for any other reason is logged each time", async () => {
    const { send } = await requests();
    expect(await send(new Error("a bug"), 3)).toHaveLength(3);
    expect(await send(new StoreError("store_corrupt", "damaged"), 3)).toHaveLength(3);
  });
});
