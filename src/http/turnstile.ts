/**
 * Lets few pass in one turn of the event loop, in the order in which they came. A crowd of writes that arrives, or is
 * answered, at once would otherwise be one long turn, and a read or a refusal that needs no disk would wait behind all
 * of it.
 */
export interface Turnstile {
  /** Resolves when the caller may go on; undefined when that is now. */
  pass(): Promise<void> | undefined;
}

/** How many writes are decided or answered in one turn: about a millisecond of work. With 8, batches are smaller and 10 % slower. */
const PER_TURN = 16;

/** `nextTurn` calls back once, in the next turn of the event loop. */
export function createTurnstile(
  nextTurn: (act: () => void) => void = (act) => void setImmediate(act),
  perTurn: number = PER_TURN,
): Turnstile {
  const waiting: (() => void)[] = [];
  let passed = 0;

  function countOne(): void {
    passed += 1;
    if (passed === 1) nextTurn(turn);
  }

  function turn(): void {
    passed = 0;
    for (const go of waiting.splice(0, perTurn)) {
      countOne();
      go();
    }
  }

  return {
    pass() {
      if (passed < perTurn && waiting.length === 0) {
        countOne();
        return undefined;
      }
      return new Promise((resolve) => waiting.push(resolve));
    },
  };
}
