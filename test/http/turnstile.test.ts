import { describe, expect, test } from "bun:test";
import { createTurnstile } from "../../src/http/turnstile.ts";

describe("the turnstile", () => {
  function setup(perTurn: number) {
    const turns: (() => void)[] = [];
    const turnstile = createTurnstile((act) => turns.push(act), perTurn);
    const passed: string[] = [];
    const come = (name: string) => {
      const turn = turnstile.pass();
      if (turn === undefined) passed.push(name);
      else void turn.then(() => passed.push(name));
    };
    const nextTurn = async () => {
      for (const act of turns.splice(0)) act();
      await Promise.resolve();
      await Promise.resolve();
    };
    return { come, nextTurn, passed, turns };
  }

  test("lets the first ones of a turn pass at once and the others later, in their order", async () => {
    const { come, nextTurn, passed } = setup(2);
    for (const name of ["a", "b", "c", "d", "e"]) come(name);
    expect(passed).toEqual(["a", "b"]);
    await nextTurn();
    expect(passed).toEqual(["a", "b", "c", "d"]);
    // Who comes now waits behind those who were there before.
    come("f");
    expect(passed).toEqual(["a", "b", "c", "d"]);
    await nextTurn();
    expect(passed).toEqual(["a", "b", "c", "d", "e", "f"]);
  });

  test("asks for no turn when nobody passes", async () => {
    const { come, nextTurn, turns, passed } = setup(2);
    come("a");
    expect(turns).toHaveLength(1);
    await nextTurn();
    expect(turns).toHaveLength(0);
    for (const name of ["b", "c"]) come(name);
    expect(turns).toHaveLength(1);
    expect(passed).toEqual(["a", "b", "c"]);
  });
});
