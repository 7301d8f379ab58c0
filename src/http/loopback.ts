import { type Context, Hono } from "hono";
import type { Refusal } from "../core/errors.ts";
import type { Clock, Logger } from "../core/ports/platform.ts";
import { createFaultLog, refusalResponse, thrownResponse } from "./errors.ts";

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
  readonly clock: Clock;
}

export type Handler = (context: Context) => Response | Promise<Response>;
export type Method = "GET" | "POST" | "PUT" | "DELETE";

export interface LoopbackApp {
  fetch(request: Request): Promise<Response>;
}

/** An app of `routes`, which adds its paths with `addRoute`, behind the rules of every loopback port. */
export function createLoopbackApp(
  { bound, logger, clock }: LoopbackDeps,
  routes: (app: Hono) => void,
): LoopbackApp {
  const log = createFaultLog(logger, clock);
  const app = new Hono();
  app.notFound(() => refusalResponse({ code: "not_found", message: "there is nothing at this path" }));
  app.onError((error) => thrownResponse(error, log));
  routes(app);
  const refusalOf = sameMachineOnly(bound);
  return {
    async fetch(request) {
      let response: Response;
      try {
        const refusal = refusalOf(request.headers);
        response = refusal === undefined ? await app.fetch(request) : refusalResponse(refusal);
      } catch (error) {
        // hono gives `onError` only instances of Error; whatever else is thrown ends here.
        response = thrownResponse(error, log);
      }
      response.headers.set("cache-control", "no-store");
      response.headers.set("x-content-type-options", "nosniff");
      return response;
    },
  };
}

/** Serves a path by method. `HEAD` follows `GET`; any other method answers 405 with `allow`. */
export function addRoute(app: Hono, path: string, handlers: Partial<Record<Method, Handler>>): void {
  const byMethod = new Map<string, Handler>(Object.entries(handlers));
  const get = byMethod.get("GET");
  if (get !== undefined) byMethod.set("HEAD", get);
  const allow = [...byMethod.keys()].join(", ");
  // One handler for all methods: hono calls a single one directly, and several through a chain of promises.
  app.all(path, (context) => {
    const handler = byMethod.get(context.req.method);
    if (handler !== undefined) return handler(context);
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

/** Says why a request may not come from here, if so. */
function sameMachineOnly(bound: Bound): (headers: Headers) => Refusal | undefined {
  // `localhost` names either loopback address on every machine; a port configured by that name is bound to 127.0.0.1.
  const names = ["localhost", bound.host === "::1" ? "[::1]" : "127.0.0.1"];
  const hosts = new Set(names.map((name) => `${name}:${bound.port}`));
  if (bound.port === 80) for (const name of names) hosts.add(name);
  return (headers) => {
    if (headers.has("origin")) {
      return { code: "forbidden_origin", message: "requests from web pages are refused" };
    }
    if (!hosts.has((headers.get("host") ?? "").toLowerCase())) {
      const message = `the Host header must be ${[...hosts].join(" or ")}`;
      return { code: "forbidden_origin", message };
    }
    return undefined;
  };
}
