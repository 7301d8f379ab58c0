import { type ArgsDef, type CommandDef, parseArgs, renderUsage } from "citty";
import { nearestName } from "../config/nearest.ts";
import { diskRemedy } from "../core/disk-remedy.ts";
import { AppError, BugError, CliError, ERROR_TABLE, errorText } from "../core/errors.ts";
import { FileFault } from "../core/ports/platform.ts";
import { AS_OF_ARG } from "./command.ts";
import type { CliIo, ExitCode } from "./io.ts";
import { programOf } from "./shell.ts";
import { VERSION } from "./version.ts";

/**
 * Owns: finding the command, refusing what it does not know, and the exit code: 0 done, 1 failed, 2 wrong usage.
 * Does not own: what a command does.
 *
 * I1. Only leaves run. Flags may stand anywhere after the program's name.
 * I2. An unknown flag or argument is refused, never ignored.
 */

interface Found {
  readonly command: CommandDef;
  /** Names from the root on, for usage texts. */
  readonly names: readonly string[];
  readonly rest: readonly string[];
  /** Of a name that this command does not have. */
  readonly problem?: CliError;
}

/** Runs the command line and returns the exit code. Never throws for a failure of a command. */
export async function runCli(root: CommandDef, args: readonly string[], io: CliIo): Promise<ExitCode> {
  const asked = args[0] === "help" ? [...args.slice(1), "--help"] : [...args];
  if (asked.length === 1 && (asked[0] === "--version" || asked[0] === "-v")) {
    io.out(`${VERSION}\n`);
    return 0;
  }
  const own = beforeSeparator(asked);
  const help = own.includes("--help") || own.includes("-h");
  let names: readonly string[] = ["mono-agent"];
  try {
    const found = await findCommand(root, help ? asked.filter((arg) => !isHelp(arg)) : asked, names, !help);
    names = found.names;
    if (found.problem !== undefined) throw found.problem;
    if (help) {
      io.out(await usageOf(found));
      return 0;
    }
    if (found.command.subCommands !== undefined) {
      io.err(await usageOf(found));
      return 2;
    }
    return await runLeaf(found);
  } catch (error) {
    return failure(error, names, io);
  }
}

async function findCommand(
  command: CommandDef,
  args: readonly string[],
  names: readonly string[],
  takeDefault: boolean,
): Promise<Found> {
  const subCommands = await resolved(command.subCommands);
  if (subCommands === undefined) return { command, names, rest: args };
  const at = commandIndex(args, (await resolved(command.args)) ?? {});
  const fallback = takeDefault ? await resolved(command.default) : undefined;
  const name = at < 0 ? fallback : args[at];
  if (name === undefined) return { command, names, rest: args };
  if (!Object.hasOwn(subCommands, name)) {
    const nearest = nearestName(name, Object.keys(subCommands));
    const hint = nearest === undefined ? "" : `; did you mean "${nearest}"?`;
    const problem = `there is no command "${[...names.slice(1), name].join(" ")}"${hint}`;
    return { command, names, rest: args, problem: new CliError("usage", problem) };
  }
  const next = await resolved(subCommands[name]);
  if (next === undefined) throw new BugError(`command ${name} resolves to nothing`);
  return findCommand(next, at < 0 ? args : args.toSpliced(at, 1), [...names, name], takeDefault);
}

/** Where the name of a subcommand stands: the first argument that is neither a flag nor the value of one. */
function commandIndex(args: readonly string[], flags: ArgsDef): number {
  for (let at = 0; at < args.length; at += 1) {
    const arg = args[at] ?? "";
    if (arg === "--") return -1;
    if (!arg.startsWith("-")) return at;
    if (flags[arg.slice(2)]?.type === "string") at += 1;
  }
  return -1;
}

async function runLeaf({ command, rest }: Found): Promise<ExitCode> {
  const defined = (await resolved(command.args)) ?? {};
  const args = parseArgs([...rest], defined);
  refuseUnknown(args, defined);
  const code: unknown = await command.run?.({ rawArgs: [...rest], args, cmd: command });
  return code === 1 || code === 2 ? code : 0;
}

function refuseUnknown(args: Record<string, unknown> & { _: string[] }, defined: ArgsDef): void {
  const entries = Object.entries(defined);
  const known = new Set(
    entries.flatMap(([name, arg]) => [name, ...("alias" in arg ? [arg.alias ?? []].flat() : [])]),
  );
  for (const name of Object.keys(args)) {
    if (name === "_" || known.has(name) || known.has(kebab(name))) continue;
    const nearest = nearestName(name, [...known]);
    const hint = nearest === undefined ? "" : `; did you mean --${nearest}?`;
    throw new CliError("usage", `there is no option --${name}${hint}`);
  }
  const positionals = entries.filter(([, arg]) => arg.type === "positional").length;
  const extra = args._[positionals];
  if (extra !== undefined) throw new CliError("usage", `"${extra}" is one argument too many`);
  for (const [name, arg] of entries) {
    if (arg.type === "string" && args[name] === "") throw new CliError("usage", `--${name} needs a value`);
  }
}

function kebab(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}

async function usageOf({ command, names }: Found): Promise<string> {
  const parent = names.slice(0, -1).join(" ");
  const shown = Object.entries((await resolved(command.args)) ?? {}).filter(([name]) => !(name in AS_OF_ARG));
  const usage: CommandDef = { ...command, args: Object.fromEntries(shown) };
  const text = await renderUsage(usage, parent === "" ? undefined : { meta: { name: parent } });
  return `${Bun.stripANSI(text)}\n`;
}

function failure(error: unknown, names: readonly string[], io: CliIo): ExitCode {
  // citty's own errors are all about arguments; it does not export their class.
  const usage = error instanceof Error && error.name === "CLIError";
  if (usage || (error instanceof AppError && error.code === "usage")) {
    io.err(
      `error: ${Bun.stripANSI(errorText(error))}\nsee: ${[programOf(io), ...names.slice(1)].join(" ")} --help\n`,
    );
    return 2;
  }
  if (error instanceof AppError) {
    io.err(`error: ${error.message}\n`);
    return ERROR_TABLE[error.code].exit;
  }
  // Of a system that is full or read-only, there is more to say than where in the program that showed.
  const remedy = error instanceof FileFault ? diskRemedy(error.errno) : undefined;
  if (remedy !== undefined) {
    io.err(`error: ${errorText(error)}; ${remedy}\n`);
    return 1;
  }
  const stack = error instanceof Error && error.stack !== undefined ? error.stack : errorText(error);
  io.err(`error: this should not happen: ${stack}\n`);
  return 1;
}

function isHelp(arg: string): boolean {
  return arg === "--help" || arg === "-h";
}

function beforeSeparator(args: readonly string[]): readonly string[] {
  const end = args.indexOf("--");
  return end < 0 ? args : args.slice(0, end);
}

/** citty lets most parts of a command be a value, a promise or a function of either. */
async function resolved<T>(
  part: T | Promise<T> | (() => T) | (() => Promise<T>) | undefined,
): Promise<T | undefined> {
  return part instanceof Function ? await part() : await part;
}
