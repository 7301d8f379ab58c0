/** The sample MCP server, where the command line may import it from. */
export { runWorkControl, type SubmittedWork, submitWork } from "../mcp/example/index.ts";
