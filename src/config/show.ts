import { z } from "zod";
import type { JsonObject } from "../core/json.ts";
import { isEnabled, type McpServerSpec, serverTransport } from "../core/mcp-servers.ts";
import type { LoadedConfig } from "./load.ts";
import { configSchema } from "./schema.ts";

/**
 * The effective configuration for people: defaults filled in, environment applied, paths absolute. Secrets, the
 * identity text and the literal values of mcp.json (which may be secrets) are left out.
 */
export function effectiveConfig(config: LoadedConfig): JsonObject {
  const { identity: _, ...context } = config.context;
  const { secrets: _secrets, mcpServers, continuationsDisabled: _disabled, ...rest } = config;
  const servers = Object.fromEntries([...mcpServers].map(([name, spec]) => [name, serverSummary(spec)]));
  // Through JSON text, which drops undefined members.
  return JSON.parse(
    JSON.stringify({ ...rest, context, mcpServers: servers, continuations: config.continuations ?? null }),
  );
}

function serverSummary(spec: McpServerSpec): JsonObject {
  const transport = serverTransport(spec);
  const settings = {
    ...(isEnabled(spec) ? {} : { enabled: false }),
    ...(spec.trusted === true ? { trusted: true } : {}),
    ...(spec.timeoutMs === undefined ? {} : { timeoutMs: spec.timeoutMs }),
    ...(spec.allowTools === undefined ? {} : { allowTools: spec.allowTools }),
    ...(spec.denyTools === undefined ? {} : { denyTools: spec.denyTools }),
  };
  switch (transport.kind) {
    case "stdio":
      return { transport: "stdio", env: Object.keys(transport.env), ...settings };
    case "contradictory":
      return { transport: "unusable", reason: transport.reason, ...settings };
    default:
      return {
        ...settings,
        transport: transport.kind,
        origin: new URL(transport.url).origin,
        headers: Object.keys(transport.headers),
      };
  }
}

/** The JSON Schema of mono-agent.config.json, for editors (`$schema`). Made from the one definition. */
export function printJsonSchema(): string {
  return `${JSON.stringify(z.toJSONSchema(configSchema, { io: "input" }), null, 2)}\n`;
}
