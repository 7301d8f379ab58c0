// The README's sample of embedding, as a program of its own: prints the answer that a service's result leads to.
import { buildSnapshot, claimAnswerSchema, createContinuations } from "mono-agent/continuation";

const answered = Promise.withResolvers<string>();
const continuations = await createContinuations({
  state: { stateDir: process.argv[2] ?? "state" },
  listen: { port: Number(process.argv[3] ?? 4319) },
  continuationServers: ["worker"],
  synthesize: async ({ payload }) => `The worker says: ${JSON.stringify(payload)}`,
  supports: (destination) => (destination.startsWith("room:") ? "supported" : "never"),
  deliver: async ({ text, deliveryKey }) => {
    answered.resolve(text);
    return { kind: "delivered", parts: [{ id: deliveryKey }] };
  },
  recordHistory: async () => ({ recorded: true }),
});
await continuations.start();

// A run of your agent: the tool claims with the capability that you hand to its server …
const originRunId = crypto.randomUUID();
const run = continuations.issue({ originRunId, conversationId: "room:7", replyTo: "room:7" });
const { url, token } = run.capabilities.get("worker") ?? { url: "", token: "" };
const post = (target: string, bearer: string, method: string, body: unknown) =>
  fetch(target, { method, headers: { authorization: `Bearer ${bearer}` }, body: JSON.stringify(body) });
const deadline = new Date(Date.now() + 3_600_000).toISOString();
const claimed = await post(url, token, "POST", { taskKey: "t", taskHash: "h", deadline });
const { resultUrl, token: resultToken } = claimAnswerSchema.parse(await claimed.json());

// … you commit the turn with its snapshot …
await run.release();
const capturedAt = new Date().toISOString();
const turn = {
  conversationId: "room:7",
  originRunId,
  capturedAt,
  history: [],
  userText: "do it",
  assistantText: "accepted",
};
const snapshot = buildSnapshot(turn);
const bound = snapshot && (await run.finalize(snapshot));
if (bound?.ok) await run.activate(bound.value.snapshotDigest);

// … and days later the service submits its result.
await post(resultUrl, resultToken, "PUT", { idempotencyKey: "k", payload: { done: true } });
console.log(await answered.promise);
await continuations.stop();
