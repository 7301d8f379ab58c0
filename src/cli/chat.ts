import { join } from "node:path";
import { createInterface } from "node:readline";
import type { CommandDef } from "citty";
import type { LoadedConfig } from "../config/load.ts";
import { hostAndPort } from "../core/address.ts";
import { CliError } from "../core/errors.ts";
import { isTerminalName, TERMINAL_TOKEN_FILE, TERMINAL_TOKEN_PATTERN } from "../core/terminal.ts";
import { createFileSystem } from "../platform/filesystem.ts";
import { createIds } from "../platform/ids.ts";
import { readAttachment } from "./chat/attach.ts";
import { type ChatClient, createChatClient, noHostAt } from "./chat/client.ts";
import { type InteractiveChat, interactiveChat } from "./chat/interactive.ts";
import { linesOf } from "./chat/lines.ts";
import { pipedChat } from "./chat/piped.ts";
import { createScreen } from "./chat/screen.ts";
import { CONFIG_ARGS, leaf } from "./command.ts";
import type { CliIo, ExitCode } from "./io.ts";
import { readSecretText } from "./owner-secret.ts";
import { configOf } from "./settings.ts";
import { programOf } from "./shell.ts";

const CHAT_ARGS = {
  ...CONFIG_ARGS,
  conversation: {
    type: "string",
    default: "main",
    valueHint: "name",
    description: "Conversation to talk in",
  },
  attach: {
    type: "string",
    valueHint: "file",
    description: "An image, a PDF or a text that goes with the first message",
  },
} as const;

export function chatCommand(io: CliIo): CommandDef {
  const description = "Talk to the running host; without a terminal each line of standard input is a turn";
  return leaf("chat", description, CHAT_ARGS, async (args) => {
    if (!isTerminalName(args.conversation)) {
      throw new CliError(
        "usage",
        "--conversation must be 1 to 64 letters, digits, dots, dashes or underscores",
      );
    }
    const { config } = configOf(args, io, { secretsOptional: true, withoutServers: true });
    const attach = (path: string) => readAttachment(createFileSystem(), io.cwd, path);
    const files = { attach, attached: args.attach === undefined ? [] : [attach(args.attach)] };
    const client = clientOf(config, args.conversation, programOf(io));
    return process.stdin.isTTY === true && process.stdout.isTTY === true
      ? atTerminal(client, files)
      : throughPipe(client, files, io);
  });
}

function clientOf(
  { configPath, terminal, host }: LoadedConfig,
  conversation: string,
  program: string,
): ChatClient {
  if (!terminal.enabled) {
    throw new CliError(
      "operation_failed",
      `the terminal channel is off: see terminal.enabled in ${configPath}`,
    );
  }
  const address = `http://${hostAndPort(terminal)}`;
  const path = join(host.stateDir, TERMINAL_TOKEN_FILE);
  const token = readSecretText(createFileSystem(), path)?.trim();
  if (token === undefined) throw new CliError("host_unreachable", noHostAt(address, program));
  if (!TERMINAL_TOKEN_PATTERN.test(token)) {
    throw new CliError("operation_failed", `${path} does not hold a token`);
  }
  return createChatClient({ address, conversation, token, program });
}

type Files = Pick<InteractiveChat, "attach" | "attached">;

async function atTerminal(client: ChatClient, files: Files): Promise<ExitCode> {
  const line = createInterface({ input: process.stdin, output: process.stdout, prompt: "> " });
  // Taken at once: a line that is entered while the history loads must not be lost.
  const lines = line[Symbol.asyncIterator]();
  try {
    return await interactiveChat({
      client,
      ...files,
      screen: createScreen(line, process.stdout),
      lines,
      uuid: createIds().uuid,
      sleep: Bun.sleep,
    });
  } finally {
    line.close();
  }
}

async function throughPipe(client: ChatClient, { attached = [] }: Files, io: CliIo): Promise<ExitCode> {
  return pipedChat({
    client,
    attached,
    lines: linesOf(Bun.stdin.stream()),
    uuid: createIds().uuid,
    sleep: Bun.sleep,
    out: io.out,
    err: io.err,
  });
}
