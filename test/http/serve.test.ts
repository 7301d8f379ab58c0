import { afterEach, expect, test } from "bun:test";
import { AppError } from "../../src/core/errors.ts";
import { BODY_READ_TIMEOUT_MS, RESULT_BODY_MAX_BYTES, STOP_TIMEOUT_MS } from "../../src/core/limits.ts";
import { errorBodySchema } from "../../src/core/wire.ts";
import { createContinuationApp } from "../../src/http/continuation-app.ts";
import { type HttpServer, type ServeDeps, serveHttp } from "../../src/http/serve.ts";
import { createFakeClock, type FakeClock } from "../support/fake-clock.ts";
import { createFakeService, KNOWN_ID, TOKENS } from "../support/http-service.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";

const running: { server: HttpServer; clock: FakeClock }[] = [];

afterEach(async () => {
  for (const { server, clock } of running.splice(0)) {
    const stopped = server.stop();
    clock.advance(STOP_TIMEOUT_MS);
    await stopped;
  }
});

async function listen(app?: ServeDeps["app"]) {
  const clock = createFakeClock();
  const logger = createRecordingLogger();
  const fake = createFakeService();
  const server = await serveHttp({
    app:
      app ??
      ((bound) =>
        createContinuationApp({ service: fake.service, bound, clock, logger, watchers: new Set() })),
    host: "127.0.0.1",
    port: 0,
    clock,
    logger,
  });
  running.push({ server, clock });
  return { server, clock, logger, ...fake, url: `http://127.0.0.1:${server.port}` };
}

/** Resolves when `clock` holds the given number of timers, which is how a test sees that work has reached a wait. */
async function timersReach(clock: FakeClock, count: number) {
  while (clock.pending() < count) await new Promise((resolve) => setImmediate(resolve));
}

const errorCode = async (response: Response) => errorBodySchema.parse(await response.json()).error.code;

const RESULT = `/v1/continuations/${KNOWN_ID}/result`;
const authorization = `Bearer ${TOKENS.result}`;

test("serves the app on the real port, whose number the Host check uses", async () => {
  const { url, server } = await listen();
  expect(server.port).toBeGreaterThan(0);
  const headers = { authorization: `Bearer ${TOKENS.operator}` };
  expect((await fetch(`${url}/v1/operator/health`, { headers })).status).toBe(200);
});

test("a body without a length is cut off at the limit while it streams", async () => {
  const { url, calls } = await listen();
  let sent = 0;
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      const chunk = new Uint8Array(64 * 1024).fill(0x20);
      sent += chunk.byteLength;
      controller.enqueue(chunk);
    },
  });
  const response = await fetch(url + RESULT, { method: "PUT", headers: { authorization }, body });
  expect(response.status).toBe(413);
  expect(sent).toBeLessThan(200 * RESULT_BODY_MAX_BYTES);
  expect(calls).toEqual([]);
});

test("a large body with a wrong token is 401, with the right one 413", async () => {
  const { url } = await listen();
  const body = "x".repeat(8 * 1024 * 1024);
  const wrong = await fetch(url + RESULT, { method: "PUT", headers: { authorization: "Bearer no" }, body });
  expect(wrong.status).toBe(401);
  const right = await fetch(url + RESULT, { method: "PUT", headers: { authorization }, body });
  expect([right.status, await errorCode(right)]).toEqual([413, "payload_too_large"]);
});

test("a body that does not arrive in time is refused and its timer ends", async () => {
  const { url, clock, calls } = await listen();
  const body = new ReadableStream<Uint8Array>({
    start: (controller) => controller.enqueue(new TextEncoder().encode("{")),
  });
  const answer = fetch(url + RESULT, { method: "PUT", headers: { authorization }, body });
  await timersReach(clock, 1);
  clock.advance(BODY_READ_TIMEOUT_MS);
  const response = await answer;
  expect([response.status, await errorCode(response)]).toEqual([408, "request_timeout"]);
  expect(clock.pending()).toBe(0);
  expect(calls).toEqual([]);
});

test("a port in use is refused with the address and the way out", async () => {
  const { server, clock, logger } = await listen();
  const app = () => ({ fetch: () => new Response() });
  let failed: unknown;
  void serveHttp({ app, host: "127.0.0.1", port: server.port, clock, logger }).catch((error: unknown) => {
    failed = error;
  });
  // It is tried again for a second: a killed host may hold its port for a moment.
  const start = clock.now();
  while (failed === undefined) {
    await new Promise((resolve) => setImmediate(resolve));
    clock.advance(100);
  }
  expect(clock.now() - start).toBeGreaterThanOrEqual(1_000);
  expect(failed).toBeInstanceOf(AppError);
  const { code, message } = failed as AppError;
  expect(code).toBe("listen_failed");
  expect(message).toContain(`127.0.0.1:${server.port}: the port is in use`);
  expect(message).toContain("another port in the configuration");
});

test("a port that becomes free within a second is taken", async () => {
  const { server, clock, logger } = await listen();
  const app = () => ({ fetch: () => new Response("second") });
  const second = serveHttp({ app, host: "127.0.0.1", port: server.port, clock, logger });
  await timersReach(clock, 1);
  await server.stop();
  clock.advance(100);
  const taken = await second;
  running.push({ server: taken, clock });
  expect(await (await fetch(`http://127.0.0.1:${taken.port}/`)).text()).toBe("second");
});

test("stop lets an open request finish, then nothing listens", async () => {
  const gate = Promise.withResolvers<void>();
  const entered = Promise.withResolvers<void>();
  const { server, url } = await listen(() => ({
    fetch: async () => {
      entered.resolve();
      await gate.promise;
      return new Response("done");
    },
  }));
  const answer = fetch(url);
  await entered.promise;
  const stopped = server.stop();
  gate.resolve();
  expect(await (await answer).text()).toBe("done");
  await stopped;
  expect(fetch(url)).rejects.toThrow();
});

test("stop does not wait for ever for a request that hangs", async () => {
  const entered = Promise.withResolvers<void>();
  const { server, url, clock, logger } = await listen(() => ({
    fetch: () => {
      entered.resolve();
      return new Promise<Response>(() => {});
    },
  }));
  const answer = fetch(url).then(
    () => "answered",
    () => "closed",
  );
  await entered.promise;
  const stopped = server.stop();
  await timersReach(clock, 1);
  clock.advance(STOP_TIMEOUT_MS);
  await stopped;
  expect(await answer).toBe("closed");
  expect(logger.lines).toHaveLength(1);
});
