import { join } from "node:path";
import type { LoadedConfig } from "../../config/load.ts";
import { hostAndPort } from "../../core/address.ts";
import { operatorToken } from "../../core/derive.ts";
import { CliError } from "../../core/errors.ts";
import { SECOND_MS } from "../../core/limits.ts";
import type { FileSystem } from "../../core/ports/platform.ts";
import { STORE_ENTRIES } from "../../core/store-files.ts";
import { errorBodySchema } from "../../core/wire.ts";
import { readSecretText } from "../owner-secret.ts";

/** Longer than the host's own bound on stopping, so that an answer it still gives is seen. */
const REQUEST_TIMEOUT_MS = 30 * SECOND_MS;
const SECRET_BYTES = 32;

export interface OperatorClient {
  /** How long the host may take to ask a channel what became of a post (twice) and to write history, in milliseconds. */
  readonly patienceMs: number;
  /** The body of the answer as the host sent it. Throws `CliError` that names the way out. */
  get(path: string, query?: Readonly<Record<string, string | undefined>>): Promise<unknown>;
  post(path: string, body: Readonly<Record<string, unknown>>, timeoutMs?: number): Promise<unknown>;
  /** The body of an endless answer, until the signal ends it. */
  stream(path: string, signal: AbortSignal): Promise<ReadableStream<Uint8Array>>;
}

/**
 * A client of the loopback operator API. Its token is derived from the secret in the state directory, never sent
 * elsewhere. `program` is how this program is called, for the commands that errors advise.
 */
export function createOperatorClient(config: LoadedConfig, fs: FileSystem, program: string): OperatorClient {
  const { continuations } = config;
  if (continuations === undefined) {
    throw new CliError(
      "operation_failed",
      config.continuationsDisabled
        ? `continuations are turned off in ${config.configPath}: continuations.enabled is false`
        : `continuations are not configured in ${config.configPath}: add a "continuations" block or select a server in tools.continuationServers`,
    );
  }
  const serve = `\`${program} serve\``;
  const token = operatorToken(readServiceSecret(continuations.stateDir, fs, program));
  const address = hostAndPort(continuations);

  const answered = async (path: string, init: RequestInit): Promise<Response> => {
    const response = await send(
      `http://${address}${path}`,
      { address, serve },
      { ...init, headers: { authorization: `Bearer ${token}`, "content-type": "application/json" } },
    );
    if (response.ok) return response;
    const { stateDir } = continuations;
    throw refusalOf(response.status, await jsonOf(response, address), { address, stateDir, program });
  };
  const call = async (path: string, init: RequestInit, timeoutMs = REQUEST_TIMEOUT_MS) =>
    jsonOf(await answered(path, { ...init, signal: AbortSignal.timeout(timeoutMs) }), address);
  return {
    patienceMs: 2 * continuations.limits.deliveryTimeoutMs + 2 * REQUEST_TIMEOUT_MS,
    get: (path, query = {}) => {
      const search = new URLSearchParams();
      for (const [name, value] of Object.entries(query)) if (value !== undefined) search.set(name, value);
      return call(search.size === 0 ? path : `${path}?${search}`, { method: "GET" });
    },
    post: (path, body, timeoutMs) => call(path, { method: "POST", body: JSON.stringify(body) }, timeoutMs),
    async stream(path, signal) {
      const { body } = await answered(path, { method: "GET", signal });
      if (body === null) throw new CliError("operation_failed", `the host at ${address} sent no stream`);
      return body;
    },
  };
}

/** The secret of a state directory. Throws `CliError` that names the way out when it can't be trusted. */
function readServiceSecret(stateDir: string, fs: FileSystem, program: string): Uint8Array {
  const path = join(stateDir, STORE_ENTRIES.secret);
  const text = readSecretText(fs, path);
  const remedy = "restore it from a backup";
  if (text === undefined) {
    if (!hasRecords(stateDir, fs)) throw noState(stateDir, program);
    throw new CliError("store_secret_invalid", `${path} is missing beside existing continuations: ${remedy}`);
  }
  const secret = Buffer.from(text.trim(), "base64url");
  if (secret.length === SECRET_BYTES) return secret;
  throw new CliError("store_secret_invalid", `${path} is not a service secret: ${remedy}`);
}

function hasRecords(stateDir: string, fs: FileSystem): boolean {
  return fs.lstat(join(stateDir, STORE_ENTRIES.records), "operator.records") !== undefined;
}

/** What is said of a state directory that no host has made yet. */
export function noState(stateDir: string, program: string): CliError {
  return new CliError(
    "host_unreachable",
    `there is no continuation state at ${stateDir} yet; start the host with \`${program} serve\``,
  );
}

async function send(
  url: string,
  { address, serve }: { address: string; serve: string },
  init: RequestInit,
): Promise<Response> {
  try {
    return await fetch(url, {
      ...init,
      redirect: "error",
      // Bun's own idle time-out is shorter than a large backup takes; the signal bounds every request.
      timeout: false,
      // The host is on this machine: the token must not pass a proxy that the environment names.
      proxy: false,
    });
  } catch (error) {
    throw new CliError(
      "host_unreachable",
      isTimeout(error)
        ? `the host at ${address} did not answer in time`
        : `no host runs at ${address}; start it with ${serve}`,
      { cause: error },
    );
  }
}

function isTimeout(error: unknown): boolean {
  return error instanceof Error && error.name === "TimeoutError";
}

async function jsonOf(response: Response, address: string): Promise<unknown> {
  try {
    return await response.json();
  } catch (cause) {
    const message =
      cause instanceof SyntaxError
        ? `what answers at ${address} is not a mono-agent host`
        : isTimeout(cause)
          ? `the host at ${address} did not answer in time`
          : `the host at ${address} stopped before its answer was complete`;
    throw new CliError(cause instanceof SyntaxError ? "operation_failed" : "host_unreachable", message, {
      cause,
    });
  }
}

/** What a person can do about a refusal, by its code. */
const WAYS_OUT: ReadonlyMap<string, (continuations: string) => string> = new Map([
  ["not_found", (continuations: string) => `\`${continuations} list\` shows what there is`],
  [
    "delivery_unknown",
    (continuations: string) =>
      `\`${continuations} prove ID\` asks the channel, \`${continuations} resolve ID\` decides, ` +
      `\`${continuations} retry ID --allow-unknown\` posts whatever happened before`,
  ],
]);

function refusalOf(
  status: number,
  body: unknown,
  { address, stateDir, program }: { address: string; stateDir: string; program: string },
): CliError {
  const parsed = errorBodySchema.safeParse(body);
  if (status === 401) {
    return new CliError(
      "operation_failed",
      `the host at ${address} does not know the secret of ${stateDir}: it serves another state directory`,
    );
  }
  if (!parsed.success)
    return new CliError("operation_failed", `what answers at ${address} is not a mono-agent host`);
  const { code, message } = parsed.data.error;
  // What the host finds malformed came from the command line.
  const wayOut = WAYS_OUT.get(code)?.(`${program} continuations`);
  const more = wayOut === undefined ? "" : `; ${wayOut}`;
  return new CliError(status === 400 ? "usage" : "operation_failed", `${message} (${code})${more}`);
}
