import { baseConversationId } from "./derive.ts";

/** Daily rollover of conversations (host-facts.md §3): `terminal:main` continues as `terminal:main#2026-11-30`. */

export interface SessionRollover {
  readonly rollover: "none" | "daily";
  /** IANA zone whose midnight starts a new bucket; missing or unknown means the zone of the system. */
  readonly timezone?: string | undefined;
}

/** The `YYYY-MM-DD` bucket of a moment (milliseconds since the epoch) in an IANA time zone. */
export function bucketOf(nowMs: number, timezone?: string): string {
  const parts = dayFormat(timezone).formatToParts(nowMs);
  const part = (type: Intl.DateTimeFormatPartTypes) => parts.find((one) => one.type === type)?.value ?? "";
  return `${part("year").padStart(4, "0")}-${part("month")}-${part("day")}`;
}

/** The conversation id with the given bucket; a bucket it already carries is replaced. */
export function withBucket(conversationId: string, bucket: string): string {
  return `${baseConversationId(conversationId)}#${bucket}`;
}

/** The conversation in which a route continues now. */
export function currentConversationId(route: string, session: SessionRollover, nowMs: number): string {
  return session.rollover === "daily"
    ? withBucket(route, bucketOf(nowMs, session.timezone))
    : baseConversationId(route);
}

/** As `currentConversationId`, but a conversation that names its bucket keeps it (host-facts.md §3). */
export function latestConversationId(
  conversationId: string,
  session: SessionRollover,
  nowMs: number,
): string {
  return conversationId.includes("#")
    ? conversationId
    : currentConversationId(conversationId, session, nowMs);
}

function dayFormat(timezone: string | undefined): Intl.DateTimeFormat {
  const day = { calendar: "gregory", year: "numeric", month: "2-digit", day: "2-digit" } as const;
  try {
    return new Intl.DateTimeFormat("en-CA-u-nu-latn", { ...day, timeZone: timezone });
  } catch {
    return new Intl.DateTimeFormat("en-CA-u-nu-latn", day);
  }
}
