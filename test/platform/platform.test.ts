import { describe, expect, test } from "bun:test";
import { createClock } from "../../src/platform/clock.ts";
import { createIds } from "../../src/platform/ids.ts";
import { createLogger } from "../../src/platform/logger.ts";

describe("clock", () => {
  test("a timer fires once after the others that are due before it", async () => {
    const clock = createClock();
    const fired: string[] = [];
    await new Promise<void>((resolve) => {
      clock.timer(2, () => {
        fired.push("second");
        resolve();
      });
      clock.timer(-5, () => fired.push("first"));
      // A real timer keeps this test's process alive while the unreferenced ones run.
      setTimeout(() => {}, 20);
    });
    expect(fired).toEqual(["first", "second"]);
  });

  test("a cancelled timer and one beyond the runtime's longest delay do not fire", async () => {
    const clock = createClock();
    let fired = 0;
    const cancel = clock.timer(0, () => fired++);
    cancel();
    const cancelLong = clock.timer(30 * 86_400_000, () => fired++);
    await new Promise((resolve) => setTimeout(resolve, 5));
    cancelLong();
    expect(fired).toBe(0);
  });
});

describe("ids", () => {
  test("a run id has the documented form and carries its time", () => {
    const id = createIds().runId(1_764_460_800_123);
    expect(id).toMatch(/^run-[0-9a-z]+-[0-9a-z]{6}$/);
    expect(Number.parseInt(id.split("-")[1] ?? "", 36)).toBe(1_764_460_800_123);
  });

  test("tokens have the asked number of bytes and never repeat", () => {
    const ids = createIds();
    const tokens = new Set(Array.from({ length: 200 }, () => ids.token(24)));
    expect(tokens.size).toBe(200);
    for (const token of tokens) expect(Buffer.from(token, "base64url").length).toBe(24);
    expect(ids.uuid()).toMatch(/^[0-9a-f-]{36}$/);
  });
});

describe("logger", () => {
  const lines = (options: { json: boolean; level?: "debug" | "warn" }) => {
    const written: string[] = [];
    const logger = createLogger({
      level: options.level ?? "debug",
      json: options.json,
      write: (line) => written.push(line),
      now: () => 0,
    });
    return { logger, written };
  };

  test("text form is one line with its fields, and leaves undefined ones out", () => {
    const { logger, written } = lines({ json: false });
    logger.info("listening", { port: 4319, name: "a b", gone: undefined });
    expect(written).toEqual([`1970-01-01T00:00:00.000Z info  listening port=4319 name="a b"\n`]);
  });

  test("an entry can't forge a second line", () => {
    const { logger, written } = lines({ json: false });
    logger.warn("bad\nerror fake", { key: "x\u001b[2J" });
    expect(written[0]?.split("\n").length).toBe(2);
    expect(written[0]).not.toContain("\u001b");
  });

  test("JSON form keeps its own members when a field has the same name", () => {
    const { logger, written } = lines({ json: true });
    logger.error("failed", { level: "info", code: "x" });
    expect(written[0]).toStartWith('{"time":"1970-01-01T00:00:00.000Z","level":"error","message":"failed"');
    expect(JSON.parse(written[0] ?? "")).toEqual({
      time: "1970-01-01T00:00:00.000Z",
      level: "error",
      message: "failed",
      code: "x",
    });
  });

  test("entries below the level are not written", () => {
    const { logger, written } = lines({ json: true, level: "warn" });
    logger.debug("a");
    logger.info("b");
    logger.warn("c");
    expect(written.length).toBe(1);
  });
});
