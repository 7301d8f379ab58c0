import { describe, expect, test } from "bun:test";
import {
  chmodSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { fileJson } from "../../src/core/json.ts";
import { RECORD_MAX_BYTES, retentionSchema } from "../../src/core/limits.ts";
import type { FileSystem } from "../../src/core/ports/platform.ts";
import { recordFileName } from "../../src/core/record.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { MONOLITH_MAX_BYTES } from "../../src/store/migrate/monolith.ts";
import { planMigration } from "../../src/store/migrate/plan.ts";
// @ts-expect-error: plain JavaScript beside the fixtures, used as it is
import { writeNearLimit } from "../fixtures/gen-v2-near-limit.mjs";
// @ts-expect-error: plain JavaScript beside the fixtures, used as it is
import { materialize } from "../fixtures/materialize.mjs";
import { NOW, NOW_MS } from "../support/records.ts";
import { openReal, refusalOf, tree } from "../support/store-directory.ts";
import { withFolder } from "../support/store-harness.ts";

/** Older state that must not be converted: refused before the guard, naming the cause, and not one byte changes. */

const MONOLITH = "continuations-v1.json";
const TRANSACTION = "continuation-transaction-v2.json";
const GUARD = "records-v2/UPGRADED-TO-RECORDS-V3";
const MARKERS = "origin-context-groups-v1";
/** Ids of the fixtures v1/with-v2-agreeing and v2/interrupted-transaction. */
const OPEN_REPLY = "f6e88683-168d-4e2c-a8db-1fb3786fea23";

interface Case {
  readonly fixture: string;
  /** Makes it hostile. Returns what the refusal must contain. */
  readonly spoil: (at: (name: string) => string, outside: string) => string;
}

const write = (path: string, text: string) => writeFileSync(path, text, { mode: 0o600 });
const edit = (path: string, change: (text: string) => string) =>
  write(path, change(readFileSync(path, "utf8")));
// biome-ignore lint/suspicious/noExplicitAny: files of any shape, spoilt on purpose
const editJson = (path: string, change: (value: any) => void) =>
  edit(path, (text) => {
    const value = JSON.parse(text);
    change(value);
    return fileJson(value);
  });
const firstV2 = (at: (name: string) => string) => `records-v2/${readdirSync(at("records-v2")).sort()[0]}`;
const monolith = (spoil: (path: string, outside: string) => void, says: string = MONOLITH): Case => ({
  fixture: "v1/with-v2-agreeing",
  spoil(at, outside) {
    spoil(at(MONOLITH), outside);
    return says;
  },
});
const transaction = (
  change: (value: { schemaVersion: number; writes: object[]; deletes: string[] }) => void,
) => ({
  fixture: "v2/interrupted-transaction",
  spoil(at: (name: string) => string) {
    editJson(at(TRANSACTION), change);
    return TRANSACTION;
  },
});
const v2Record = (spoil: (path: string) => void): Case => ({
  fixture: "v2/all-states",
  spoil(at) {
    const name = firstV2(at);
    spoil(at(name));
    return name;
  },
});
const markerTemporary = (make: (path: string, outside: string) => void): Case => ({
  fixture: "v2/all-states",
  spoil(at, outside) {
    mkdirSync(at(MARKERS), { mode: 0o700 });
    make(at(`${MARKERS}/.x.tmp`), outside);
    return `${MARKERS}/.x.tmp`;
  },
});
const guard = (make: (path: string, outside: string) => void): Case => ({
  fixture: "v2/migration-crash-guard",
  spoil(at, outside) {
    make(at(GUARD), outside);
    return GUARD;
  },
});

const CASES: Record<string, Case> = {
  "a symlinked monolith": monolith((path, outside) => {
    renameSync(path, outside);
    symlinkSync(outside, path);
  }),
  "a hard-linked monolith": monolith((path, outside) => linkSync(path, outside)),
  "a monolith that others may read": monolith((path) => chmodSync(path, 0o644)),
  "a monolith that is a folder": monolith((path) => {
    rmSync(path);
    mkdirSync(path);
  }),
  "a monolith that is a pipe": monolith((path) => {
    rmSync(path);
    Bun.spawnSync(["mkfifo", "-m", "600", path]);
  }),
  "a monolith of 256 MiB and a byte": monolith(
    (path) => truncateSync(path, MONOLITH_MAX_BYTES + 1),
    `must be at most ${MONOLITH_MAX_BYTES} bytes`,
  ),
  "an empty monolith": monolith((path) => truncateSync(path, 0)),
  "a monolith cut off": monolith((path) => truncateSync(path, statSync(path).size - 20)),
  "a monolith with something after it": monolith((path) => edit(path, (text) => `${text}{}`)),
  "a monolith of another version": monolith((path) =>
    editJson(path, (value) => {
      value.schemaVersion = 4;
    }),
  ),
  "a monolith without a version": monolith((path) =>
    editJson(path, (value) => {
      delete value.schemaVersion;
    }),
  ),
  "a monolith without records": monolith((path) => write(path, '{"schemaVersion": 1}')),
  "a monolith whose records are a list": monolith((path) =>
    write(path, '{"schemaVersion": 1, "records": []}'),
  ),
  "a monolith with records twice": monolith((path) =>
    write(path, '{"schemaVersion": 1, "records": {}, "records": {}}'),
  ),
  "a monolith that names an id twice": monolith((path) => {
    const { records } = JSON.parse(readFileSync(path, "utf8"));
    const record = `"${OPEN_REPLY}": ${JSON.stringify(records[OPEN_REPLY])}`;
    write(path, `{"schemaVersion": 1, "records": {${record}, ${record}}}`);
  }, OPEN_REPLY),
  "a monolith with a record under another id": monolith(
    (path) =>
      editJson(path, ({ records }) => {
        records.other = records[OPEN_REPLY];
        delete records[OPEN_REPLY];
      }),
    MONOLITH,
  ),
  "a monolith with syntax that only one record breaks": monolith(
    (path) => edit(path, (text) => text.replace('"synthesisAttempts": 0', '"synthesisAttempts": 00')),
    "in continuation ",
  ),
  "a monolith that is not UTF-8": monolith((path) => {
    const data = readFileSync(path);
    data[data.indexOf("task open-reply")] = 0xff;
    writeFileSync(path, data);
  }, OPEN_REPLY),
  "a record that differs in records-v3": {
    fixture: "v1/with-v2-agreeing",
    spoil(at) {
      const record = JSON.parse(readFileSync(at(`records-v2/${recordFileName(OPEN_REPLY)}`), "utf8"));
      mkdirSync(at("records-v3"), { mode: 0o700 });
      write(
        at(`records-v3/${recordFileName(OPEN_REPLY)}`),
        fileJson({ ...record, originContextState: "legacy_missing", synthesisDeferrals: 1 }),
      );
      return OPEN_REPLY;
    },
  },
  "a v2 record that is no JSON": v2Record((path) => truncateSync(path, 100)),
  "a v2 record of an unknown state": v2Record((path) =>
    editJson(path, (value) => {
      value.state = "waiting";
    }),
  ),
  "a v2 record with a hard link": v2Record((path) => linkSync(path, `${path}.outside.json`)),
  "a v2 record under another name": {
    fixture: "v2/all-states",
    spoil(at) {
      const name = `records-v2/${"0".repeat(64)}.json`;
      renameSync(at(firstV2(at)), at(name));
      return name;
    },
  },
  "another name in records-v2": {
    fixture: "v2/all-states",
    spoil(at) {
      write(at("records-v2/notes.txt"), "");
      return "records-v2/notes.txt";
    },
  },
  "records-v2 that is a symlink": {
    fixture: "v2/all-states",
    spoil(at, outside) {
      renameSync(at("records-v2"), outside);
      symlinkSync(outside, at("records-v2"));
      return "records-v2";
    },
  },
  "a v2 manifest of another version": {
    fixture: "v2/all-states",
    spoil(at) {
      editJson(at("continuation-store-v2.json"), (value) => {
        value.schemaVersion = 5;
      });
      return "continuation-store-v2.json";
    },
  },
  "a v2 transaction of another version": transaction((value) => {
    value.schemaVersion = 3;
  }),
  "a v2 transaction that writes an id twice": transaction((value) => value.writes.push(...value.writes)),
  "a v2 transaction that writes and deletes an id": transaction((value) => value.deletes.push(OPEN_REPLY)),
  "a v2 transaction with half a record": transaction((value) =>
    value.writes.push({ continuationId: "half" }),
  ),
  "a v2 record that passes 2 MiB only when normalised": {
    fixture: "",
    spoil: (at) => writeNearLimit(at(""), "overflow").id,
  },
  "a tombstone that retention would make too large": {
    fixture: "",
    spoil(at) {
      const { id } = writeNearLimit(at(""), "exact");
      const path = at(`records-v2/${recordFileName(id)}`);
      editJson(path, (value) => {
        value.state = "cancelled";
        value.filler = "";
        delete value.resultPayload;
        const now = { ...value, originContextState: "legacy_missing", synthesisDeferrals: 0 };
        value.filler = "x".repeat(RECORD_MAX_BYTES - Buffer.byteLength(fileJson(now)));
      });
      return id;
    },
  },
  "a marker temporary that is a symlink": markerTemporary((path) => symlinkSync("nowhere", path)),
  "a marker temporary that is a folder": markerTemporary((path) => mkdirSync(path)),
  "a marker temporary with a second name": markerTemporary((path, outside) => {
    write(outside, "");
    linkSync(outside, path);
  }),
  "older records without a secret": {
    fixture: "v2/all-states",
    spoil(at) {
      rmSync(at("continuation-secret"));
      return "continuation-secret";
    },
  },
  "a guard with another content": guard((path) => edit(path, (text) => `${text} `)),
  "an empty guard": guard((path) => truncateSync(path, 0)),
  "a guard that the manifest requires and that is missing": {
    fixture: "v3/guard-missing",
    spoil: () => GUARD,
  },
  "a guard that the manifest requires and that is altered": {
    fixture: "v2/migrated",
    spoil(at) {
      edit(at(GUARD), (text) => `${text} `);
      return GUARD;
    },
  },
  "records of the present format without a secret": {
    fixture: "v3/all-states",
    spoil(at) {
      rmSync(at("continuation-secret"));
      return "continuation-secret";
    },
  },
  "a transaction of the present format that only deletes, without a secret": {
    fixture: "v3/fresh-empty",
    spoil(at) {
      rmSync(at("continuation-secret"));
      const frame = { schemaVersion: 3, generation: "g", createdAt: NOW, writes: [], deletes: ["gone"] };
      write(at("continuation-transaction-v3.json"), fileJson(frame));
      return "continuation-secret";
    },
  },
  "a marker of the present format whose member is missing": {
    fixture: "v3/marker-published",
    spoil(at) {
      const [name = ""] = readdirSync(at(MARKERS));
      editJson(at(`${MARKERS}/${name}`), (marker) => {
        marker.memberCount = 3;
      });
      return name;
    },
  },
  "a member of a group that activation would make too large": {
    fixture: "v3/marker-published",
    spoil(at) {
      const members = readdirSync(at("records-v3")).map((name) => at(`records-v3/${name}`));
      const path = members.find((name) => {
        const { originRunId, state } = JSON.parse(readFileSync(name, "utf8"));
        return originRunId === "run-group" && state === "claimed";
      });
      let id = "";
      editJson(path ?? "", (value) => {
        id = value.continuationId;
        // Activation sets it to one with milliseconds.
        value.updatedAt = "2026-11-20T12:00:00Z";
        delete value.nextAttemptAt;
        delete value.lastError;
        value.filler = "";
        value.filler = "x".repeat(RECORD_MAX_BYTES - Buffer.byteLength(fileJson(value)));
      });
      return id;
    },
  },
  "an ownership database that is none": {
    fixture: "v3/all-states",
    spoil(at) {
      write(at("continuations-owner.sqlite"), "no database");
      return "continuations-owner.sqlite";
    },
  },
  "a guard that is a symlink": guard((path, outside) => {
    renameSync(path, outside);
    symlinkSync(outside, path);
  }),
  "a guard with a second name": guard((path, outside) => linkSync(path, outside)),
};

describe("refused before anything is changed", () => {
  for (const [name, { fixture, spoil }] of Object.entries(CASES)) {
    test(name, () =>
      withFolder(async (folder) => {
        if (fixture !== "") materialize(fixture, folder);
        const says = spoil((entry) => join(folder, entry), `${folder}.outside`);
        const before = tree(folder);
        const plan = planMigration({
          fs: createFileSystem(),
          stateDir: folder,
          retention: retentionSchema.parse({}),
          nowMs: NOW_MS,
        });
        const refused = await refusalOf(openReal(folder));
        expect(refused.message).toContain(says);
        expect(plan.ok).toBe(false);
        expect(plan.refusals.map(({ message }) => message)).toContain(refused.message);
        expect(tree(folder)).toEqual(before);
      }),
    );
  }
});

describe("the monolith is swapped while it is read", () => {
  /** A filesystem on which `act` happens once, at the n-th call of `when` on the monolith. */
  function swapping(when: "open" | "read" | "last stat", act: (path: string) => void): FileSystem {
    const fs = createFileSystem();
    let done = false;
    const once = (path: string) => {
      if (!done) act(path);
      done = true;
    };
    return {
      ...fs,
      open(path, label) {
        if (!path.endsWith(MONOLITH)) return fs.open(path, label);
        if (when === "open") once(path);
        const handle = fs.open(path, label);
        let stats = 0;
        return (
          handle && {
            ...handle,
            read(length) {
              const data = handle.read(length);
              if (when === "read") once(path);
              return data;
            },
            stat() {
              stats += 1;
              if (when === "last stat" && stats === 2) once(path);
              return handle.stat();
            },
          }
        );
      },
    };
  }
  const replace = (path: string) => {
    write(`${path}.new`, readFileSync(path, "utf8"));
    renameSync(`${path}.new`, path);
  };
  const CHANGES: Record<string, (path: string) => void> = {
    "by another file of the same content": replace,
    "by a symlink": (path) => {
      renameSync(path, `${path}.moved`);
      symlinkSync(`${path}.moved`, path);
    },
    "by a longer one in place": (path) => edit(path, (text) => `${text}\n`),
    "by one of the same length in place": (path) => {
      edit(path, (text) => text.replace("task open-reply", "task 0pen-reply"));
      utimesSync(path, 1, 1);
    },
    "and removed": (path) => rmSync(path),
  };
  for (const when of ["open", "read", "last stat"] as const) {
    for (const [how, change] of Object.entries(CHANGES)) {
      test(`${how}, at ${when}`, () =>
        withFolder(async (folder) => {
          materialize("v1/monolith", folder);
          const refused = await refusalOf(openReal(folder, swapping(when, change)));
          expect(refused.message).toContain(MONOLITH);
          expect(existsSync(join(folder, GUARD))).toBe(false);
          expect(existsSync(join(folder, "records-v3"))).toBe(false);
        }));
    }
  }
});
