import type { Context, Hono } from "hono";
import type { ContinuationService } from "../continuation/api.ts";
import { BackupError, ok, type Result, refuse } from "../core/errors.ts";
import {
  CLAIM_BODY_MAX_BYTES,
  FIELD_MAX_CHARS,
  OPERATOR_BODY_MAX_BYTES,
  RESULT_BODY_MAX_BYTES,
} from "../core/limits.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import {
  type BackupReport,
  backupBodySchema,
  claimBodySchema,
  detachedClaimBodySchema,
  emptyBodySchema,
  resolveBodySchema,
  resultBodySchema,
  retryBodySchema,
} from "../core/wire.ts";
import { bearerToken } from "./bearer.ts";
import { readBody } from "./body.ts";
import { refusalResponse, resultResponse } from "./errors.ts";
import { eventStreamResponse } from "./event-streams.ts";
import { type LiveEvents, openLiveEvents } from "./live-events.ts";
import {
  addRoute,
  type Bound,
  createLoopbackApp,
  type Handler,
  type LoopbackApp,
  pathId,
} from "./loopback.ts";
import type { Unhurried } from "./serve.ts";
import { createTurnstile } from "./turnstile.ts";

/**
 * Owns: the loopback HTTP protocol of continuations (protocol.md): paths, credentials, bodies and statuses.
 * Does not own: any decision about a continuation; each is one call of the service.
 *
 * I1. The credential is checked before the body is read.
 */

export interface ContinuationAppDeps {
  readonly service: ContinuationService;
  readonly bound: Bound;
  readonly clock: Clock;
  readonly logger: Logger;
  /** Backs up the whole state to a path of this machine; absent for hosts that have no such thing. */
  readonly backup?: ((path: string) => Promise<BackupReport>) | undefined;
  /** Absent where nothing ends a request that takes long. */
  readonly unhurried?: Unhurried;
  /** Open streams of `watch`; whoever stops the listener closes them first. */
  readonly watchers: Set<LiveEvents>;
}

const MAX_WATCHERS = 16;
const SERVICE_NAME_HEADER = "x-mono-agent-service-name";

export function createContinuationApp(deps: ContinuationAppDeps): LoopbackApp {
  return createLoopbackApp(deps, (app) => {
    const write = writeInTurns();
    addClaimRoutes(app, deps, write);
    addResultRoutes(app, deps, write);
    addOperatorRoutes(app, deps);
  });
}

/** Runs what writes: decided in one turn, answered in another. */
type Write = <T>(act: () => Promise<T>) => Promise<T>;

function writeInTurns(): Write {
  const turnstile = createTurnstile();
  return async (act) => {
    await turnstile.pass();
    const done = await act();
    await turnstile.pass();
    return done;
  };
}

function addClaimRoutes(app: Hono, { service, clock }: ContinuationAppDeps, write: Write): void {
  const bounds = { maxBytes: CLAIM_BODY_MAX_BYTES, clock };
  addRoute(app, "/v1/continuations/claim", {
    POST: async (context) => {
      const token = bearerToken(context.req.raw.headers);
      if (!token.ok) return refusalResponse(token.refusal);
      const authority = service.claims.authenticate(token.value);
      if (!authority.ok) return refusalResponse(authority.refusal);
      const body = await readBody(context.req.raw, claimBodySchema, bounds);
      if (!body.ok) return refusalResponse(body.refusal);
      return resultResponse(await write(() => authority.value.claim(body.value)));
    },
  });
  addRoute(app, "/v1/continuations/detached/claim", {
    POST: async (context) => {
      const token = bearerToken(context.req.raw.headers);
      if (!token.ok) return refusalResponse(token.refusal);
      const name = serviceName(context);
      if (!name.ok) return refusalResponse(name.refusal);
      const authority = service.claims.authenticateDetached(name.value, token.value);
      if (!authority.ok) return refusalResponse(authority.refusal);
      const body = await readBody(context.req.raw, detachedClaimBodySchema, bounds);
      if (!body.ok) return refusalResponse(body.refusal);
      return resultResponse(await write(() => authority.value.claim(body.value)));
    },
  });
}

function serviceName(context: Context): Result<string> {
  const name = context.req.header(SERVICE_NAME_HEADER);
  if (name === undefined || name === "" || name.length > FIELD_MAX_CHARS) {
    return refuse(
      "missing_service_name",
      `the ${SERVICE_NAME_HEADER} header must have 1 to ${FIELD_MAX_CHARS} characters`,
    );
  }
  return ok(name);
}

function addResultRoutes(app: Hono, { service, clock }: ContinuationAppDeps, write: Write): void {
  const authenticate = (context: Context) => {
    const token = bearerToken(context.req.raw.headers);
    if (!token.ok) return token;
    const id = pathId(context, "id");
    return id === undefined ? unknownId() : service.results.authenticate(id, token.value);
  };
  const submit: Handler = async (context) => {
    const authority = authenticate(context);
    if (!authority.ok) return refusalResponse(authority.refusal);
    const bounds = { maxBytes: RESULT_BODY_MAX_BYTES, clock };
    const body = await readBody(context.req.raw, resultBodySchema, bounds);
    if (!body.ok) return refusalResponse(body.refusal);
    return resultResponse(await write(() => authority.value.submit(body.value)), 202);
  };
  addRoute(app, "/v1/continuations/:id/result", { PUT: submit, POST: submit });
  addRoute(app, "/v1/continuations/:id/status", {
    GET: (context) => {
      const authority = authenticate(context);
      if (!authority.ok) return refusalResponse(authority.refusal);
      return Response.json(authority.value.status());
    },
  });
}

