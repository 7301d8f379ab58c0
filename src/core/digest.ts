import { createHash, createHmac, hash, timingSafeEqual } from "node:crypto";

/** Lower-case hex SHA-256. */
export function sha256Hex(data: string | Uint8Array): string {
  return hash("sha256", data, "hex");
}

/** Lower-case hex SHA-256 of what comes in pieces. */
export function sha256Stream(): { update(data: Uint8Array): void; hex(): string } {
  const digest = createHash("sha256");
  return { update: (data) => void digest.update(data), hex: () => digest.digest("hex") };
}

/** SHA-256 over parts joined by NUL, the domain-separated form of store-format.md §3. */
export function sha256Joined(...parts: string[]): string {
  return sha256Hex(parts.join("\0"));
}

export function hmacHex(secret: Uint8Array, data: string): string {
  return createHmac("sha256", secret).update(data).digest("hex");
}

export function hmacBase64url(secret: Uint8Array, data: string): string {
  return createHmac("sha256", secret).update(data).digest("base64url");
}

/** Compares two hex digests in constant time; digests of unequal length are unequal. */
export function equalDigests(a: string, b: string): boolean {
  const left = Buffer.from(a, "utf8");
  const right = Buffer.from(b, "utf8");
  return left.length === right.length && timingSafeEqual(left, right);
}

/** Compares two bearer tokens in constant time, by their digests, so that length does not leak either. */
export function equalTokens(a: string, b: string): boolean {
  return equalDigests(sha256Hex(a), sha256Hex(b));
}
