import { join } from "node:path";
import { createDeliveredHistory } from "../channels/delivered-history.ts";
import { createDelivery } from "../channels/registry.ts";
import { createTerminalChannel, type TerminalChannel } from "../channels/terminal/channel.ts";
import type { LoadedConfig } from "../config/load.ts";
import type { ContinuationService } from "../continuation/api.ts";
import { createContinuationService } from "../continuation/service.ts";
import { hostAndPort } from "../core/address.ts";
import { latestConversationId, type SessionRollover } from "../core/buckets.ts";
import { errorText } from "../core/errors.ts";
import { THREAD_QUEUE_MAX } from "../core/limits.ts";
import type { Clock, FileSystem, Ids, Logger } from "../core/ports/platform.ts";
import type { RunClaimsIssuer } from "../core/ports/run-claims.ts";
import type { ContinuationStore } from "../core/ports/store.ts";
import { failInterruptedTurns } from "../harness/recovery.ts";
import { createSynthesis } from "../harness/synthesis.ts";
import { createTurnEngine } from "../harness/turn-engine.ts";
import { createContinuationApp } from "../http/continuation-app.ts";
import type { LiveEvents } from "../http/live-events.ts";
import { type HttpServer, serveHttp } from "../http/serve.ts";
import { createToolHost } from "../mcp/tool-host.ts";
import { createClock } from "../platform/clock.ts";
import { createFileSystem } from "../platform/filesystem.ts";
import { createIds } from "../platform/ids.ts";
import { type OpenOptions, openContinuationStore } from "../store/open.ts";
import { ownershipLock } from "../store/ownership.ts";
import { openTurnStore } from "../turns/turn-store.ts";
import { type MonoAgentApp, operatorHandle } from "./app.ts";
import { backupBeforeMigration } from "./backup-offline.ts";
import { createBackups } from "./backup-running.ts";
import { mcpOptions, sweepRunFolders } from "./mcp-tools.ts";
import { configuredModel } from "./models.ts";
import { reconcileOrigins } from "./reconcile.ts";
import { holdRestored, readRestored } from "./restored.ts";
import { HOST_DATABASE, HOST_LOCK } from "./state-entries.ts";
import { prepareStateFolder } from "./state-folder.ts";
import { verifyContinuation } from "./verify.ts";

export interface StartOptions {
  readonly config: LoadedConfig;
  readonly logger: Logger;
  /** The environment that stdio MCP servers inherit. Default: none. */
  readonly env?: Readonly<Record<string, string | undefined>>;
  /**
   * The command that runs the guard, which ends MCP servers when this process is killed (`runMcpGuard`). Default: from
   * source, the runtime that runs this program; in a compiled program none.
   */
  readonly guardCommand?: readonly string[];
  readonly clock?: Clock;
  readonly ids?: Ids;
  readonly fs?: FileSystem;
}

/**
 * Builds and starts a host. Order (DESIGN.md): locks → stores → ledger and outbox → continuation service listens →
 * channels → worker → turns resume. When a step fails, what had started is stopped again and the error is thrown.
 */
