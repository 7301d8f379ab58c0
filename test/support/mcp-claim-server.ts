/** A stand-in for the continuation service: claims and results as protocol.md has them, in memory. */
export interface ClaimServer {
  readonly claimUrl: string;
  readonly claims: { token: string; body: Record<string, unknown> }[];
  readonly results: { token: string; body: Record<string, unknown> }[];
  /** Answers for the next requests, before ordinary ones: a status, or a function of the request. */
  readonly next: { status: number; code: string }[];
  stop(): Promise<void>;
}

export function startClaimServer(): ClaimServer {
  const claims: ClaimServer["claims"] = [];
  const results: ClaimServer["results"] = [];
  const next: ClaimServer["next"] = [];
  const server = Bun.serve({
    port: 0,
    hostname: "127.0.0.1",
    development: false,
    async fetch(request) {
      const { pathname, origin } = new URL(request.url);
      const token = request.headers.get("authorization") ?? "";
      const body = (await request.json()) as Record<string, unknown>;
      const failing = next.shift();
      if (failing !== undefined) {
        const error = { code: failing.code, message: `no, ${token}` };
        return Response.json({ error }, { status: failing.status, headers: { "retry-after": "1" } });
      }
      if (pathname === "/v1/continuations/claim") {
        claims.push({ token, body });
        const id = `c-${String(body.taskKey)}`;
        return Response.json({
          continuationId: id,
          resultUrl: `${origin}/v1/continuations/${id}/result`,
          statusUrl: `${origin}/v1/continuations/${id}/status`,
          token: "result-token-canary",
          expiresAt: body.deadline,
          fingerprint: "fingerprint-0123",
        });
      }
      results.push({ token, body });
      const continuationId = pathname.split("/")[3];
      return Response.json({ continuationId, state: "result_received", accepted: true }, { status: 202 });
    },
  });
  return {
    claimUrl: `http://127.0.0.1:${server.port}/v1/continuations/claim`,
    claims,
    results,
    next,
    stop: () => server.stop(true),
  };
}
