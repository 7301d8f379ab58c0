import { describe, expect, test } from "bun:test";
import { tmpdir } from "node:os";
import { branch } from "../../src/cli/command.ts";
import { type CliIo, processIo } from "../../src/cli/io.ts";
import { runCli } from "../../src/cli/run.ts";
import { tortureCommand } from "../../src/cli/torture.ts";
import { cliRun } from "../support/cli-run.ts";

/** The command over the explorer. What the explorer itself finds is the matter of the other tests here. */

const torture = (...args: string[]) => cliRun(tmpdir(), ["torture", ...args]);

describe("mono-agent torture", () => {
  test("checks as many states as asked, and repeats a seed exactly", async () => {
    const first = await torture("--states", "1500", "--seed", "3", "--json");
    expect([first.code, first.err]).toEqual([0, "seed 3\n"]);
    const { elapsedMs: _first, ...report } = JSON.parse(first.out);
    expect(report.seed).toBe(3);
    expect(report.states).toBeGreaterThanOrEqual(1500);
    expect(report.images).toBeGreaterThan(100);
    const second = await torture("--states", "1500", "--seed", "3", "--json");
    const { elapsedMs: _second, ...repeated } = JSON.parse(second.out);
    expect(repeated).toEqual(report);
  }, 30_000);

  test("tells its figures in words", async () => {
    const { code, out } = await torture("--states", "1", "--seed", "3");
    expect(code).toBe(0);
    expect(out).toMatch(/^\d+ crash states \(\d+ different disks, .*\n/);
    expect(out).toEndWith("\nno state breaks a promise\n");
  });

  test("ends with 1, the seed and a history when a state breaks a promise", async () => {
    let out = "";
    const io: CliIo = {
      ...processIo(),
      out: (text) => {
        out += text;
      },
      err: () => {},
    };
    const refusing = () => {
      throw new Error("planted refusal");
    };
    const root = branch("mono-agent", "", { torture: async () => tortureCommand(io, refusing) });
    expect(await runCli(root, ["torture", "--states", "1", "--seed", "5"], io)).toBe(1);
    expect(out).toContain("older runtime: it refuses to open: planted refusal\nseed 5;");
    expect(out).toContain("to see it again: torture --seed 5 --states 1;");
    expect(out).toContain("  1. open\n  → power cut before operation 1 (");
  });

  test.each([
    ["--states", "0"],
    ["--states", "many"],
    ["--seed", "-1"],
  ])("refuses %s %s", async (flag, value) => {
    const { code, err } = await torture(flag, value);
    expect(code).toBe(2);
    expect(err).toContain(`${flag} must be a whole number from 1`);
  });

  test("takes a part of a minute, and no other kind of number", async () => {
    const { code, out } = await torture("--minutes", "0.0001", "--seed", "3");
    expect([code, out]).toEqual([0, expect.stringContaining("no state breaks a promise")]);
    for (const minutes of ["0", "0.0", "-1", "1e3", "soon", "Infinity", "1,5"]) {
      const refused = await torture("--minutes", minutes);
      expect([refused.code, refused.err]).toEqual([
        2,
        expect.stringContaining("--minutes must be a number above 0"),
      ]);
    }
  });
});
