import type { Client } from "@modelcontextprotocol/sdk/client/index.js";

/**
 * What a server may ask of us: nothing yet. We do not say that we can be asked, so a server that can do without asking
 * does; one that asks all the same is declined at once, rather than left to wait.
 */
export function declineQuestions(client: Client, onDeclined: () => void): void {
  client.fallbackRequestHandler = async ({ method }) => {
    if (method === "elicitation/create") {
      onDeclined();
      return { action: "decline", _meta: { reason: "mono-agent can't ask a person during a call" } };
    }
    const { ErrorCode, McpError } = await import("@modelcontextprotocol/sdk/types.js");
    throw new McpError(ErrorCode.MethodNotFound, `mono-agent has no ${method}`);
  };
}
