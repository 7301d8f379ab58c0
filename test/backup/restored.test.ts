import { afterEach, beforeEach, expect, test } from "bun:test";
import { holdRestored, readRestored, restoredSteps } from "../../src/host/restored.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createFakeClock } from "../support/fake-clock.ts";
import { silentLogger } from "../support/silent-logger.ts";
import {
  AT,
  admission,
  completeTurn,
  createLedgerFolder,
  type LedgerFolder,
} from "../support/turns-fixture.ts";

/** The mark of a restored state, and what its first start does with the turns of the backup. */

const fs = createFileSystem();
let folder: LedgerFolder;

beforeEach(() => {
  folder = createLedgerFolder();
});
afterEach(() => folder.remove());

const MARK = {
  schemaVersion: 1,
  complete: true,
  restoredAt: AT,
  backupCreatedAt: AT,
  turnsEnded: false,
  held: ["a", "b"],
} as const;

test("turns that were unfinished in the backup are ended visibly, once; later ones are not touched", async () => {
  const turns = await folder.open();
  await completeTurn(turns, "done", "answer");
  await turns.admit(admission("queued"));
  await turns.admit(admission("running"));
  await turns.startRun("running", "run-running", AT);
  fs.runSync(restoredSteps(folder.dir, { ...MARK, held: [...MARK.held] }));
  const start = async () => {
    const restored = readRestored(fs, folder.dir);
    if (restored === undefined) throw new Error("no mark");
    const clock = createFakeClock();
    return holdRestored({ fs, clock, logger: silentLogger, turns, hostDir: folder.dir, restored });
  };
  const hold = await start();
  expect(hold.held).toEqual(["a", "b"]);
  for (const id of ["queued", "running"]) {
    const turn = await turns.getTurn(id);
    expect([turn?.status, turn?.failure?.code]).toEqual(["failed", "restored_from_backup"]);
  }
  expect((await turns.getTurn("done"))?.status).toBe("succeeded");
  expect((await turns.tail("terminal:a", 10)).filter((row) => row.role === "notice").length).toBe(2);

  await turns.admit(admission("later"));
  const again = await start();
  expect((await turns.getTurn("later"))?.status).toBe("queued");
  await again.keep(["b"]);
  expect(readRestored(fs, folder.dir)?.held).toEqual(["b"]);
  await again.keep([]);
  expect(readRestored(fs, folder.dir)).toBeUndefined();
  await turns.close();
});
