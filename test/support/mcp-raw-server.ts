/**
 * A stdio MCP server without the SDK, so that it can say what the SDK would not. The mode is the first argument:
 * `refuses` (answers the first request with -32000), `newer` (a version of the protocol that nobody knows), `noisy`
 * (prints what is no message), `endless` (a message that never ends), `many`, `twins` and `slow` (lists of tools).
 */
const mode = process.argv[2] ?? "";
const MIB = 1024 * 1024;

const send = (message: object): void => {
  process.stdout.write(`${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`);
};
const tool = (name: string, description = "") => ({ name, description, inputSchema: { type: "object" } });

/** The list was said to have changed; the new one never comes. */
let changed = false;

function list(cursor: string | undefined) {
  if (changed) return undefined;
  if (mode === "many") return { tools: Array.from({ length: 2_000 }, (_, at) => tool(`tool-${at}`)) };
  if (mode === "twins")
    return { tools: [tool("twin", "first"), tool("twin", "second"), tool("\u001b[2Jname")] };
  if (mode === "slow" && cursor !== undefined) return undefined;
  if (mode === "slow") return { tools: [tool("early")], nextCursor: "more" };
  return { tools: [tool("big"), tool("change"), tool("odd"), tool("sample"), tool("exit")] };
}

/** Waits for the answer to a request of ours. */
let answered: (answer: unknown) => void = () => {};

interface Message {
  readonly id?: number;
  readonly method?: string;
  readonly params?: { readonly cursor?: string; readonly name?: string };
  readonly error?: unknown;
}

function call(name: string | undefined, answer: (text: string) => void): void {
  switch (name) {
    case "big":
      answer("y".repeat(11 * MIB));
      break;
    case "exit":
      process.exit(5);
      break;
    case "change":
      changed = true;
      send({ method: "notifications/tools/list_changed" });
      answer("changed");
      break;
    case "odd":
      // Answers that nobody asked for.
      send({ id: 99_999, result: {} });
      send({ id: "text", error: { code: 1, message: "?" } });
      answer("fine");
      break;
    case "sample":
      answered = (said) => answer(JSON.stringify(said));
      send({ id: 7, method: "sampling/createMessage", params: { messages: [], maxTokens: 1 } });
      break;
    default:
      answer("ok \u001b[2J");
  }
}

function initialize(id: number | undefined): void {
  if (mode === "refuses") send({ id, error: { code: -32000, message: "not today" } });
  else if (mode === "endless") process.stdout.write("x".repeat(11 * MIB));
  else {
    if (mode === "noisy") process.stdout.write('Welcome!\n{"jsonrpc":"1.0"}\n\n[1]\n');
    const protocolVersion = mode === "newer" ? "2099-01-01" : "2025-11-25";
    send({
      id,
      result: { protocolVersion, capabilities: { tools: {} }, serverInfo: { name: "raw", version: "1" } },
    });
  }
}

function take({ id, method, params, error }: Message): void {
  if (method === "initialize") initialize(id);
  else if (method === "tools/call")
    call(params?.name, (text) => send({ id, result: { content: [{ type: "text", text }] } }));
  else if (method === "tools/list") {
    const result = list(params?.cursor);
    if (result !== undefined) send({ id, result });
  } else if (id === 7) answered(error);
}

let rest = "";
for await (const text of process.stdin.setEncoding("utf8")) {
  const lines = (rest + String(text)).split("\n");
  rest = lines.pop() ?? "";
  for (const line of lines) take(JSON.parse(line) as Message);
}

export {};
