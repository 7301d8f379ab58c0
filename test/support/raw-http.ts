import { connect } from "node:net";

/** HTTP as bytes on a socket, for what no client library would send. */

export interface RawAnswer {
  readonly status: number;
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

export interface RawConnection {
  write(bytes: string | Uint8Array): void;
  /** Resolves with the answers once this many are complete, or with those that came when the peer closed. */
  answers(count: number): Promise<RawAnswer[]>;
  /** Resolves when the peer closed. */
  readonly closed: Promise<void>;
  destroy(): void;
}

/** Text is sent as Latin-1: one character, one byte. */
export function rawConnection(port: number): RawConnection {
  let received = Buffer.alloc(0);
  let ended = false;
  let wake = () => {};
  const gone = Promise.withResolvers<void>();
  const socket = connect(port, "127.0.0.1");
  socket.on("data", (bytes: Uint8Array) => {
    received = Buffer.concat([received, bytes]);
    wake();
  });
  // A reset is a close; what had arrived before it counts.
  socket.on("error", () => {});
  socket.on("close", () => {
    ended = true;
    gone.resolve();
    wake();
  });
  return {
    write: (bytes) => void socket.write(typeof bytes === "string" ? Buffer.from(bytes, "latin1") : bytes),
    async answers(count) {
      for (;;) {
        const found = parseAnswers(received);
        if (found.length >= count || ended) return found;
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
    },
    closed: gone.promise,
    destroy: () => socket.destroy(),
  };
}

/** Sends the bytes and takes the first answer; undefined when the peer closed without one. */
export async function rawExchange(port: number, bytes: string | Uint8Array): Promise<RawAnswer | undefined> {
  const connection = rawConnection(port);
  connection.write(bytes);
  const [answer] = await connection.answers(1);
  connection.destroy();
  return answer;
}

export function head(
  method: string,
  target: string,
  headers: readonly (readonly [string, string])[],
  version = "HTTP/1.1",
): string {
  const lines = headers.map(([name, value]) => `${name}: ${value}\r\n`).join("");
  return `${method} ${target} ${version}\r\n${lines}\r\n`;
}

function parseAnswers(bytes: Buffer): RawAnswer[] {
  const answers: RawAnswer[] = [];
  let at = 0;
  for (;;) {
    const end = bytes.indexOf("\r\n\r\n", at);
    if (end < 0) return answers;
    const [first = "", ...lines] = bytes.toString("latin1", at, end).split("\r\n");
    const status = Number(first.split(" ")[1]);
    const headers = Object.fromEntries(
      lines.map((line) => {
        const cut = line.indexOf(":");
        return [line.slice(0, cut).toLowerCase(), line.slice(cut + 1).trim()];
      }),
    );
    // Event streams never end; what came of one is all of it. A refusal of Bun's own has neither length nor body.
    const length = Number(headers["content-length"] ?? 0);
    const bodyEnd = end + 4 + length;
    if (bodyEnd > bytes.length) return answers;
    if (status >= 200) answers.push({ status, headers, body: bytes.toString("utf8", end + 4, bodyEnd) });
    at = bodyEnd;
  }
}
