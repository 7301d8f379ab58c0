import type { Attachment, ModelMessage, ModelRequest } from "../core/ports/model.ts";
import { modelFailure } from "./failures.ts";
import type { ResolvedModel } from "./resolve.ts";
import { hostedWindow } from "./windows.ts";

/** What a model takes as input, and how much. */
export interface ModelInputs {
  readonly images: boolean;
  /** Images in the results of tools. Elsewhere a result is text alone, and names them in a line. */
  readonly toolImages: boolean;
  /** PDF. Documents of type `text/…` are sent as text, to any model. */
  readonly documents: boolean;
  /** Undefined: nobody told; the request is sent as it is and the provider decides. */
  readonly contextTokens: number | undefined;
  /** What to do when the model takes more than is said here. */
  readonly hint?: string;
}

const LOCAL_HINT =
  "if it does, say so in providers.local[].models, as in {id, images: true, documents: true}";

export function inputsOf(resolved: ResolvedModel): ModelInputs {
  switch (resolved.kind) {
    case "anthropic":
    case "openai_responses":
    case "openai_chat":
    case "google": {
      const assumed = hostedWindow(resolved.kind, resolved.model);
      const { images = true, documents = true, contextTokens = assumed } = resolved.facts ?? {};
      // Chat completions have no place for an image in the result of a tool.
      return { images, toolImages: images && resolved.kind !== "openai_chat", documents, contextTokens };
    }
    case "openai_compat": {
      const { images = false, documents = false, contextTokens } = resolved.facts ?? {};
      return { images, toolImages: false, documents, contextTokens, hint: LOCAL_HINT };
    }
    case "demo":
      return { images: false, toolImages: false, documents: false, contextTokens: undefined };
  }
}

/** The image types that all of the hosted providers take. */
const IMAGE_TYPES: readonly string[] = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/** The messages as a model reads them that can be shown no image of a tool: the text of the result names it. */
export function withoutToolImages(messages: readonly ModelMessage[]): ModelMessage[] {
  return messages.map((message) => {
    if (message.role !== "tool" || message.images === undefined) return message;
    const { images: _, ...text } = message;
    return text;
  });
}

/** A document that is sent as text. */
export function isTextDocument({ kind, mediaType }: Attachment): boolean {
  return kind === "document" && mediaType.startsWith("text/");
}

/**
 * Refuses what the model does not take, before anything is sent.
 *
 * @throws ModelError `model_rejected` that names the kind of input and, for a local model, the setting.
 */
export function checkInputs(
  { messages }: Pick<ModelRequest, "messages">,
  inputs: ModelInputs,
  model: string,
): void {
  const refuse = (what: string) => {
    const { hint } = inputs;
    throw modelFailure("not_accepted", model, hint === undefined ? what : `${what}; ${hint}`);
  };
  for (const message of messages) {
    if (message.role !== "user") continue;
    for (const attachment of message.attachments ?? []) {
      const { kind, mediaType } = attachment;
      if (isTextDocument(attachment)) continue;
      if (kind === "image" && !IMAGE_TYPES.includes(mediaType)) {
        throw modelFailure("not_accepted", model, `${mediaType}; images may be ${IMAGE_TYPES.join(", ")}`);
      }
      if (kind === "document" && mediaType !== "application/pdf") {
        throw modelFailure("not_accepted", model, `${mediaType}; documents may be PDF or text`);
      }
      if (kind === "image" && !inputs.images) refuse("images");
      if (kind === "document" && !inputs.documents) refuse("PDF documents");
    }
  }
}
