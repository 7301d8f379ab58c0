import type { Socket } from "bun";

/**
 * A small HTTP/1.1 load client over raw sockets: one request at a time on each connection, kept alive. It costs the
 * machine a fraction of what fetch does, so that the server is what is measured.
 */

export interface LoadResponse {
  readonly status: number;
  readonly body: string;
}

export interface LoadClient {
  /** Sends on the given connection and resolves with the whole answer. */
  send(
    connection: number,
    method: string,
    path: string,
    headers: string,
    body?: string,
  ): Promise<LoadResponse>;
  close(): void;
}

interface Connection {
  socket: Socket;
  received: string;
  waiting: ((response: LoadResponse) => void) | undefined;
}

export async function createLoadClient(port: number, connections: number): Promise<LoadClient> {
  const decoder = new TextDecoder("latin1");
  const pool: Connection[] = [];
  const bySocket = new Map<Socket, Connection>();
  for (let index = 0; index < connections; index += 1) {
    const socket = await Bun.connect({
      hostname: "127.0.0.1",
      port,
      socket: {
        data(from, data) {
          const connection = bySocket.get(from);
          if (connection === undefined) return;
          connection.received += decoder.decode(data);
          const headEnd = connection.received.indexOf("\r\n\r\n");
          if (headEnd < 0) return;
          const head = connection.received.slice(0, headEnd);
          const length = Number(/content-length: *([0-9]+)/i.exec(head)?.[1] ?? "0");
          if (connection.received.length < headEnd + 4 + length) return;
          const body = connection.received.slice(headEnd + 4, headEnd + 4 + length);
          connection.received = connection.received.slice(headEnd + 4 + length);
          const { waiting } = connection;
          connection.waiting = undefined;
          waiting?.({ status: Number(head.slice(9, 12)), body });
        },
      },
    });
    const connection: Connection = { socket, received: "", waiting: undefined };
    bySocket.set(socket, connection);
    pool.push(connection);
  }
  return {
    send(index, method, path, headers, body = "") {
      const connection = pool[index];
      if (connection === undefined) throw new Error(`no connection ${index}`);
      const { promise, resolve } = Promise.withResolvers<LoadResponse>();
      connection.waiting = resolve;
      connection.socket.write(
        `${method} ${path} HTTP/1.1\r\nhost: 127.0.0.1:${port}\r\n${headers}content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
      );
      return promise;
    },
    close() {
      for (const connection of pool) connection.socket.end();
    },
  };
}

/** Percentiles of a list of durations in milliseconds. */
export function percentiles(durations: number[]): { p50: number; p99: number; max: number } {
  const sorted = Float64Array.from(durations).sort();
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0;
  return { p50: at(0.5), p99: at(0.99), max: sorted.at(-1) ?? 0 };
}
