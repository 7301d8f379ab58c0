/** A line longer than this is cut; the rest of it is dropped up to its end. */
const LINE_MAX_CHARS = 500;
/** How much of a line is kept before it is redacted and cut, so that a secret at the cut is seen whole. */
const LINE_BUFFER_CHARS = 16 * 1024;
/** Shorter values would hide ordinary words. */
const SECRET_MIN_CHARS = 8;
const SECRET_NAME = /key|token|secret|passw|credential|auth/i;

/** A filter that replaces each secret in a text by `[redacted]`. */
export type Redact = (text: string) => string;

export function redactor(secrets: readonly string[]): Redact {
  const long = [...new Set(secrets)]
    .filter((secret) => secret.length >= SECRET_MIN_CHARS)
    .sort((a, b) => b.length - a.length);
  return (text) => long.reduce((rest, secret) => rest.replaceAll(secret, "[redacted]"), text);
}

/** The values of a child's environment that must not be logged: those configured for it, and those named like a secret. */
export function environmentSecrets(
  env: Readonly<Record<string, string>>,
  configured: Readonly<Record<string, string>>,
): string[] {
  const named = Object.entries(env).filter(([name]) => SECRET_NAME.test(name));
  return [...named.map(([, value]) => value), ...Object.values(configured)];
}

/** The values of the environment that stand in the arguments, whatever the variable is called. */
export function argumentSecrets(
  args: readonly string[],
  env: Readonly<Record<string, string | undefined>>,
): string[] {
  return Object.values(env).filter(
    (value): value is string =>
      value !== undefined && value !== "" && args.some((arg) => arg.includes(value)),
  );
}

/** The values of configured headers, and what follows the scheme in them (`Bearer …`). */
export function headerSecrets(headers: Readonly<Record<string, string>>): string[] {
  return Object.values(headers).flatMap((value) => [value, value.slice(value.indexOf(" ") + 1)]);
}

/**
 * Cuts a child's standard error into bounded, redacted lines. `write` takes decoded text as it arrives, `end` gives
 * what is left without a newline. Memory is bounded by one line buffer.
 */
export function stderrLines(redact: Redact, emit: (line: string) => void) {
  let line = "";
  const flush = () => {
    const clean = redact(line).trimEnd();
    line = "";
    if (clean !== "") emit(clean.length > LINE_MAX_CHARS ? `${clean.slice(0, LINE_MAX_CHARS)}…` : clean);
  };
  return {
    write(text: string) {
      const pieces = text.split("\n");
      for (const [index, piece] of pieces.entries()) {
        if (index > 0) flush();
        line += piece.slice(0, LINE_BUFFER_CHARS - line.length);
      }
    },
    end: flush,
  };
}
