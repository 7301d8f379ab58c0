import { expect, test } from "bun:test";
import { hostAndPort } from "../../src/core/address.ts";

test.each([
  ["127.0.0.1", "127.0.0.1:8787"],
  ["localhost", "localhost:8787"],
  ["::1", "[::1]:8787"],
])("the host %s is written %s with its port, as a URL has it", (host, written) => {
  expect(hostAndPort({ host, port: 8787 })).toBe(written);
  expect(new URL(`http://${written}/x`).host).toBe(written);
});
