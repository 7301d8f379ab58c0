import { createTerminalChannel, type TerminalDeps } from "../../src/channels/terminal/channel.ts";
import { baseConversationId } from "../../src/core/derive.ts";
import { ok, refuse } from "../../src/core/errors.ts";
import type { TurnEngine, TurnInput } from "../../src/core/ports/channel.ts";
import type { Message } from "../../src/core/turn.ts";
import { createObservers } from "../../src/harness/observers.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createFakeClock } from "./fake-clock.ts";
import { createFakeIds } from "./fake-ids.ts";
import { createRecordingLogger } from "./silent-logger.ts";
import { createLedgerFolder } from "./turns-fixture.ts";

/** A terminal channel on a free port over a real ledger, with an engine that admits turns and runs them on demand. */
export async function createTerminalHost(options: Partial<TerminalDeps> = {}) {
  const folder = createLedgerFolder();
  const turns = await folder.open();
  const clock = createFakeClock();
  const ids = createFakeIds("terminal");
  const logger = createRecordingLogger();
  const submitted: TurnInput[] = [];
  const cancelled: string[] = [];
  const at = () => new Date(clock.now()).toISOString();
  const engine: TurnEngine = {
    ...createObservers(logger),
    submit: async (input) => {
      submitted.push(input);
      if (input.text === "refuse") return refuse("queue_full", "too many", 2_500);
      const admitted = await turns.admit({
        turnId: ids.uuid(),
        requestId: input.requestId,
        conversationId: input.conversationId,
        baseId: baseConversationId(input.conversationId),
        thread: "main",
        text: input.text,
        replyTo: input.replyTo,
        now: at(),
        maxQueued: 100,
      });
      if (!admitted.ok) return admitted;
      return ok({ turnId: admitted.value.turn.turnId, replayed: admitted.value.replayed });
    },
    cancel: async (turnId) => {
      cancelled.push(turnId);
      return ok(undefined);
    },
  };
  const deps: TerminalDeps = {
    engine,
    turns,
    fs: createFileSystem(),
    clock,
    ids,
    logger,
    host: "127.0.0.1",
    port: 0,
    stateDir: folder.dir,
    session: { rollover: "none" },
    ...options,
  };
  const channel = createTerminalChannel(deps);

  /** Appends a row under a delivery key and tells nobody. */
  const append = async (key: string, text = key, conversationId = "terminal:main"): Promise<Message> => {
    const baseId = baseConversationId(conversationId);
    const result = await turns.appendDelivered({
      conversationId,
      baseId,
      deliveryKey: key,
      text,
      now: at(),
      mirror: false,
    });
    if (!result.ok) throw new Error(result.refusal.code);
    return result.value.message;
  };
  const address = () => {
    const bound = channel.address();
    if (bound === undefined) throw new Error("not running");
    return `http://127.0.0.1:${bound.port}`;
  };
  return {
    channel,
    turns,
    engine,
    clock,
    logger,
    submitted,
    cancelled,
    folder,
    append,
    address,
    token: async () => (await Bun.file(`${folder.dir}/terminal-token`).text()).trim(),
    remove: async () => {
      await channel.stop();
      await turns.close();
      folder.remove();
    },
  };
}
