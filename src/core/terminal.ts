import { z } from "zod";
import { messageSchema } from "./turn.ts";

/** The HTTP interface of the terminal channel, shared by the channel and its clients. */

export const TERMINAL_SCHEME = "terminal";
/** In the state directory: 32 random bytes, base64url, owner-only. */
export const TERMINAL_TOKEN_FILE = "terminal-token";
export const TERMINAL_TOKEN_PATTERN = /^[A-Za-z0-9_-]{43}$/;

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

/** Whether this can be the name of a terminal conversation: 1 to 64 letters, digits, `.`, `_` and `-`. */
export function isTerminalName(name: string): boolean {
  return NAME.test(name);
}

/** `main` → `terminal:main`: the route, and the conversation id without its bucket. */
export function terminalRoute(name: string): string {
  return `${TERMINAL_SCHEME}:${name}`;
}

/** The name in a terminal route, or undefined when it is not one. */
export function terminalName(route: string): string | undefined {
  const prefix = `${TERMINAL_SCHEME}:`;
  const name = route.startsWith(prefix) ? route.slice(prefix.length) : "";
  return isTerminalName(name) ? name : undefined;
}

/** Answer of `POST …/turns`. */
export const turnAcceptedSchema = z.object({ turnId: z.string(), replayed: z.boolean() });
export type TurnAccepted = z.infer<typeof turnAcceptedSchema>;

/** Answer of `GET …/messages`: ascending, over all buckets. `lastSeq` is where `events?after=` goes on without a gap. */
export const messagesAnswerSchema = z.object({ messages: z.array(messageSchema), lastSeq: z.int().min(0) });
export type MessagesAnswer = z.infer<typeof messagesAnswerSchema>;