function addOperatorRoutes(app: Hono, deps: ContinuationAppDeps): void {
  const { service, clock, watchers, backup, unhurried } = deps;
  const { operator } = service;
  // An operator's POST may come without a body, which then stands for `{}`.
  const bounds = { maxBytes: OPERATOR_BODY_MAX_BYTES, clock, emptyAs: {} };
  const guarded =
    (handler: Handler): Handler =>
    (context) => {
      const token = bearerToken(context.req.raw.headers);
      if (!token.ok) return refusalResponse(token.refusal);
      if (!service.isOperator(token.value)) {
        return refusalResponse({
          code: "invalid_operator_capability",
          message: "this token is not the operator's",
        });
      }
      return handler(context);
    };
  const withId = (handler: (context: Context, id: string) => Promise<Response>): Handler =>
    guarded(async (context) => {
      const id = pathId(context, "id");
      return id === undefined ? refusalResponse(unknownId().refusal) : handler(context, id);
    });

  addRoute(app, "/v1/operator/health", { GET: guarded(() => Response.json(operator.health())) });
  addRoute(app, "/v1/operator/continuations", {
    GET: guarded((context) => {
      const { limit, cursor, state } = context.req.query();
      const query = {
        ...(limit === undefined ? {} : { limit }),
        ...(cursor === undefined ? {} : { cursor }),
        ...(state === undefined ? {} : { state }),
      };
      return resultResponse(operator.list(query));
    }),
  });
  addRoute(app, "/v1/operator/owed", {
    GET: guarded((context) => {
      const { limit, cursor } = context.req.query();
      const query = {
        ...(limit === undefined ? {} : { limit }),
        ...(cursor === undefined ? {} : { cursor }),
      };
      return resultResponse(operator.owed(query));
    }),
  });
  addRoute(app, "/v1/operator/events", {
    GET: guarded((context) => {
      // Its body would be dropped unread, and nothing would ever close the stream.
      if (context.req.method === "HEAD") return eventStreamResponse(null);
      if (watchers.size >= MAX_WATCHERS) {
        return refusalResponse({ code: "queue_full", message: `at most ${MAX_WATCHERS} watchers at a time` });
      }
      const stream = openLiveEvents(operator.watch, clock, () => watchers.delete(stream));
      watchers.add(stream);
      return stream.response;
    }),
  });
  addRoute(app, "/v1/operator/continuations/:id", {
    GET: withId(async (_context, id) => resultResponse(operator.show(id))),
  });
  addRoute(app, "/v1/operator/continuations/:id/retry", {
    POST: withId(async (context, id) => {
      const body = await readBody(context.req.raw, retryBodySchema, bounds);
      if (!body.ok) return refusalResponse(body.refusal);
      const { allowUnknown } = body.value;
      return resultResponse(await operator.retry(id, allowUnknown === undefined ? {} : { allowUnknown }));
    }),
  });
  addRoute(app, "/v1/operator/continuations/:id/cancel", {
    POST: withId(async (context, id) => {
      const body = await readBody(context.req.raw, emptyBodySchema, bounds);
      if (!body.ok) return refusalResponse(body.refusal);
      return resultResponse(await operator.cancel(id));
    }),
  });
  addRoute(app, "/v1/operator/continuations/:id/prove", {
    POST: withId(async (context, id) => {
      const body = await readBody(context.req.raw, emptyBodySchema, bounds);
      if (!body.ok) return refusalResponse(body.refusal);
      unhurried?.(context.req.raw);
      return resultResponse(await operator.prove(id));
    }),
  });
  addRoute(app, "/v1/operator/continuations/:id/release", {
    POST: withId(async (context, id) => {
      const body = await readBody(context.req.raw, emptyBodySchema, bounds);
      if (!body.ok) return refusalResponse(body.refusal);
      return resultResponse(await operator.release(id));
    }),
  });
  addRoute(app, "/v1/operator/release", {
    POST: guarded(async (context) => {
      const body = await readBody(context.req.raw, emptyBodySchema, bounds);
      if (!body.ok) return refusalResponse(body.refusal);
      return resultResponse(await operator.releaseAll());
    }),
  });
  if (backup !== undefined) {
    addRoute(app, "/v1/operator/backup", {
      POST: guarded(async (context) => {
        const body = await readBody(context.req.raw, backupBodySchema, bounds);
        if (!body.ok) return refusalResponse(body.refusal);
        unhurried?.(context.req.raw);
        try {
          return Response.json(await backup(body.value.path));
        } catch (error) {
          // An operator may read paths, and needs them here.
          if (error instanceof BackupError) return refusalResponse(error);
          throw error;
        }
      }),
    });
  }
  addRoute(app, "/v1/operator/continuations/:id/resolve", {
    POST: withId(async (context, id) => {
      const body = await readBody(context.req.raw, resolveBodySchema, bounds);
      if (!body.ok) return refusalResponse(body.refusal);
      unhurried?.(context.req.raw);
      return resultResponse(await operator.resolve(id, body.value));
    }),
  });
}

function unknownId() {
  return refuse("not_found", "there is no such continuation");
}
