import { describe, expect, test } from "bun:test";
import { TOOL_IMAGE_MAX_BYTES, TOOL_IMAGES_MAX } from "../../src/core/limits.ts";
import { resultImages } from "../../src/mcp/result-images.ts";
import { resultText } from "../../src/mcp/result-text.ts";

const bytes = (start: string, length = 16) => {
  const data = Buffer.alloc(length);
  data.write(start, "latin1");
  return data;
};
const PNG = "\x89PNG\r\n\x1a\n";
const image = (data: Buffer, mimeType = "image/png") => ({
  type: "image" as const,
  mimeType,
  data: data.toString("base64"),
});

describe("the images of a tool's result", () => {
  test.each([
    [PNG, "image/png"],
    ["\xff\xd8\xff\xe0", "image/jpeg"],
    ["GIF89a", "image/gif"],
    ["RIFF\x10\n\x00\x00WEBP", "image/webp"],
  ])("have the type that their bytes begin with, whatever the server says (%j)", (start, mediaType) => {
    const [found] = resultImages({ content: [image(bytes(start), "image/bmp")] });
    expect(found).toEqual({ mediaType, data: new Uint8Array(bytes(start)) });
  });

  test("are none where the bytes are no image, or of a type that not every provider takes", () => {
    const svg = Buffer.from("<svg xmlns='http://www.w3.org/2000/svg'/>");
    const notBase64 = { type: "image" as const, mimeType: "image/png", data: "" };
    expect(
      resultImages({ content: [image(Buffer.from("12345")), image(svg, "image/svg+xml"), notBase64] }),
    ).toEqual([]);
    expect(resultImages({ content: [{ type: "text", text: bytes(PNG).toString("base64") }] })).toEqual([]);
  });

  test("are those within the size, and the first ones of many", () => {
    const atLimit = image(bytes(PNG, TOOL_IMAGE_MAX_BYTES));
    const over = image(bytes(PNG, TOOL_IMAGE_MAX_BYTES + 1));
    expect(resultImages({ content: [over, atLimit] })).toHaveLength(1);
    expect(resultText({ content: [over, atLimit] }).split("\n")).toEqual([
      `[image: image/png, ${TOOL_IMAGE_MAX_BYTES + 1} bytes, too large to be shown]`,
      `[image: image/png, ${TOOL_IMAGE_MAX_BYTES} bytes]`,
    ]);
    expect(resultImages({ content: [image(bytes(PNG, TOOL_IMAGE_MAX_BYTES * 4))] })).toEqual([]);
    const many = Array.from({ length: TOOL_IMAGES_MAX + 2 }, (_, at) => image(bytes(PNG, 20 + at)));
    expect(resultImages({ content: many }).map(({ data }) => data.byteLength)).toEqual(
      Array.from({ length: TOOL_IMAGES_MAX }, (_, at) => 20 + at),
    );
  });
});
