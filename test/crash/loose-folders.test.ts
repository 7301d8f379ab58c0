import { expect, test } from "bun:test";
import { createMemoryFileSystem, type MemoryFileSystem } from "../../src/platform/memory-filesystem.ts";
import { createRandom } from "../../src/store/explore/simulated.ts";
import { survivals } from "../../src/store/explore/survivals.ts";
import { readAsOlderRuntime } from "../support/older-runtime-reader.ts";
import { claim, openStore, recordsOf, STATE_DIR } from "../support/store-harness.ts";

/** A mode that an opening repairs may be lost with the power until its folder is synced, which few openings do. */

const PATHS = [
  STATE_DIR,
  ...["records-v3", "origin-context-v1", "origin-context-groups-v1"].map((name) => `${STATE_DIR}/${name}`),
];

test("a power cut while loose folders are repaired, or after it, leaves what the next opening repairs", async () => {
  const fs = createMemoryFileSystem();
  const first = await openStore({ fs, seed: "loose" });
  await first.commit({ puts: [claim("kept")] });
  const expected = recordsOf(first);
  await first.close();
  for (const path of PATHS) {
    fs.runSync([
      { op: "chmod", path, mode: 0o755, label: "loosen" },
      { op: "syncDir", path, label: "loosen" },
    ]);
  }

  const random = createRandom(1);
  const left: MemoryFileSystem[] = [];
  const cut = () => {
    for (const { survival } of survivals(fs.unsynced(), random)) left.push(fs.afterPowerCut(survival));
    return undefined;
  };
  fs.failWhen(cut);
  const second = await openStore({ fs, seed: "loose" });
  await second.close();
  fs.failWhen();
  cut();

  const reached = new Set<string>();
  for (const disk of left) {
    for (const path of PATHS) reached.add(`${path} ${disk.modes()[path]?.toString(8)}`);
    const again = await openStore({ fs: disk, seed: "loose" });
    expect(recordsOf(again)).toEqual(expected);
    expect(PATHS.map((path) => disk.modes()[path])).toEqual(PATHS.map(() => 0o700));
    await again.close();
    expect(Object.fromEntries(readAsOlderRuntime(disk, STATE_DIR))).toEqual(expected);
  }
  const both = PATHS.flatMap((path) => [`${path} 700`, `${path} 755`]);
  expect([...reached].sort()).toEqual(both.sort());
});
