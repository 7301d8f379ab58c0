import { McpError } from "../core/errors.ts";
import type { JsonValue } from "../core/json.ts";
import {
  continuationEligibility,
  isEnabled,
  type McpServerSpec,
  serverTransport,
} from "../core/mcp-servers.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import type {
  BoundTool,
  ToolHost,
  ToolOutcome,
  ToolSession,
  ToolSessionRequest,
} from "../core/ports/tools.ts";
import { buildCatalogue } from "./catalogue.ts";
import { type ContextGrant, publicEnvironment, valuesOf } from "./claim-injection.ts";
import { createClientPool, type Loan } from "./client-pool.ts";
import { createConnection, notSent, type RequestTimeouts } from "./connection.ts";
import type { OAuthStore } from "./oauth-store.ts";
import type { ProcessGuard } from "./process-guard.ts";
import { unlessAborted } from "./unless-aborted.ts";

export type { RequestTimeouts } from "./connection.ts";

export interface ToolHostOptions {
  /** By name, in the order of the configuration. Never changed here. */
  readonly servers: Readonly<Record<string, McpServerSpec>>;
  /** Names of the servers that may hold continuation authority (`tools.continuationServers`). */
  readonly continuationServers: readonly string[];
  /** Names of the stdio servers that are told for which run they work (`tools.mcpRequestContextServers`). */
  readonly requestContextServers: readonly string[];
  readonly requestTimeouts: RequestTimeouts;
  /** Where stdio servers start; a relative `cwd` of a server counts from here. */
  readonly cwd: string;
  /** The environment that stdio servers inherit. */
  readonly baseEnv: Readonly<Record<string, string | undefined>>;
  /** Variables of `baseEnv` that only selected servers inherit: tokens of detached services are authority too. */
  readonly withheldEnv: readonly string[];
  /** Makes a run's output folder and gives its absolute path; `remove` takes it away with all that is in it. */
  readonly outputFolders: { create(runId: string): string; remove(path: string): void };
  /** Ends stdio servers when the host is killed; absent: they end by the end of their input alone. */
  readonly guard?: ProcessGuard;
  /** Where the login of a remote server is kept; absent: no server has one. */
  readonly oauthStore?: (server: string, url: string) => OAuthStore;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly maxClients?: number;
}

/**
 * The MCP side of the host. A server that gets claim values or the context of a run has a client for each run; every
 * other server has one client for all runs.
 *
 * I1. A selected server that may not hold authority stops `open` before any process or connection starts.
 * I2. Only selected servers receive claim values, and only those that the run holds for them by name.
 * I3. After `close` nothing that this host started is running.
 * I4. What a run was offered stays as it is to its end: a call goes to exactly that tool (by digest) or nowhere.
 */
