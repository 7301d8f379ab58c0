/** One measurement. Times in milliseconds; what was not measured is absent. */
export interface Row {
  readonly n?: number;
  readonly c: number;
  readonly what: string;
  readonly perSecond?: number;
  readonly p50: number;
  readonly p99: number;
  readonly max?: number;
  /** Operations in the second half of the time for each one in the first: below 1 when a backlog grows. */
  readonly laterHalf?: number;
  readonly fsyncsPerOp?: number;
  readonly renamesPerOp?: number;
  readonly bytesPerOp?: number;
  readonly peakResidentMb?: number;
  /** Processor time of the server for one operation, all threads, in microseconds. */
  readonly cpuUsPerOp?: number;
  readonly stallMs?: number;
}

export interface Facts {
  readonly n: number;
  readonly startMs: number;
  readonly idleResidentMb: number;
  /** Cores. */
  readonly idleCpu: number;
  readonly bytesPerTombstone: number;
}

const COLUMNS: [key: Exclude<keyof Row, "n" | "c" | "what">, title: string, digits: number][] = [
  ["perSecond", "ops/s", 0],
  ["p50", "p50 ms", 2],
  ["p99", "p99 ms", 2],
  ["max", "max ms", 1],
  ["laterHalf", "2nd/1st", 2],
  ["fsyncsPerOp", "fsync/op", 2],
  ["renamesPerOp", "renam/op", 2],
  ["bytesPerOp", "bytes/op", 0],
  ["peakResidentMb", "rss MB", 0],
  ["cpuUsPerOp", "cpu µs/op", 0],
  ["stallMs", "stall ms", 1],
];

/** Prints each row as it comes: a table, or one JSON object a line. */
export function tablePrinter(json: boolean): { row(row: Row): void; facts(facts: Facts): void } {
  if (json) {
    return {
      row: (row) => console.log(JSON.stringify(row)),
      facts: (facts) => console.log(JSON.stringify({ what: "start", ...facts })),
    };
  }
  const left = (n: string, c: string, what: string) => `${n.padStart(6)} ${c.padStart(4)} ${what.padEnd(24)}`;
  console.log(left("N", "c", "") + COLUMNS.map(([, title]) => title.padStart(10)).join(""));
  return {
    row: (row) =>
      console.log(
        left(String(row.n ?? ""), String(row.c), row.what) +
          COLUMNS.map(([key, , digits]) => (row[key]?.toFixed(digits) ?? "").padStart(10)).join(""),
      ),
    facts: ({ n, startMs, idleResidentMb, idleCpu, bytesPerTombstone }) =>
      console.log(
        `${left(String(n), "", "start")} ${startMs.toFixed(0)} ms to healthy; idle ${idleResidentMb.toFixed(0)} MB, ` +
          `${(idleCpu * 100).toFixed(2)} % of a core; ${bytesPerTombstone.toFixed(0)} bytes a tombstone`,
      ),
  };
}
