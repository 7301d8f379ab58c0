/**
 * An authorization server and an MCP server behind it, on loopback, as the specification asks for: protected resource
 * metadata, dynamic registration, authorization code with PKCE, rotating refresh tokens.
 */
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { WebStandardStreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js";
import { sha256Hex } from "../../src/core/digest.ts";

export interface OAuthServer {
  readonly url: string;
  /** Every token that it gave out. */
  readonly issued: string[];
  /** Grants that it was asked for, in order. */
  readonly grants: string[];
  readonly registrations: Record<string, unknown>[];
  /** Ends the lives of all access tokens given so far. */
  expireAccess(): void;
  revokeRefresh(): void;
  /** How many requests it answered with 401. */
  unauthorized(): number;
  /** Token requests wait until the function that comes back is called. */
  holdTokens(): () => void;
  /** What the person does at the page: gives the address that the browser is sent back to. */
  consent(page: string, answer?: "allow" | "deny"): string;
  stop(): Promise<void>;
}

export function startOAuthServer(): OAuthServer {
  const codes = new Map<string, { challenge: string; redirectUri: string; clientId: string }>();
  const clients = new Set<string>(["static-client"]);
  const issued: string[] = [];
  const grants: string[] = [];
  const registrations: Record<string, unknown>[] = [];
  let access = new Set<string>();
  let refresh = new Set<string>();
  let serial = 0;
  let unauthorized = 0;
  let held: Promise<void> | undefined;
  let base = "";

  const give = () => {
    serial += 1;
    const tokens = { access: `access-canary-${serial}-abcdef`, refresh: `refresh-canary-${serial}-abcdef` };
    access.add(tokens.access);
    refresh.add(tokens.refresh);
    issued.push(tokens.access, tokens.refresh);
    return Response.json({
      access_token: tokens.access,
      refresh_token: tokens.refresh,
      token_type: "Bearer",
      expires_in: 3600,
    });
  };
  const refuse = (error: string) => Response.json({ error }, { status: 400 });

  const tokenRequest = async (request: Request) => {
    const form = new URLSearchParams(await request.text());
    const grant = form.get("grant_type") ?? "";
    grants.push(grant);
    await held;
    if (!clients.has(form.get("client_id") ?? "")) return refuse("invalid_client");
    if (grant === "refresh_token") {
      // Rotation: a refresh token is good once.
      return refresh.delete(form.get("refresh_token") ?? "") ? give() : refuse("invalid_grant");
    }
    const code = codes.get(form.get("code") ?? "");
    codes.delete(form.get("code") ?? "");
    if (code === undefined || code.redirectUri !== form.get("redirect_uri")) return refuse("invalid_grant");
    const proof = Buffer.from(sha256Hex(form.get("code_verifier") ?? ""), "hex").toString("base64url");
    return proof === code.challenge ? give() : refuse("invalid_grant");
  };

  const mcp = async (request: Request) => {
    const bearer = request.headers.get("authorization")?.slice("Bearer ".length) ?? "";
    if (!access.has(bearer)) {
      unauthorized += 1;
      const header = `Bearer resource_metadata="${base}/.well-known/oauth-protected-resource/mcp", scope="tools"`;
      return new Response("unauthorized", { status: 401, headers: { "www-authenticate": header } });
    }
    const server = new McpServer({ name: "protected", version: "1" });
    server.registerTool("hello", { description: "Says hello." }, () => ({
      content: [{ type: "text", text: "hello, person" }],
    }));
    const transport = new WebStandardStreamableHTTPServerTransport({ enableJsonResponse: true });
    await server.connect(transport);
    const response = await transport.handleRequest(request);
    const body = await response.text();
    await server.close();
    return new Response(body === "" ? null : body, { status: response.status, headers: response.headers });
  };

  const http = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    development: false,
    async fetch(request): Promise<Response> {
      const { pathname } = new URL(request.url);
      switch (pathname) {
        case "/.well-known/oauth-protected-resource/mcp":
          return Response.json({ resource: `${base}/mcp`, authorization_servers: [base] });
        case "/.well-known/oauth-authorization-server":
          return Response.json({
            issuer: base,
            authorization_endpoint: `${base}/authorize`,
            token_endpoint: `${base}/token`,
            registration_endpoint: `${base}/register`,
            response_types_supported: ["code"],
            code_challenge_methods_supported: ["S256"],
            token_endpoint_auth_methods_supported: ["none"],
          });
        case "/register": {
          const metadata = (await request.json()) as Record<string, unknown>;
          registrations.push(metadata);
          const id = `client-${registrations.length}`;
          clients.add(id);
          return Response.json({ ...metadata, client_id: id }, { status: 201 });
        }
        case "/token":
          return tokenRequest(request);
        case "/mcp":
          return request.method === "POST" ? mcp(request) : new Response(null, { status: 405 });
        default:
          return new Response("not found", { status: 404 });
      }
    },
  });
  base = `http://127.0.0.1:${http.port}`;

  return {
    url: `${base}/mcp`,
    issued,
    grants,
    registrations,
    expireAccess() {
      access = new Set();
    },
    revokeRefresh() {
      refresh = new Set();
    },
    unauthorized: () => unauthorized,
    holdTokens() {
      const { promise, resolve } = Promise.withResolvers<void>();
      held = promise;
      return resolve;
    },
    consent(page, answer = "allow") {
      const { searchParams, pathname } = new URL(page);
      if (pathname !== "/authorize" || searchParams.get("code_challenge_method") !== "S256") {
        throw new Error(`no page to log in at: ${page}`);
      }
      const clientId = searchParams.get("client_id") ?? "";
      if (!clients.has(clientId)) throw new Error(`unknown client ${clientId}`);
      const back = new URL(searchParams.get("redirect_uri") ?? "");
      back.searchParams.set("state", searchParams.get("state") ?? "");
      if (answer === "deny") back.searchParams.set("error", "access_denied");
      else {
        const code = `code-${codes.size + 1}-${serial}`;
        codes.set(code, {
          clientId,
          challenge: searchParams.get("code_challenge") ?? "",
          redirectUri: searchParams.get("redirect_uri") ?? "",
        });
        back.searchParams.set("code", code);
      }
      return back.href;
    },
    stop: () => http.stop(true),
  };
}
