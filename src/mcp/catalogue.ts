import type { JsonObject } from "../core/json.ts";
import type { BoundTool } from "../core/ports/tools.ts";

/** A tool as its server lists it. */
export interface ListedTool {
  readonly name: string;
  readonly description: string;
  readonly inputSchema: JsonObject;
  readonly digest: string;
  /** As in `BoundTool`. */
  readonly readOnly: boolean;
}

export interface SessionWarning {
  readonly server: string;
  readonly code: string;
  readonly message: string;
}

/** Providers take tool names of at most 64 of these characters; others become `_`. */
const NAME_MAX_CHARS = 64;

function visibleName(name: string): string {
  return name.replace(/[^A-Za-z0-9_-]/g, "_").slice(0, NAME_MAX_CHARS);
}

/**
 * The tools of a run in the order given, by the names that the model sees: the tool's own; on a clash with an
 * earlier one `mcp__<server>__<tool>`; if that clashes too, the tool is left out with a warning (host-facts.md §2).
 */
export function buildCatalogue(listings: readonly { server: string; tools: readonly ListedTool[] }[]): {
  tools: readonly BoundTool[];
  warnings: readonly SessionWarning[];
} {
  const tools: BoundTool[] = [];
  const warnings: SessionWarning[] = [];
  const taken = new Set<string>();
  for (const { server, tools: listed } of listings) {
    for (const tool of listed) {
      const name = [tool.name, `mcp__${server}__${tool.name}`]
        .map(visibleName)
        .find((candidate) => candidate !== "" && !taken.has(candidate));
      if (name === undefined) {
        warnings.push({
          server,
          code: "mcp_tool_name_taken",
          message: `tool ${visibleName(tool.name)} of ${server} is left out: its name is taken`,
        });
        continue;
      }
      taken.add(name);
      tools.push({
        name,
        server,
        tool: tool.name,
        description: tool.description,
        inputSchema: tool.inputSchema,
        digest: tool.digest,
        readOnly: tool.readOnly,
      });
    }
  }
  return { tools, warnings };
}
