import { afterEach, describe, expect, test } from "bun:test";
import { inspect } from "node:util";
import { failure, KEY, KINDS, modelAt, NAMES, PROMPT, request, WIRE } from "../support/model-rig.ts";
import { type Reply, startWireServer, type WireServer } from "../support/model-wire.ts";

/** What stands between us and a provider, or at its address instead of it, and what it says. */

let server: WireServer | undefined;
afterEach(async () => {
  await server?.stop();
  server = undefined;
});

const serve = (...replies: [Reply, ...Reply[]]) => {
  server = startWireServer(...replies);
  return server;
};
const HTML = { "content-type": "text/html" };
const page: Reply = { status: 200, body: `<!doctype html><p>Log in ${KEY}</p>`, headers: HTML };
const jsonError = (error: unknown): Reply => ({ status: 200, body: JSON.stringify({ error }) });

describe.each(KINDS)("at the address of a %s model", (kind) => {
  const ask = async (...replies: [Reply, ...Reply[]]) => {
    const { url } = serve(...replies);
    return failure(modelAt(url, kind).call(request()));
  };

  test("a web page is named as one, and the next model is asked", async () => {
    const error = await ask(page);
    expect(error).toMatchObject({ code: "model_rejected", notRun: false });
    expect(error.message).toContain("a web page came instead of an answer");
    expect(inspect(error, { depth: 10 })).not.toContain(KEY);
    await server?.stop();
    const { url } = serve(page, { events: WIRE[kind].text(["from the second"]), after: "end" });
    const model = modelAt(url, kind, { fallbacks: [{ name: NAMES[kind] }] });
    expect(await model.call(request())).toMatchObject({ text: "from the second" });
  });

  test("an error with HTTP 200 is the error that it names", async () => {
    const overload = await ask(jsonError({ type: "overloaded_error", message: `busy ${KEY}` }));
    expect(overload).toMatchObject({ code: "model_unavailable", notRun: false });
    expect(overload.message).toContain("overloaded");
    await server?.stop();
    const words = await ask(jsonError(`no such model ${KEY}`));
    expect(words).toMatchObject({ code: "model_rejected", notRun: false });
    expect(words.message).toContain("refused the request");
    expect(inspect([overload, words], { depth: 10 })).not.toContain(KEY);
  });

  test("an answer in one piece is named as that", async () => {
    const error = await ask({ status: 200, body: `{"choices":[{"message":{"content":"${PROMPT}"}}]}` });
    expect(error).toMatchObject({ code: "model_rejected", notRun: false });
    expect(error.message).toContain("in one piece");
    expect(inspect(error, { depth: 10 })).not.toContain(PROMPT);
  });

  test("an endless document is not read to its end", async () => {
    const endless: Reply = { events: ["<html>", ...Array(4).fill("x".repeat(100_000))], after: "hang" };
    const { url, clientGone } = serve(endless);
    expect((await failure(modelAt(url, kind).call(request()))).message).toContain("a web page");
    await clientGone;
  });

  test("an answer without a body is no answer", async () => {
    const model = modelAt("http://127.0.0.1:9", kind, {
      fetch: () => Promise.resolve(new Response(null, { status: 204 })),
    });
    expect((await failure(model.call(request()))).message).toContain("the answer broke off");
  });

  test("a stream that begins with a mark, blank lines or a comment is a stream", async () => {
    const events = WIRE[kind].text(["all ", "the same"]);
    const bytes = new TextEncoder().encode(`\ufeff\r\n\n: PROCESSING\n\n${events.join("")}`);
    const cut = [bytes.slice(0, 1), bytes.slice(1, 2), bytes.slice(2, 4), bytes.slice(4)];
    const { url } = serve({ events: cut, after: "end" });
    expect((await modelAt(url, kind).call(request())).text).toBe("all the same");
  });

  const thrown = (code: string, message = "x") =>
    modelAt("http://127.0.0.1:9", kind, {
      fetch: () => Promise.reject(Object.assign(new TypeError(`${message} ${KEY}`), { code })),
    });
  test.each([
    "DEPTH_ZERO_SELF_SIGNED_CERT",
    "CERT_HAS_EXPIRED",
    "ERR_TLS_CERT_ALTNAME_INVALID",
    "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
    "UNKNOWN_CERTIFICATE_VERIFICATION_ERROR",
  ])("a certificate that is not trusted is a refusal of ours, not a mistake: %s", async (code) => {
    const error = await failure(thrown(code).call(request()));
    expect(error).toMatchObject({ code: "model_rejected", notRun: true });
    expect(error.message).toContain(`certificate is not trusted (${code})`);
    expect(inspect(error, { depth: 10 })).not.toContain(KEY);
  });

  test("what does not speak HTTP is named, and no mistake of ours", async () => {
    const error = await failure(thrown("Malformed_HTTP_Response").call(request()));
    expect(error).toMatchObject({ code: "model_unavailable", notRun: false });
    expect(error.message).toContain("does not speak HTTP");
  });

  test("a proxy that refuses is named as the proxy", async () => {
    const tunnel = await failure(thrown("ERR_PROXY_TUNNEL").call(request()));
    expect(tunnel).toMatchObject({ code: "model_unavailable", notRun: true });
    const status = await ask({ status: 407, body: "", headers: HTML });
    expect(status).toMatchObject({ code: "model_rejected", notRun: true });
    for (const { message } of [tunnel, status]) expect(message).toContain("the proxy");
  });
});

