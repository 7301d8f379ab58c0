import { CONFIG_FILE_NAME } from "../config/load.ts";
import { fileJson } from "../core/json.ts";

/** The files of a first agent folder. They run at once with the built-in demo model. */

export interface StarterFile {
  readonly name: string;
  readonly content: string;
}

export const MCP_FILE_NAME = "mcp.json";
export const IDENTITY_FILE_NAME = "identity.md";
export const EXAMPLE_SERVER = "work-control";

/** `self` is the command that starts this program: mcp.json runs its example server by it. */
export function starterFiles(self: readonly string[]): readonly StarterFile[] {
  const [command, ...args] = self;
  const server = { command, args: [...args, "example", EXAMPLE_SERVER] };
  return [
    { name: CONFIG_FILE_NAME, content: CONFIG_TEXT },
    { name: MCP_FILE_NAME, content: fileJson({ mcpServers: { [EXAMPLE_SERVER]: server } }) },
    { name: IDENTITY_FILE_NAME, content: IDENTITY_TEXT },
  ];
}

const IDENTITY_TEXT = `You are a helpful assistant.

Answer briefly and plainly. When a task takes longer than this conversation, delegate it with a tool that accepts
work, and tell the person that the answer comes later in the same conversation.
`;

const CONFIG_TEXT = `// The configuration of this agent. Comments and trailing commas are allowed.
// \`mono-agent doctor\` checks it, \`mono-agent config show\` prints what is in effect,
// \`mono-agent config schema\` prints its JSON Schema.
{
  "runtime": {
    // <provider>:<model>. "demo:assistant" is built in: deterministic, for trying things out; it needs no key.
    // A real model is, for example:
    //   "anthropic:claude-sonnet-4-5"    with the key in the environment variable ANTHROPIC_API_KEY
    //   "ollama:qwen3"                   a local Ollama at its usual address
    //   "box:some-model"                 a provider with the id "box" from providers.local below
    "model": "demo:assistant",
  },

  "context": {
    // What the agent is told about itself in every turn.
    "identityPath": "${IDENTITY_FILE_NAME}",
  },

  "tools": {
    // The MCP servers whose tools the agent may use.
    "mcpConfigPath": "${MCP_FILE_NAME}",
    // Those among them that may answer later: a stdio command, or streamable HTTP on this machine.
    "continuationServers": ["${EXAMPLE_SERVER}"],
  },

  // "providers": {
  //   // Any server that speaks the OpenAI API: LM Studio, vLLM, llama.cpp, a gateway.
  //   "local": [
  //     { "id": "box", "type": "openai_compat", "baseUrl": "http://127.0.0.1:8000/v1", "apiKeyEnv": "BOX_API_KEY" },
  //   ],
  // },

  "continuations": {
    // Where services hand in their results. The port is fixed: their result URLs must survive restarts.
    "port": 4319,
  },

  "terminal": {
    // Where \`mono-agent chat\` talks to the host.
    "port": 4320,
  },
}
`;
