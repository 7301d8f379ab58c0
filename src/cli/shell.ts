import type { CliIo } from "./io.ts";

/** Commands that are printed to be copied into a shell. */

/** The command that starts this program: the beginning of every command that is printed. */
export function programOf({ self }: Pick<CliIo, "self">): string {
  return self.map(shellWord).join(" ");
}

/** Flags as they are typed. */
export function typedFlags(flags: Readonly<Record<string, string | undefined>>): string {
  return Object.entries(flags)
    .flatMap(([name, value]) => (value === undefined ? [] : [` --${name} ${shellWord(value)}`]))
    .join("");
}

export function shellWord(text: string): string {
  return /^[A-Za-z0-9_./:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
