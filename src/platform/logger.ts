import { type ColorName, getColor } from "consola/utils";
import type { LogFields, Logger } from "../core/ports/platform.ts";

export const LOG_LEVELS = ["debug", "info", "warn", "error"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

export interface LoggerOptions {
  /** The least level that is written. */
  readonly level: LogLevel;
  /** One JSON object a line instead of text for people. */
  readonly json: boolean;
  /** Colours in the text form; the caller knows whether a terminal reads it. Default: none. */
  readonly color?: boolean;
  /** Takes one line with its newline. Default: standard error. */
  readonly write?: (line: string) => void;
  /** Milliseconds since the epoch. Default: the real time. */
  readonly now?: () => number;
}

const COLORS: Record<LogLevel, ColorName> = { debug: "gray", info: "cyan", warn: "yellow", error: "red" };

/** A logger that writes each entry as one line; control characters in it are escaped, so an entry can't forge another. */
export function createLogger(options: LoggerOptions): Logger {
  const write = options.write ?? ((line: string) => void process.stderr.write(line));
  const now = options.now ?? Date.now;
  const least = LOG_LEVELS.indexOf(options.level);
  const at =
    (level: LogLevel) =>
    (message: string, fields: LogFields = {}) => {
      if (LOG_LEVELS.indexOf(level) < least) return;
      const time = new Date(now()).toISOString();
      write(options.json ? jsonLine(time, level, message, fields) : textLine(time, level, message, fields));
    };
  const textLine = (time: string, level: LogLevel, message: string, fields: LogFields) => {
    const paint = (color: ColorName, text: string) => (options.color ? getColor(color)(text) : text);
    const details = Object.entries(fields)
      .filter(([, value]) => value !== undefined)
      .map(([key, value]) => paint("gray", `${key}=${plain(value)}`));
    return `${[paint("gray", time), paint(COLORS[level], level.padEnd(5)), oneLine(message), ...details].join(" ")}\n`;
  };
  return { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
}

/** The entry's own members come first for the reader, and are set again so that no field replaces them. */
function jsonLine(time: string, level: LogLevel, message: string, fields: LogFields): string {
  const own = { time, level, message };
  return `${JSON.stringify({ ...own, ...fields, ...own })}\n`;
}

function plain(value: LogFields[string]): string {
  const text = String(value);
  return /[\s"=]/.test(text) || text === "" ? oneLine(JSON.stringify(text)) : oneLine(text);
}

function oneLine(text: string): string {
  return text.replace(/\p{Cc}/gu, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