export function createToolHost(options: ToolHostOptions): ToolHost {
  const { cwd, baseEnv, clock, logger, guard, outputFolders } = options;
  let { servers } = options;
  const selected = new Set(options.continuationServers);
  const withContext = new Set(options.requestContextServers);
  const authority = valuesOf(baseEnv, options.withheldEnv);
  const publicEnv = publicEnvironment(baseEnv, options.withheldEnv);
  const stores = new Map<string, OAuthStore>();
  const live = new Set<() => Promise<void>>();
  let closed = false;

  const isStdio = (spec: McpServerSpec) => isEnabled(spec) && serverTransport(spec).kind === "stdio";
  if (Object.values(servers).some(isStdio)) guard?.start();

  const connectionOf = (
    server: string,
    spec: McpServerSpec,
    run?: { readonly request: ToolSessionRequest; readonly context: ContextGrant },
  ) =>
    createConnection({
      server,
      spec,
      grant: selected.has(server) ? (run?.request.capabilities.get(server) ?? "empty") : "unselected",
      context: withContext.has(server) ? (run?.context ?? "unselected") : "unselected",
      baseEnv: selected.has(server) ? baseEnv : publicEnv,
      authority,
      cwd,
      timeouts: options.requestTimeouts,
      clock,
      logger,
      guard,
      oauth: storeOf(server, spec),
    });

  /** One store for all clients of a server, so that they refresh its tokens together. */
  const storeOf = (server: string, { url }: McpServerSpec): OAuthStore | undefined => {
    if (url === undefined) return undefined;
    const key = `${server} ${url}`;
    const known = stores.get(key) ?? options.oauthStore?.(server, url);
    if (known !== undefined) stores.set(key, known);
    return known;
  };

  const pool = createClientPool({
    create: (server, spec) => connectionOf(server, spec),
    clock,
    logger,
    ...(options.maxClients === undefined ? {} : { maxClients: options.maxClients }),
  });

  const refuseUnsupported = (entries: ToolHostOptions["servers"]) => {
    for (const name of selected) {
      const spec = Object.hasOwn(entries, name) ? entries[name] : undefined;
      // A name that is not in the file is reported by the check of the configuration; a run skips it.
      const eligible = spec === undefined ? "stdio" : continuationEligibility(spec);
      if (typeof eligible === "object") {
        throw new McpError(
          "unsupported_continuation_server",
          `server "${name}" can't hold continuation authority: ${eligible.unsupported}`,
        );
      }
    }
  };

  const open = async (request: ToolSessionRequest): Promise<ToolSession> => {
    if (closed) throw new McpError("mcp_failed", "the tool host is closed");
    refuseUnsupported(servers);
    const { runId, conversationId } = request;
    if (request.signal.aborted) throw new McpError("mcp_failed", "opening the tools was aborted");
    const ended = new AbortController();
    const signal = AbortSignal.any([request.signal, ended.signal]);
    const specs = Object.entries(servers).filter(([, spec]) => isEnabled(spec));
    const outputDir = specs.some(([name]) => withContext.has(name)) ? outputFolders.create(runId) : undefined;
    const context: ContextGrant =
      outputDir === undefined ? "unselected" : { conversationId, runId, outputDir };
    const ownClient = (server: string) => selected.has(server) || withContext.has(server);
    const lend = (server: string, spec: McpServerSpec): Promise<Loan> =>
      ownClient(server)
        ? pool.open(connectionOf(server, spec, { request, context }), signal)
        : pool.borrow(server, spec, signal);

    const loans = new Map<string, Loan>();
    const reopening = new Map<string, Promise<Loan>>();
    let closing: Promise<void> | undefined;
    /** A client that arrives after the end is given back at once. */
    const keep = async (server: string, lending: Promise<Loan>): Promise<Loan> => {
      const loan = await lending;
      if (closing !== undefined) {
        await loan.release();
        return { ...loan, connection: undefined };
      }
      loans.set(server, loan);
      return loan;
    };
    const opening = Promise.allSettled(specs.map(([server, spec]) => keep(server, lend(server, spec))));
    const end = async () => {
      await Promise.all([opening, ...[...loans.values()].map((loan) => loan.release())]);
      await Promise.allSettled(reopening.values());
      if (outputDir !== undefined) outputFolders.remove(outputDir);
      live.delete(close);
    };
    const close = () => {
      if (closing !== undefined) return closing;
      closing = end();
      // What is being started has nobody left to wait for it.
      ended.abort();
      return closing;
    };
    live.add(close);

    const opened = await opening;
    if (signal.aborted || closing !== undefined) {
      await close();
      throw new McpError("mcp_failed", "opening the tools was aborted");
    }
    const listings = specs.flatMap(([server], at) => {
      const result = opened[at];
      if (result?.status === "fulfilled") return [{ server, ...result.value.listing }];
      throw result?.reason;
    });
    const catalogue = buildCatalogue(listings);
    const byName = new Map(catalogue.tools.map((tool) => [tool.name, tool]));

    /** A new client for one that was lost, the same one for all calls that wait. A run's own keeps the entry it began with. */
    const reopen = (server: string): Promise<Loan> | undefined => {
      if (closing !== undefined) return undefined;
      const begun = specs.find(([name]) => name === server)?.[1];
      const now = Object.hasOwn(servers, server) ? servers[server] : undefined;
      const spec = ownClient(server) ? begun : now;
      if (spec === undefined || !isEnabled(spec)) return undefined;
      const underWay = reopening.get(server);
      if (underWay !== undefined) return underWay;
      // First, so that the pool knows of the loss when it is asked for the next one.
      void loans.get(server)?.release();
      const loan = keep(server, lend(server, spec)).finally(() => reopening.delete(server));
      reopening.set(server, loan);
      return loan;
    };

    /** The client that a call goes to: one that was lost is started again, for the very same tool only. */
    const connectionFor = async ({ server }: BoundTool, during: AbortSignal) => {
      const current = loans.get(server)?.connection;
      if (current?.isOpen() === true) return current;
      const again = reopen(server);
      if (again === undefined) return current;
      return (await unlessAborted(again, during, () => notSent(server))).connection;
    };

    const call = async (
      tool: BoundTool,
      input: JsonValue,
      during: AbortSignal,
      again = true,
    ): Promise<ToolOutcome> => {
      const { server } = tool;
      const refused = (why: string) => ({ isError: true, text: `${why} Nothing was sent to it.` });
      const connection = await connectionFor(tool, during);
      if (connection === undefined) return refused(`The server ${server} can't be reached now.`);
      // The server may have changed or been replaced since the model saw the tool.
      const listing = connection.isOpen()
        ? await unlessAborted(connection.list(), during, () => notSent(server))
        : undefined;
      const now = listing?.tools.find(({ name }) => name === tool.tool);
      // Its digest says nothing of that it changes nothing, which this run relies on.
      const isSame = now?.digest === tool.digest && (now.readOnly || !tool.readOnly);
      if (listing !== undefined && connection.isOpen() && !isSame) {
        if (listing.failed) return refused(`The server ${server} does not list its tools now.`);
        const what = now === undefined ? "is no longer offered" : "has changed";
        return refused(`The tool ${tool.tool} of ${server} ${what} since this turn began.`);
      }
      const { sessionGone, ...outcome } = await connection.call(tool.tool, input, during);
      if (sessionGone === true && again) return call(tool, input, during, false);
      return outcome;
    };

    return {
      tools: catalogue.tools,
      warnings: [...listings.flatMap((listing) => listing.warnings), ...catalogue.warnings],
      async call(name, input, during) {
        const tool = byName.get(name);
        if (tool === undefined) return { isError: true, text: `There is no tool named ${name}.` };
        return call(tool, input, during);
      },
      close,
    };
  };

  return {
    open,
    rotate(next) {
      // Every run would fail with it; the old entries are still good.
      refuseUnsupported(next);
      servers = next;
      pool.rotate();
    },
    async close() {
      closed = true;
      const sessions = Promise.all([...live].map((close) => close()));
      await pool.close();
      await sessions;
      guard?.close();
    },
  };
}
