import { expect, test } from "bun:test";
import { watchHeap } from "../../src/host/heap-watch.ts";
import { createFakeClock } from "../support/fake-clock.ts";

test("a collection is asked for when the heap has grown by half since it was smallest, and not again at once", () => {
  const clock = createFakeClock(0);
  const sizes = [100, 90, 130, 136, 200, 140, 209, 211, 50];
  const asked: number[] = [];
  let looks = 0;
  const watch = watchHeap({
    clock,
    size: () => sizes[looks++] ?? 0,
    collect: () => void asked.push(looks),
  });
  for (let second = 0; second < sizes.length; second += 1) clock.advance(1_000);
  // 136 is more than one and a half times 90; 200 is the first look after that; 211 is more than that of 140.
  expect(asked).toEqual([4, 8]);
  watch.stop();
  expect(clock.pending()).toBe(0);
  clock.advance(10_000);
  expect(looks).toBe(sizes.length);
});
