import { expect, test } from "bun:test";
import { openLiveEvents } from "../../src/http/live-events.ts";
import { createFakeClock } from "../support/fake-clock.ts";

function openStream() {
  const clock = createFakeClock();
  const counts = { closed: 0, unsubscribed: 0 };
  let announce = (_event: number) => {};
  const stream = openLiveEvents<number>(
    (listener) => {
      announce = listener;
      return () => {
        counts.unsubscribed += 1;
      };
    },
    clock,
    () => {
      counts.closed += 1;
    },
  );
  const { body } = stream.response;
  if (body === null) throw new Error("an event stream has a body");
  const reader = body.getReader();
  const read = async () => {
    const { value, done } = await reader.read();
    return done ? "end" : new TextDecoder().decode(value);
  };
  return { clock, counts, stream, read, announce: (event: number) => announce(event) };
}

test("a stream greets, sends what happens and gives a sign of life in between", async () => {
  const { clock, read, announce } = openStream();
  expect(await read()).toBe(": connected\n\n");
  announce(1);
  announce(2);
  expect(await read()).toBe("data: 1\n\ndata: 2\n\n");
  const quiet = read();
  clock.advance(15_000);
  expect(await quiet).toBe(": still here\n\n");
});

test("a reader that is too slow is told how much it lost", async () => {
  const { read, announce } = openStream();
  await read();
  for (let event = 0; event < 1_003; event += 1) announce(event);
  const text = await read();
  expect(text.match(/^data: \d+$/gm)).toHaveLength(1_001);
  expect(text).toEndWith("data: 999\n\nevent: lost\ndata: 3\n\n");
});

test("a stream that is closed while it is read ends at once", async () => {
  const { counts, stream, read } = openStream();
  await read();
  const waiting = read();
  stream.close();
  expect(await waiting).toBe("end");
  expect(counts).toEqual({ closed: 1, unsubscribed: 1 });
});

test("a stream that is closed between two reads ends at the next, without a wait", async () => {
  const { clock, counts, stream, read } = openStream();
  await read();
  stream.close();
  stream.close();
  expect(await read()).toBe("end");
  expect(clock.pending()).toBe(0);
  expect(counts).toEqual({ closed: 1, unsubscribed: 1 });
});
