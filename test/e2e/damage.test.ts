import { afterEach, describe, expect, test } from "bun:test";
import {
  chmodSync,
  chownSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { fileJson } from "../../src/core/json.ts";
import { recordFileName } from "../../src/core/record.ts";
import { type AgentFolder, agentFolder, until } from "../support/binary.ts";
import { tree, writeFullDirectory } from "../support/store-directory.ts";
import { claim } from "../support/store-harness.ts";

/**
 * `doctor` of the binary over a state directory with every file damaged in the same way, while no host runs and while one
 * does: it names each file, what depends on it and what to do, in good time, and writes nothing.
 */

let folder: AgentFolder;
afterEach(() => folder.remove());

/** Far more than one run needs. */
const MOST_MS = 10_000;

const isRoot = process.getuid?.() === 0;
const content = (make: (text: string) => string | Uint8Array) => (file: string) =>
  writeFileSync(file, make(readFileSync(file, "utf8")));
const added = (members: string) => content((text) => `${text.trimEnd().slice(0, -1)},${members}}\n`);

/** How a file is damaged, and the words by which that is told of a JSON file. */
const DAMAGES: Record<string, { spoil: (file: string) => void; says: string }> = {
  "a symlink": {
    spoil(file) {
      const outside = join(folder.path, `outside-${Bun.hash(file)}`);
      renameSync(file, outside);
      symlinkSync(outside, file);
    },
    says: "symlink",
  },
  "a second hard link": {
    spoil: (file) => linkSync(file, join(folder.path, `outside-${Bun.hash(file)}`)),
    says: "exactly one hard link",
  },
  ...(isRoot
    ? {
        "another owner": { spoil: (file: string) => chownSync(file, 12_345, 12_345), says: "must belong to" },
      }
    : {}),
  "a loose mode": { spoil: (file) => chmodSync(file, 0o644), says: "mode is 0644" },
  "a pipe": {
    spoil(file) {
      rmSync(file);
      Bun.spawnSync(["mkfifo", "-m", "600", file]);
    },
    says: "device, socket or pipe",
  },
  "a folder": {
    spoil(file) {
      rmSync(file);
      mkdirSync(file, { mode: 0o700 });
    },
    says: "directory",
  },
  "twenty MiB": { spoil: (file) => truncateSync(file, 20 * 2 ** 20), says: "must be at most" },
  "half of itself": {
    spoil: (file) => truncateSync(file, readFileSync(file).length >> 1),
    says: "not valid JSON",
  },
  "bytes that are no UTF-8": {
    spoil: content(() => Uint8Array.of(0x22, 0xff, 0x22)),
    says: "not valid UTF-8",
  },
  "deep JSON": {
    spoil: content(() => `${"[".repeat(30_000)}${"]".repeat(30_000)}`),
    says: "",
  },
  "a key that stands twice": {
    spoil: added('"schemaVersion":"x","state":"claimed","state":"nonsense"'),
    says: "is invalid at",
  },
  "a huge number": {
    spoil: added('"schemaVersion":1e999,"synthesisAttempts":1e999'),
    says: "is invalid at",
  },
};

const FIXED_TEXTS = ["continuation-secret", "UPGRADED-TO-RECORDS-V3"];

async function fullFolder(): Promise<Record<string, string>> {
  folder = agentFolder({ tools: {} });
  const stateDir = join(folder.path, ".mono-agent/continuations");
  mkdirSync(join(folder.path, ".mono-agent"), { mode: 0o700 });
  const { files } = await writeFullDirectory(stateDir);
  // It has not expired when a host starts, so that it stays in its own file.
  const record = join(stateDir, "records-v3", recordFileName("alive"));
  const alive = claim("alive", {
    deadline: "2999-01-01T00:00:00.000Z",
    originContextState: "detached_latest",
  });
  delete alive.historyBoundary;
  writeFileSync(record, fileJson(alive), { mode: 0o600 });
  const { "owner database": owner, blob, ...rest } = files;
  return { ...rest, record, blob, owner };
}

/** Runs doctor and checks what it says of each of these files; nothing may have changed but what a host changes. */
async function examined(
  files: readonly string[],
  says: string,
  of: (path: string) => boolean,
): Promise<void> {
  const state = join(folder.path, ".mono-agent");
  const before = unchanged(tree(state, { owner: true }), of);
  const startMs = performance.now();
  const { code, out, err } = await folder.run(["doctor", "--json"]);
  expect(performance.now() - startMs).toBeLessThan(MOST_MS);
  expect(unchanged(tree(state, { owner: true }), of)).toEqual(before);
  expect([code, err]).toEqual([1, ""]);
  const { sections } = JSON.parse(out) as { sections: { id: string; details: string[] }[] };
  const details = sections.find(({ id }) => id === "continuations")?.details ?? [];
  for (const file of files) {
    const told = details.filter((line) => line.startsWith(file));
    expect([file, told.length]).toEqual([file, 1]);
    expect(told[0]).toMatch(/ \(.+; (the next start is refused|harms [^)]+)\); .{15,}/);
    const plain = FIXED_TEXTS.some((name) => file.endsWith(name)) || /sqlite$|origin-context-v1/.test(file);
    if (!plain) expect(told[0]).toContain(says);
  }
}

function unchanged(found: Record<string, string>, of: (path: string) => boolean): Record<string, string> {
  return Object.fromEntries(Object.entries(found).filter(([path]) => of(path)));
}

describe("doctor of the binary", () => {
  for (const [what, { spoil, says }] of Object.entries(DAMAGES)) {
    test(`names every file that became ${what}, without a host`, async () => {
      const files = await fullFolder();
      // It is empty as a rule, so half of it is the same.
      const spoilt = Object.values(files).filter(
        (file) => !(file.endsWith(".sqlite") && what === "half of itself"),
      );
      for (const file of spoilt) spoil(file);
      // Without a record that can be read, nobody refers to the snapshot.
      await examined(
        spoilt.filter((file) => file !== files.blob),
        says,
        () => true,
      );
    }, 30_000);

    test(`names every file that became ${what}, beside a host`, async () => {
      const files = await fullFolder();
      const host = await folder.serve();
      const { secret = "", guard = "", record = "", blob = "" } = files;
      // What it found without a run is abandoned, its snapshot dropped, and in the end the spare of the transaction too.
      const spare = (name: string) => name.endsWith(".tmp");
      await until(
        "the host to have written what a start writes",
        async () => !existsSync(blob) && !readdirSync(dirname(secret)).some(spare),
      );
      const spoilt = [secret, guard, record].filter((file) => existsSync(file));
      expect(spoilt.length).toBe(3);
      for (const file of spoilt) spoil(file);
      // The manifest is the host's own report, written at any time.
      await examined(
        spoilt,
        says,
        (path) => !/continuation-store-v3|^\.$|host\.sqlite|continuations-owner/.test(path),
      );
      await host.kill();
    }, 30_000);
  }

  test("tells of a damaged snapshot whose answers it harms, and that everything else goes on", async () => {
    const { blob = "" } = await fullFolder();
    writeFileSync(blob, "{}");
    const { code, out } = await folder.run(["doctor"]);
    expect(code).toBe(0);
    expect(out).toContain(
      `${blob}: the origin snapshot is corrupt (it holds the origin context; harms m-1, m-2);`,
    );
  });
});