test("a key that Google refuses is told from other refused requests, although both are HTTP 400", async () => {
  const details = [{ "@type": "type.googleapis.com/google.rpc.ErrorInfo", reason: "API_KEY_INVALID" }];
  const body = JSON.stringify({ error: { code: 400, message: "x", status: "INVALID_ARGUMENT", details } });
  const { url } = serve({ status: 400, body });
  const error = await failure(modelAt(url, "google").call(request()));
  expect(error.message).toContain("refused the API key (HTTP 400");
});

test("the time that Google names in the body of a 429 is waited for", async () => {
  const details = [{ "@type": "type.googleapis.com/google.rpc.RetryInfo", retryDelay: "7.5s" }];
  const body = JSON.stringify({ error: { code: 429, message: "x", status: "RESOURCE_EXHAUSTED", details } });
  const { url } = serve({ status: 429, body });
  const error = await failure(modelAt(url, "google").call(request()));
  expect(error).toMatchObject({ code: "model_unavailable", notRun: true, retryAfterMs: 7_500 });
});

test.each([
  ["google", { error: { code: 503, message: "x", status: "UNAVAILABLE" } }],
  ["anthropic", { type: "error", error: { type: "api_error", message: "x" } }],
  ["responses", { type: "error", sequence_number: 1, code: "server_error", message: "x", param: null }],
  [
    "responses",
    {
      type: "response.failed",
      sequence_number: 1,
      response: { error: { code: "server_error", message: "x" } },
    },
  ],
  ["chat", { error: { message: "x", type: "server_error", code: null } }],
  ["compatible", { error: { message: "x", code: 502 } }],
] as const)("a fault that the %s wire reports inside a stream passes: %j", async (kind, event) => {
  const { url } = serve({
    events: [...WIRE[kind].unfinished([]), `data: ${JSON.stringify(event)}\n\n`],
    after: "end",
  });
  const error = await failure(modelAt(url, kind).call(request()));
  expect(error).toMatchObject({ code: "model_unavailable", notRun: false });
  expect(error.message).toContain("has a fault at present");
});

test("what is forbidden is not said to be a bad key", async () => {
  const { url } = serve({ status: 403, body: "<html>blocked</html>", headers: HTML });
  const error = await failure(modelAt(url, "compatible").call(request()));
  expect(error).toMatchObject({ code: "model_rejected", notRun: true });
  expect(error.message).toContain("does not allow");
});