export async function startMonoAgent(options: StartOptions): Promise<MonoAgentApp> {
  const { config, logger } = options;
  const clock = options.clock ?? createClock();
  const ids = options.ids ?? createIds();
  const fs = options.fs ?? createFileSystem();
  const acquireLock = ownershipLock(fs, clock, process.pid);
  const stops: { what: string; stop: () => void | Promise<void> }[] = [];
  const started = <T>(what: string, value: T, stop: (value: T) => void | Promise<void>): T => {
    stops.push({ what, stop: () => stop(value) });
    return value;
  };
  let stopping: Promise<void> | undefined;
  const stop = () => {
    stopping ??= stopInReverse(stops, logger);
    return stopping;
  };

  try {
    if (options.fs === undefined) started("file threads", fs, (it) => it.close?.());
    const hostDir = config.host.stateDir;
    prepareStateFolder(fs, hostDir, logger);
    started("host lock", acquireLock(join(hostDir, HOST_LOCK)), (lock) => lock.release());
    const restored = readRestored(fs, hostDir);
    const store =
      config.continuations &&
      started(
        "continuation store",
        await openStore(config, config.continuations, { fs, clock, ids, logger, acquireLock }),
        (it) => it.close(),
      );
    const turns = started(
      "turn store",
      await openTurnStore({ path: join(hostDir, HOST_DATABASE), fs, logger }),
      (it) => it.close(),
    );

    const session: SessionRollover = {
      rollover: config.runtime.session.rollover,
      timezone: config.runtime.session.rolloverTimezone,
    };
    const { name } = config.agent;
    const { identity } = config.context;
    const systemPrompt = name === undefined ? identity : `${identity}\n\nYour name is ${name}.`;
    sweepRunFolders(config);
    const model = configuredModel(config, { clock, logger });
    const tools = started(
      "mcp clients",
      createToolHost(
        mcpOptions(config, {
          env: options.env ?? {},
          clock,
          ids,
          fs,
          logger,
          guardCommand: options.guardCommand,
        }),
      ),
      (it) => it.close(),
    );

    // The engine needs the issuer, and the service needs the engine's channels: the one late link is the issuer.
    let issuer: RunClaimsIssuer = NO_CLAIMS;
    const engine = createTurnEngine({
      turns,
      model,
      tools,
      claims: { issue: (origin) => issuer.issue(origin) },
      clock,
      ids,
      logger,
      systemPrompt,
      limits: {
        maxSteps: config.runtime.maxTurns,
        queue: THREAD_QUEUE_MAX,
        maxConcurrentRuns: config.concurrency.maxConcurrentRuns,
      },
    });
    const hold =
      restored === undefined
        ? undefined
        : await holdRestored({ fs, clock, logger, turns, hostDir, restored });
    const backup = createBackups({
      fs,
      clock,
      ids,
      logger,
      hostDir,
      stateDir: config.continuations?.stateDir,
      store,
    });
    started("backup", backup, (it) => it.stop());
    // Before the decision on pending claims, which then finds these turns failed and abandons their claims.
    await failInterruptedTurns({ turns, clock, logger });

    const terminal: TerminalChannel | undefined = config.terminal.enabled
      ? createTerminalChannel({
          engine,
          turns,
          fs,
          clock,
          ids,
          logger,
          host: config.terminal.host,
          port: config.terminal.port,
          stateDir: hostDir,
          session,
          ...(config.terminal.allow === undefined ? {} : { allow: config.terminal.allow }),
        })
      : undefined;
    const channels = terminal === undefined ? [] : [terminal];

    let service: ContinuationService | undefined;
    let protocol: HttpServer | undefined;
    if (config.continuations !== undefined && store !== undefined) {
      const { host, port, limits, namedRoutes, detachedServices } = config.continuations;
      service = createContinuationService({
        store,
        clock,
        ids,
        logger,
        limits,
        namedRoutes: new Map(Object.entries(namedRoutes)),
        detachedServices: tokensOf(config, detachedServices),
        continuationServers: config.tools.continuationServers,
        baseUrl: `http://${hostAndPort({ host, port })}`,
        synthesis: createSynthesis({
          model,
          turns,
          systemPrompt,
          ids,
          currentConversation: (id) => latestConversationId(id, session, clock.now()),
        }),
        delivery: createDelivery(channels),
        history: createDeliveredHistory({ turns, session, clock, logger, publish: engine.publish }),
        hold,
      });
      issuer = service.issuer;
      await reconcileOrigins({ origins: service.origins, turns, clock, logger });
      const running = service;
      const watchers = new Set<LiveEvents>();
      protocol = started(
        "continuation listener",
        await serveHttp({
          app: (bound, unhurried) =>
            createContinuationApp({
              service: running,
              bound,
              logger,
              clock,
              watchers,
              unhurried,
              backup: backup.make,
            }),
          host,
          port,
          clock,
          logger,
        }),
        (it) => {
          // The listener waits for open requests, and one of them may have asked for a backup.
          void backup.stop();
          for (const watcher of [...watchers]) watcher.close();
          return it.stop();
        },
      );
    }
    if (terminal !== undefined) {
      await terminal.start();
      stops.push({ what: "terminal channel", stop: () => terminal.stop() });
    }
    if (service !== undefined) {
      await service.startWorker();
      started("continuation worker", service, (it) => it.stop());
    }
    started("turns", engine, (it) => it.stop());
    await engine.recover();

    logger.info("mono-agent is running", { model: model.name, continuations: service !== undefined });
    const terminalAt = terminal?.address();
    return {
      addresses: {
        ...(protocol === undefined ? {} : { continuations: `http://${hostAndPort(protocol)}` }),
        ...(terminalAt === undefined ? {} : { terminal: `http://${hostAndPort(terminalAt)}` }),
      },
      ...operatorHandle(service),
      verifyContinuation(continuationId) {
        const stateDir = config.continuations?.stateDir;
        return stateDir === undefined ? undefined : verifyContinuation({ fs, stateDir, continuationId });
      },
      rotateMcpServers: (servers) => tools.rotate(Object.fromEntries(servers)),
      backup: backup.make,
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function openStore(
  { host }: LoadedConfig,
  { stateDir, retention }: NonNullable<LoadedConfig["continuations"]>,
  deps: Omit<OpenOptions, "stateDir" | "retention">,
): Promise<ContinuationStore> {
  return openContinuationStore({
    stateDir,
    retention,
    ...(host.backupBeforeMigration
      ? { beforeMigration: backupBeforeMigration({ ...deps, places: { hostDir: host.stateDir, stateDir } }) }
      : {}),
    ...deps,
  });
}

/** Without a continuation service no server gets a capability, and no run ever has a claim. */
const NO_CLAIMS: RunClaimsIssuer = {
  issue: () => ({
    capabilities: new Map(),
    release: async () => {},
    hasActiveClaims: () => false,
    finalize: async () => ({
      ok: false,
      refusal: { code: "service_stopping", message: "The continuation service is off." },
    }),
    activate: async () => {},
    abandon: async () => {},
  }),
};

function tokensOf(config: LoadedConfig, services: readonly { readonly name: string }[]): Map<string, string> {
  const tokens = new Map<string, string>();
  for (const { name } of services) {
    const token = config.secrets.detachedToken(name);
    if (token !== undefined) tokens.set(name, token);
  }
  return tokens;
}

async function stopInReverse(
  stops: { what: string; stop: () => void | Promise<void> }[],
  logger: Logger,
): Promise<void> {
  for (const { what, stop } of stops.splice(0).reverse()) {
    try {
      await stop();
    } catch (error) {
      logger.error("a part did not stop cleanly", { part: what, error: errorText(error) });
    }
  }
}
