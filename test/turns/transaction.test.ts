import { expect, test } from "bun:test";
import { transact } from "../../src/turns/transaction.ts";

/** A database whose COMMIT or ROLLBACK fails as told, as a full or dying disk makes them. */
function faultyDatabase(faults: { commit?: boolean; rollback?: boolean; commitEndsTransaction?: boolean }) {
  const log: string[] = [];
  let inside = false;
  return {
    log,
    get inTransaction() {
      return inside;
    },
    exec(sql: string) {
      log.push(sql);
      if (sql.startsWith("BEGIN")) inside = true;
      if (sql === "COMMIT") {
        if (faults.commitEndsTransaction || !faults.commit) inside = false;
        if (faults.commit) throw new Error("disk I/O error");
      }
      if (sql === "ROLLBACK") {
        if (faults.rollback) throw new Error("disk gone");
        inside = false;
      }
    },
  };
}

test("the value of the body comes back after COMMIT", () => {
  const db = faultyDatabase({});
  expect(transact(db, () => 7)).toBe(7);
  expect(db.log).toEqual(["BEGIN IMMEDIATE", "COMMIT"]);
});

test("a throwing body rolls back and its error wins over a failing rollback", () => {
  const db = faultyDatabase({ rollback: true });
  const body = () => {
    throw new Error("no such turn");
  };
  expect(() => transact(db, body)).toThrow("no such turn");
  expect(db.log).toEqual(["BEGIN IMMEDIATE", "ROLLBACK"]);
});

test("a failed COMMIT whose change is found afterwards counts as committed", () => {
  const db = faultyDatabase({ commit: true, commitEndsTransaction: true });
  expect(
    transact(
      db,
      () => "value",
      () => true,
    ),
  ).toBe("value");
});

test("a failed COMMIT whose change is not there throws the fault", () => {
  const db = faultyDatabase({ commit: true });
  expect(() =>
    transact(
      db,
      () => 1,
      () => false,
    ),
  ).toThrow("disk I/O error");
  expect(db.log).toEqual(["BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"]);
  expect(() => transact(faultyDatabase({ commit: true }), () => 1)).toThrow("disk I/O error");
});

test("a commit that can't be read back is in doubt", () => {
  const unreadable = () => {
    throw new Error("disk gone");
  };
  expect(() => transact(faultyDatabase({ commit: true }), () => 1, unreadable)).toThrow(
    expect.objectContaining({ code: "commit_in_doubt" }),
  );
});

test("a transaction that stays open is in doubt, because it would read its own rows", () => {
  const db = faultyDatabase({ commit: true, rollback: true });
  const landed = () => true;
  expect(() => transact(db, () => 1, landed)).toThrow(expect.objectContaining({ code: "commit_in_doubt" }));
});
