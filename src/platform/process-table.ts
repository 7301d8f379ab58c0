import { readdirSync, readFileSync } from "node:fs";

/** What the system tells about its processes. */

/** This user's running processes whose environment has exactly this entry. Empty on systems other than Linux. */
export function processesWithEnvironment(entry: string): { pid: number; group: number }[] {
  if (process.platform !== "linux") return [];
  return readdirSync("/proc")
    .filter((name) => /^[0-9]+$/.test(name))
    .filter((pid) => procFile(pid, "environ")?.split("\0").includes(entry) === true)
    .flatMap((pid) => {
      const group = runningGroup(pid);
      return group === undefined ? [] : [{ pid: Number(pid), group }];
    });
}

/** Whether a process runs. On Linux a dead one whom nobody has reaped does not count. */
export function isRunning(pid: number): boolean {
  if (process.platform === "linux") return runningGroup(String(pid)) !== undefined;
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** The process group of a process that is alive (Linux). */
function runningGroup(pid: string): number | undefined {
  const stat = procFile(pid, "stat");
  // pid (name) state parent group …; the name may hold anything, also parentheses.
  const [state, , group] = stat?.slice(stat.lastIndexOf(")") + 2).split(" ") ?? [];
  return state === undefined || state === "Z" || state === "X" ? undefined : Number(group);
}

/** Sends a signal to a process group; one that is gone is no error. */
export function signalGroup(group: number, signal: "SIGTERM" | "SIGKILL"): void {
  try {
    process.kill(-group, signal);
  } catch {
    // Nobody is left in it.
  }
}

/** A file of /proc; undefined when the process is gone or another user's. */
function procFile(pid: string, name: string): string | undefined {
  try {
    return readFileSync(`/proc/${pid}/${name}`, "utf8");
  } catch {
    return undefined;
  }
}
