import { expect, test } from "bun:test";
import { chmodSync, statSync } from "node:fs";
import { join } from "node:path";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { checkContinuationStore } from "../../src/store/check.ts";
import { createRecordingLogger } from "../support/silent-logger.ts";
import { openStore, withFolder } from "../support/store-harness.ts";

test("opening repairs loose folders and logs each; the check names them and repairs nothing", () =>
  withFolder(async (stateDir) => {
    const fs = createFileSystem();
    await (await openStore({ fs, stateDir })).close();
    const loose = [stateDir, join(stateDir, "records-v3")];
    for (const path of loose) chmodSync(path, 0o755);

    expect(checkContinuationStore({ fs, stateDir })).toMatchObject({ findings: [], looseFolders: loose });
    expect(loose.map((path) => statSync(path).mode & 0o777)).toEqual([0o755, 0o755]);

    const logger = createRecordingLogger();
    await (await openStore({ fs, stateDir, logger })).close();
    expect(logger.lines).toEqual(
      loose.map((path) => `warn a folder did not have mode 0700; it is repaired ${JSON.stringify({ path })}`),
    );
    expect(loose.map((path) => statSync(path).mode & 0o777)).toEqual([0o700, 0o700]);
    expect(checkContinuationStore({ fs, stateDir }).looseFolders).toEqual([]);
  }));
