/**
 * A stdio MCP server that tells a test what it was given: each call of its only tool, `report_<name>`, is posted to
 * REPORT_URL with the environment and the arguments, and answers with what the test replies.
 */
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { CallToolRequestSchema, ListToolsRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const name = process.argv[2] ?? "";
const server = new Server({ name, version: "1" }, { capabilities: { tools: {} } });

server.setRequestHandler(ListToolsRequestSchema, () => ({
  tools: [{ name: `report_${name}`, description: "reports", inputSchema: { type: "object" } }],
}));
server.setRequestHandler(CallToolRequestSchema, async ({ params }) => {
  const { REPORT_URL, MCP_SECRET, ...env } = process.env;
  console.error(`a careless server logs its secret ${MCP_SECRET}`);
  const response = await fetch(REPORT_URL ?? "", {
    method: "POST",
    body: JSON.stringify({ server: name, env, params }),
  });
  return { content: [{ type: "text", text: await response.text() }] };
});
await server.connect(new StdioServerTransport());
