import type { CommandDef } from "citty";
import { AppError, CliError } from "../../core/errors.ts";
import { type WatchEvent, watchEventSchema } from "../../core/wire.ts";
import { serverEvents } from "../chat/sse.ts";
import { CONFIG_ARGS, JSON_ARG, leaf } from "../command.ts";
import type { CliIo } from "../io.ts";
import { plain } from "./print.ts";
import { operatorOf } from "./session.ts";

/** Changes as they happen, until Ctrl-C. It shows what is durable, and never payload, text, token or destination. */
export function watchCommand(io: CliIo): CommandDef {
  const args = { ...CONFIG_ARGS, ...JSON_ARG };
  return leaf("watch", "Show changes of continuations as they happen, until Ctrl-C", args, async (given) => {
    const stop = new AbortController();
    const ends = () => stop.abort();
    const forgets = [io.onStop(ends), io.onUnread(ends)];
    try {
      const body = await operatorOf(given, io).stream("/v1/operator/events", stop.signal);
      for await (const event of serverEvents(body)) {
        if (event.name === "lost") {
          const lost = Number(event.data);
          if (given.json === true) io.out(`${JSON.stringify({ lost })}\n`);
          else io.err(`${lost} changes are not shown: they came faster than they were read\n`);
          continue;
        }
        const parsed = watchEventSchema.safeParse(JSON.parse(event.data));
        if (!parsed.success) continue;
        io.out(given.json === true ? `${JSON.stringify(parsed.data)}\n` : watchLine(parsed.data));
      }
    } catch (error) {
      if (stop.signal.aborted) return 0;
      if (error instanceof AppError) throw error;
      if (error instanceof SyntaxError) {
        throw new CliError("operation_failed", "what was sent is no event of a host", { cause: error });
      }
      // Whatever else is thrown is the end of the connection.
      throw hasStopped(error);
    } finally {
      for (const forget of forgets) forget();
    }
    if (stop.signal.aborted) return 0;
    throw hasStopped();
  });
}

function hasStopped(cause?: unknown): CliError {
  return new CliError("host_unreachable", "the host has stopped", { cause });
}

function watchLine({ at, continuationId, state, what, code }: WatchEvent): string {
  const reason = code === undefined ? "" : ` (${plain(code)})`;
  const change = what === state ? state : `${plain(what)} → ${state}`;
  return `${plain(at)}  ${plain(continuationId)}  ${change}${reason}\n`;
}
