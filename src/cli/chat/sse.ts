import { linesOf } from "./lines.ts";

/** One server-sent event. `id` is the last id of the stream so far, as the standard has it. */
export interface ServerEvent {
  readonly id: string | undefined;
  /** What kind of event it is, where the sender says so. */
  readonly name: string | undefined;
  readonly data: string;
}

/** Reads server-sent events as they arrive, however the bytes are cut. Ends with the stream; a broken one throws. */
export async function* serverEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  let id: string | undefined;
  let name: string | undefined;
  let data: string[] = [];
  for await (const line of linesOf(body)) {
    if (line === "") {
      if (data.length > 0) yield { id, name, data: data.join("\n") };
      name = undefined;
      data = [];
    } else if (line.startsWith("data:")) data.push(fieldValue(line, "data:"));
    else if (line.startsWith("event:")) name = fieldValue(line, "event:");
    else if (line.startsWith("id:")) id = fieldValue(line, "id:");
  }
}

function fieldValue(line: string, name: string): string {
  const value = line.slice(name.length);
  return value.startsWith(" ") ? value.slice(1) : value;
}
