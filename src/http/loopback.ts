import { type Context, Hono, type MiddlewareHandler } from "hono";
import type { Logger } from "../core/ports/platform.ts";
import { refusalResponse, thrownResponse } from "./errors.ts";

/**
 * Owns: what every loopback port of ours has in common: who may reach it, which headers each answer carries, and the
 * answers to unknown paths and methods.
 *
 * I1. A web page never gets through: a `Host` other than the bound loopback address (DNS rebinding) and any `Origin`
 *     are refused before a credential is looked at.
 * I2. Every answer, errors included, carries `cache-control: no-store` and `x-content-type-options: nosniff`.
 */

/** The address a server listens on; the port is the real one, never 0. */
export interface Bound {
  readonly host: string;
  readonly port: number;
}

export interface LoopbackDeps {
  readonly bound: Bound;
  readonly logger: Logger;
}

export type Handler = (context: Context) => Response | Promise<Response>;
export type Method = "GET" | "POST" | "PUT" | "DELETE";

const LOOPBACK_NAMES = ["localhost", "127.0.0.1", "[::1]"];

/** A hono app with the loopback rules. Add paths with `addRoute`, so that wrong methods answer 405. */
export function createLoopbackApp(deps: LoopbackDeps): Hono {
  const app = new Hono();
  app.use(answerHeaders(deps.logger));
  app.use(sameMachineOnly(deps.bound));
  app.notFound(() => refusalResponse({ code: "not_found", message: "there is nothing at this path" }));
  app.onError((error) => thrownResponse(error, deps.logger));
  return app;
}

/** Serves a path by method. `HEAD` follows `GET`; any other method answers 405 with `allow`. */
export function addRoute(app: Hono, path: string, handlers: Partial<Record<Method, Handler>>): void {
  const methods = Object.entries(handlers);
  for (const [method, handler] of methods) app.on(method, path, handler);
  const allow = methods.flatMap(([method]) => (method === "GET" ? ["GET", "HEAD"] : [method])).join(", ");
  app.all(path, () => {
    const response = refusalResponse({ code: "method_not_allowed", message: `this path allows ${allow}` });
    response.headers.set("allow", allow);
    return response;
  });
}

/**
 * A path parameter as the caller meant it, or undefined when no id of ours can look like it (an encoded slash, a
 * control character, more than 256 characters): answer 404.
 */
export function pathId(context: Context, name: string): string | undefined {
  const value = context.req.param(name);
  return value !== undefined && /^[^\p{Cc}/\\%]{1,256}$/u.test(value) ? value : undefined;
}

function answerHeaders(logger: Logger): MiddlewareHandler {
  return async (context, next) => {
    try {
      await next();
    } catch (error) {
      // hono gives `onError` only instances of Error; whatever else is thrown ends here.
      context.res = thrownResponse(error, logger);
    }
    context.res.headers.set("cache-control", "no-store");
    context.res.headers.set("x-content-type-options", "nosniff");
  };
}

function sameMachineOnly(bound: Bound): MiddlewareHandler {
  const hosts = new Set(LOOPBACK_NAMES.map((name) => `${name}:${bound.port}`));
  if (bound.port === 80) for (const name of LOOPBACK_NAMES) hosts.add(name);
  return async (context, next) => {
    if (context.req.header("origin") !== undefined) {
      return refusalResponse({ code: "forbidden_origin", message: "requests from web pages are refused" });
    }
    if (!hosts.has((context.req.header("host") ?? "").toLowerCase())) {
      return refusalResponse({
        code: "forbidden_origin",
        message: `the Host header must name a loopback address and port ${bound.port}`,
      });
    }
    return next();
  };
}
