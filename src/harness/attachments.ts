import { refuse } from "../core/errors.ts";
import {
  ATTACHMENT_MAX_BYTES,
  ATTACHMENT_NAME_MAX_CHARS,
  ATTACHMENTS_MAX,
  ATTACHMENTS_TOTAL_MAX_BYTES,
  MIB,
} from "../core/limits.ts";
import type { Attachment } from "../core/ports/model.ts";

/**
 * The text of a turn with a line for each file that came with it. This is what is kept, shown and remembered: the bytes
 * are gone when the turn has ended, and a later answer should still know that something was there (host-facts.md §4).
 */
export function notedText(text: string, attachments: readonly Attachment[] = []): string {
  if (attachments.length === 0) return text;
  return `${text}\n\n${attachments.map(({ name, mediaType }) => `[attached: ${name}, ${mediaType}]`).join("\n")}`;
}

const MEDIA_TYPE = /^[a-z]+\/[a-z0-9][a-z0-9.+-]{0,126}$/;
const NAME = new RegExp(`^\\P{Cc}{1,${ATTACHMENT_NAME_MAX_CHARS}}$`, "u");

/** Why attachments are refused at admission, before anything is durable; undefined when they are within the bounds. */
export function invalidAttachments(attachments: readonly Attachment[]) {
  const invalid = (message: string) => refuse("invalid_attachment", message);
  if (attachments.length > ATTACHMENTS_MAX)
    return invalid(`a turn has at most ${ATTACHMENTS_MAX} attachments`);
  let total = 0;
  for (const [at, { kind, mediaType, name, data }] of attachments.entries()) {
    const where = `attachment ${at + 1}`;
    if (!MEDIA_TYPE.test(mediaType)) return invalid(`${where} needs a media type such as image/png`);
    if ((kind === "image") !== mediaType.startsWith("image/")) {
      return invalid(`${where} is called ${kind}, which its media type is not`);
    }
    if (!NAME.test(name) || !name.isWellFormed()) {
      return invalid(
        `${where} needs a name of at most ${ATTACHMENT_NAME_MAX_CHARS} characters without control characters`,
      );
    }
    if (data.byteLength === 0) return invalid(`${where} is empty`);
    if (data.byteLength > ATTACHMENT_MAX_BYTES) {
      return invalid(`${where} has more than ${ATTACHMENT_MAX_BYTES / MIB} MiB`);
    }
    total += data.byteLength;
  }
  return total > ATTACHMENTS_TOTAL_MAX_BYTES
    ? invalid(`the attachments have more than ${ATTACHMENTS_TOTAL_MAX_BYTES / MIB} MiB in all`)
    : undefined;
}
