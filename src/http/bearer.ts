import { ok, type Result, refuse } from "../core/errors.ts";
import { TOKEN_MAX_CHARS } from "../core/limits.ts";

const BEARER = new RegExp(`^bearer +([\\x21-\\x7e]{1,${TOKEN_MAX_CHARS}})$`, "i");

/**
 * The token of `Authorization: Bearer <token>` (scheme in any case, 1 to 512 visible ASCII characters). Without the
 * header 401 `missing_capability`, with any other content 401 `invalid_capability`.
 */
export function bearerToken(headers: Headers): Result<string> {
  const value = headers.get("authorization");
  if (value === null) return refuse("missing_capability", "an Authorization: Bearer token is needed");
  const token = BEARER.exec(value)?.[1];
  if (token === undefined) {
    return refuse("invalid_capability", "the Authorization header must be Bearer and one token");
  }
  return ok(token);
}
