import { describe, expect, test } from "bun:test";
import { createLoopbackApp } from "../../src/http/loopback.ts";
import { silentLogger } from "../support/silent-logger.ts";

/** A `Host` header names the address that the port is bound to, or `localhost`, which no name server can give away. */

const PORT = 4319;
const NAMES = ["localhost", "127.0.0.1", "[::1]", "[0:0:0:0:0:0:0:1]", "127.0.0.2", "evil.example"];

async function accepted(host: string, port: number, suffix: string): Promise<string[]> {
  const app = createLoopbackApp({ bound: { host, port }, logger: silentLogger }, (routes) => {
    routes.all("/", () => new Response("in"));
  });
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
