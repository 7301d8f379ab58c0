import type { CallToolResult } from "@modelcontextprotocol/sdk/types.js";
import { TOOL_IMAGE_MAX_BYTES, TOOL_IMAGES_MAX } from "../core/limits.ts";
import type { ToolImage } from "../core/ports/model.ts";

/**
 * The images of a tool's result that a model may be shown, within the limits. The type is read from the bytes: a
 * provider refuses the whole request, and so the turn, over an image that is not what it says.
 */
export function resultImages({ content }: Pick<CallToolResult, "content">): ToolImage[] {
  const images: ToolImage[] = [];
  for (const part of content) {
    if (images.length === TOOL_IMAGES_MAX) break;
    if (part.type !== "image" || part.data.length > BASE64_MAX_CHARS) continue;
    const data = new Uint8Array(Buffer.from(part.data, "base64"));
    const mediaType = imageType(data);
    if (mediaType === undefined || data.byteLength > TOOL_IMAGE_MAX_BYTES) continue;
    images.push({ mediaType, data });
  }
  return images;
}

/** Base64 of the largest image, with room for line breaks. */
const BASE64_MAX_CHARS = TOOL_IMAGE_MAX_BYTES * 1.5;

/** The types that every provider takes, by the hexadecimal digits that their files begin with. */
const SIGNATURES: readonly (readonly [mediaType: string, pattern: RegExp])[] = [
  ["image/png", /^89504e470d0a1a0a/],
  ["image/jpeg", /^ffd8ff/],
  ["image/gif", /^474946383[79]61/],
  ["image/webp", /^52494646.{8}57454250/],
];

function imageType(data: Uint8Array): string | undefined {
  const start = Buffer.from(data.subarray(0, 12)).toString("hex");
  return SIGNATURES.find(([, pattern]) => pattern.test(start))?.[0];
}
