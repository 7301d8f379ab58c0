import { expect, test } from "bun:test";
import { bucketOf, currentConversationId, withBucket } from "../../src/core/buckets.ts";

const AT = Date.UTC(2026, 11, 31, 23, 30);

test("the bucket is the day of the time zone", () => {
  expect(bucketOf(AT, "UTC")).toBe("2026-12-31");
  expect(bucketOf(AT, "Europe/Berlin")).toBe("2027-01-01");
  expect(bucketOf(AT, "America/New_York")).toBe("2026-12-31");
  expect(bucketOf(Date.UTC(2026, 0, 2), "UTC")).toBe("2026-01-02");
});

test("an unknown time zone falls back to the system's", () => {
  expect(bucketOf(AT, "Nowhere/Land")).toBe(bucketOf(AT));
});

test("a bucket replaces the one that is there", () => {
  expect(withBucket("slack:C:T", "2026-12-31")).toBe("slack:C:T#2026-12-31");
  expect(withBucket("slack:C:T#2026-01-01", "2026-12-31")).toBe("slack:C:T#2026-12-31");
});

test("only daily rollover puts a bucket into the current conversation", () => {
  const daily = { rollover: "daily", timezone: "UTC" } as const;
  expect(currentConversationId("terminal:main", daily, AT)).toBe("terminal:main#2026-12-31");
  expect(currentConversationId("terminal:main#2026-01-01", { rollover: "none" }, AT)).toBe("terminal:main");
});
