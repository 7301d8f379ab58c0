import { afterEach, describe, expect, test } from "bun:test";
import { chmodSync, linkSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { TerminalDeps } from "../../../src/channels/terminal/channel.ts";
import { createTerminalHost } from "../../support/terminal-host.ts";

type Host = Awaited<ReturnType<typeof createTerminalHost>>;
const hosts: Host[] = [];

afterEach(async () => {
  for (const host of hosts.splice(0)) await host.remove();
});

async function newHost(options: Partial<TerminalDeps> = {}): Promise<Host> {
  const host = await createTerminalHost(options);
  hosts.push(host);
  return host;
}

async function started(options: Partial<TerminalDeps> = {}) {
  const host = await newHost(options);
  await host.channel.start();
  const token = await host.token();
  const call = async (method: string, path: string, body?: unknown, headers: Record<string, string> = {}) => {
    const response = await fetch(`${host.address()}/v1/terminal${path}`, {
      method,
      headers: { authorization: `Bearer ${token}`, ...headers },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const json = JSON.parse(await response.text());
    return { status: response.status, headers: response.headers, json, code: json.error?.code };
  };
  return { ...host, call };
}

const request = (deliveryKey: string, text: string, destination = "terminal:main") => ({
  destination,
  text,
  deliveryKey,
  signal: new AbortController().signal,
});

test("each start is announced, until the listener ends", async () => {
  const host = await newHost();
  const heard: string[] = [];
  const end = host.channel.onReady(() => heard.push(host.channel.status()));
  await host.channel.start();
  await host.channel.stop();
  await host.channel.start();
  expect(heard).toEqual(["running", "running"]);
  end();
  await host.channel.stop();
  await host.channel.start();
  expect(heard.length).toBe(2);
});

describe("the terminal token", () => {
  test("is created owner-only, kept over restarts, and needed for every call", async () => {
    const host = await started();
    const token = await host.token();
    expect(token).toMatch(/^[A-Za-z0-9_-]{43}$/);
    expect(statSync(join(host.folder.dir, "terminal-token")).mode & 0o777).toBe(0o600);
    await host.channel.stop();
    await host.channel.start();
    expect(await host.token()).toBe(token);
    for (const path of ["/health", "/conversations/main/messages", "/conversations/main/events"]) {
      const wrong = await host.call("GET", path, undefined, { authorization: "Bearer wrong" });
      expect([wrong.status, wrong.code]).toEqual([401, "invalid_terminal_capability"]);
      expect((await fetch(`${host.address()}/v1/terminal${path}`)).status).toBe(401);
    }
    expect((await host.call("GET", "/health")).json).toEqual({ status: "running", observers: 0 });
  });

  test("a web page is refused even with the token", async () => {
    const host = await started();
    const answer = await host.call("GET", "/health", undefined, { origin: "http://evil.example" });
    expect([answer.status, answer.code]).toEqual([403, "forbidden_origin"]);
  });

  const unsafe: [string, (path: string) => void][] = [
    [
      "readable by others",
      (path) => {
        writeFileSync(path, "x".repeat(43));
        chmodSync(path, 0o644);
      },
    ],
    [
      "a symlink",
      (path) => {
        writeFileSync(`${path}.real`, "x".repeat(43), { mode: 0o600 });
        symlinkSync(`${path}.real`, path);
      },
    ],
    [
      "a hard link",
      (path) => {
        writeFileSync(path, "x".repeat(43), { mode: 0o600 });
        linkSync(path, `${path}.other`);
      },
    ],
    ["not a token", (path) => writeFileSync(path, "", { mode: 0o600 })],
  ];
  test.each(unsafe)("a file that is %s is refused, and the channel has failed", async (_what, prepare) => {
    const host = await newHost();
    prepare(join(host.folder.dir, "terminal-token"));
    expect(host.channel.start()).rejects.toMatchObject({ code: "store_unsafe_file" });
    await host.channel.start().catch(() => {});
    expect(host.channel.status()).toBe("failed");
    expect(host.channel.address()).toBeUndefined();
  });
});

describe("turns and messages", () => {
  test("files come with a turn as base64, and what is no file is refused by name", async () => {
    const { call, submitted } = await started();
    const png = { mediaType: "image/png", name: "a.png", data: Buffer.from([137, 80]).toString("base64") };
    const pdf = { mediaType: "application/pdf", name: "b.pdf", data: Buffer.from("%PDF").toString("base64") };
    const body = { requestId: "r1", text: "look", attachments: [png, pdf] };
    expect((await call("POST", "/conversations/main/turns", body)).status).toBe(202);
    expect(submitted[0]?.attachments).toEqual([
      { kind: "image", mediaType: "image/png", name: "a.png", data: new Uint8Array([137, 80]) },
      {
        kind: "document",
        mediaType: "application/pdf",
        name: "b.pdf",
        data: new TextEncoder().encode("%PDF"),
      },
    ]);
    for (const attachments of [
      Array(9).fill(png),
      [{ ...png, data: "not base64!" }],
      [{ ...png, path: "/etc/passwd" }],
      "a.png",
    ]) {
      const refused = await call("POST", "/conversations/main/turns", {
        requestId: "r2",
        text: "x",
        attachments,
      });
      expect([refused.status, refused.code]).toEqual([400, "invalid_body"]);
      expect(refused.json.error.message).toMatch(/attachments|"path"/);
    }
    expect(submitted).toHaveLength(1);
  });

  test("a turn is admitted once per request id, in its conversation", async () => {
    const { call, submitted } = await started();
    const body = { requestId: "r1", text: "hello" };
    const first = await call("POST", "/conversations/main/turns", body);
    expect([first.status, first.json.replayed]).toEqual([202, false]);
    const again = await call("POST", "/conversations/main/turns", body);
    expect([again.status, again.json]).toEqual([202, { turnId: first.json.turnId, replayed: true }]);
    expect(submitted[0]).toEqual({
      requestId: "r1",
      text: "hello",
      conversationId: "terminal:main",
      replyTo: "terminal:main",
    });
  });

  test("with daily rollover the conversation carries the day of its time zone, the route does not", async () => {
    const session = { rollover: "daily", timezone: "Pacific/Auckland" } as const;
    const { call, submitted } = await started({ session });
    await call("POST", "/conversations/main/turns", { requestId: "r", text: "x" });
    expect(submitted[0]?.conversationId).toBe("terminal:main#2026-12-01");
    expect(submitted[0]?.replyTo).toBe("terminal:main");
  });

  test("wrong bodies, names and queries are refused by name", async () => {
    const { call, submitted } = await started({ allow: ["main"] });
    const turns = "/conversations/main/turns";
    expect((await call("POST", turns, { requestId: "r", text: "" })).code).toBe("invalid_text");
    expect((await call("POST", turns, { requestId: "r", text: "x".repeat(65_537) })).code).toBe(
      "invalid_text",
    );
    expect((await call("POST", turns, { requestId: " ", text: "x" })).code).toBe("invalid_requestId");
    expect((await call("POST", turns, { requestId: "r", text: "x", replyTo: "slack:C" })).code).toBe(
      "invalid_body",
    );
    expect((await call("POST", "/conversations/other/turns", {})).code).toBe("not_found");
    expect((await call("POST", "/conversations/a%2Fb/turns", {})).code).toBe("not_found");
    expect((await call("GET", "/conversations/main/messages?limit=501")).code).toBe("invalid_page_limit");
    expect((await call("GET", "/conversations/main/messages?after=-1")).code).toBe("invalid_page_cursor");
    expect((await call("GET", turns)).headers.get("allow")).toBe("POST");
    expect(submitted).toEqual([]);
  });

  test("the engine's refusal reaches the client with a time to retry", async () => {
    const { call } = await started();
    const answer = await call("POST", "/conversations/main/turns", { requestId: "r", text: "refuse" });
    expect([answer.status, answer.code, answer.headers.get("retry-after")]).toEqual([429, "queue_full", "3"]);
  });

  test("a turn is cancelled only through its own conversation", async () => {
    const { call, cancelled } = await started();
    const { json } = await call("POST", "/conversations/main/turns", { requestId: "r", text: "x" });
    const cancel = `/turns/${json.turnId}/cancel`;
    expect((await call("POST", `/conversations/other${cancel}`)).code).toBe("not_found");
    expect((await call("POST", "/conversations/main/turns/none/cancel")).code).toBe("not_found");
    expect(cancelled).toEqual([]);
    expect((await call("POST", `/conversations/main${cancel}`)).status).toBe(200);
    expect(cancelled).toEqual([json.turnId]);
  });

  test("messages are paged by seq over all buckets; lastSeq is where events go on", async () => {
    const { call, append } = await started();
    expect((await call("GET", "/conversations/main/messages")).json).toEqual({ messages: [], lastSeq: 0 });
    await append("a", "a", "terminal:main#2026-11-29");
    const second = await append("b", "b", "terminal:main#2026-11-30");
    const third = await append("c");
    await append("d", "d", "terminal:other");
    const texts = (json: { messages: { content: string }[] }) => json.messages.map((one) => one.content);
    const tail = (await call("GET", "/conversations/main/messages?limit=2")).json;
    expect([texts(tail), tail.lastSeq]).toEqual([["b", "c"], third.seq]);
    const page = (await call("GET", "/conversations/main/messages?after=0&limit=2")).json;
    expect([texts(page), page.lastSeq]).toEqual([["a", "b"], second.seq]);
    const rest = (await call("GET", `/conversations/main/messages?after=${third.seq}`)).json;
    expect(rest).toEqual({ messages: [], lastSeq: third.seq });
  });
});

describe("delivery", () => {
  test("the post is the row: once, however often it is repeated, also after midnight", async () => {
    const session = { rollover: "daily", timezone: "UTC" } as const;
    const { channel, clock, turns, engine } = await started({ session });
    const events: unknown[] = [];
    engine.observe("terminal:main", (event) => events.push(event));
    const first = await channel.deliver(request("continuation:1", "answer"));
    clock.advance(24 * 3_600_000);
    expect(await channel.deliver(request("continuation:1", "answer"))).toEqual(first);
    const feed = await turns.feed("terminal:main", 0, 10);
    expect(feed.map((row) => [row.conversationId, row.content])).toEqual([
      ["terminal:main#2026-11-30", "answer"],
    ]);
    expect(first).toEqual({ kind: "delivered", parts: [{ id: `terminal:${feed[0]?.seq}` }] });
    expect(events).toEqual([{ type: "message", message: feed[0] }]);
    expect(await channel.deliver(request("continuation:1", "other"))).toMatchObject({
      kind: "permanent",
      code: "delivery_conflict",
    });
  });

  test("a look-up proves a post and its absence", async () => {
    const { channel } = await started();
    const find = () =>
      channel.findDelivery(
        "terminal:main",
        "continuation:1",
        "2026-11-30T00:00:00.000Z",
        new AbortController().signal,
      );
    expect((await find()).kind).toBe("absent");
    const outcome = await channel.deliver(request("continuation:1", "answer"));
    expect(await find()).toMatchObject({
      kind: "delivered",
      parts: outcome.kind === "delivered" ? outcome.parts : [],
    });
  });

  test("destinations beyond the allowlist or of another form are not served", async () => {
    const { channel } = await started({ allow: ["main"] });
    expect(channel.allows("terminal:main")).toBe(true);
    expect(channel.allows("terminal:main#2026-11-30")).toBe(true);
    for (const destination of ["terminal:other", "terminal:", "terminal:a/b", "slack:main", "main"]) {
      expect(channel.allows(destination)).toBe(false);
      expect((await channel.deliver(request("k", "t", destination))).kind).toBe("permanent");
    }
  });
});
