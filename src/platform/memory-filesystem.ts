import { dirname, join } from "node:path";
import type { CrashDisk, DiskOperation, InjectedFault, Survival } from "../core/ports/crash-disk.ts";
import { FileFault, type FileStat, type FileStep, type ReadHandle } from "../core/ports/platform.ts";
import {
  changeMode,
  changeNames,
  type Disk,
  type FileNode,
  type FolderNode,
  memoryDisk,
  type Node,
  newFile,
  newFolder,
  survivor,
  syncFile,
  syncFolder,
  treeDigest,
} from "./memory-disk.ts";

export { memoryDisk };

/**
 * A filesystem in memory that counts what is done to it, fails where a test says, and knows what a power cut may
 * leave. Each step is carried out in the operations that POSIX could interrupt: creating a file, writing its data
 * and syncing it are three.
 *
 * What is not synced is a list: the data of a file until the file is synced, each change of names until its folder is,
 * and a changed mode until its file or folder is. `afterPowerCut` builds the disk that is left when any choice of them survives.
 */

export interface Counts {
  operations: number;
  fsyncs: number;
  renames: number;
  unlinks: number;
  bytes: number;
}

export interface MemoryFileSystem extends CrashDisk {
  readonly counts: Counts;
  /** Every operation so far, in order. */
  readonly trace: readonly DiskOperation[];
  /** Holds each asynchronous step for which `gate` gives a promise, until that resolves; without argument, none. */
  holdWhen(gate?: (step: FileStep) => Promise<void> | undefined): void;
  readonly isOff: boolean;
  /** The power goes just before operation `number` (from 1). */
  cutAt(number: number): void;
  afterPowerCut(survival: "all" | "none" | Survival): MemoryFileSystem;
  takeOver(): MemoryFileSystem;
  /** Path to text of every file, for comparisons. */
  files(): Record<string, string>;
  /** Path to mode of every file and folder. */
  modes(): Record<string, number>;
  /** Puts a file in place, durable, with the folders it needs; not counted. */
  seed(path: string, text: string, mode?: number): void;
  /** Takes a file or folder away, durably; not counted. */
  erase(path: string): void;
}

export function createMemoryFileSystem(disk: Disk = memoryDisk()): MemoryFileSystem {
  const { root, swaps } = disk;
  const counts: Counts = { operations: 0, fsyncs: 0, renames: 0, unlinks: 0, bytes: 0 };
  const trace: DiskOperation[] = [];
  let fault: ((operation: DiskOperation, number: number) => InjectedFault | undefined) | undefined;
  /** How the operation that is under way will fail, once it is done. */
  let late: { readonly operation: DiskOperation; readonly errno: string } | undefined;
  let gate: ((step: FileStep) => Promise<void> | undefined) | undefined;
  let cut = Number.POSITIVE_INFINITY;
  let isOff = false;

  const partsOf = (path: string) => path.split("/").filter((part) => part !== "");

  function find(path: string): Node | undefined {
    let node: Node = root;
    for (const part of partsOf(path)) {
      const next: Node | undefined = node.kind === "directory" ? node.names.get(part) : undefined;
      if (next === undefined) return undefined;
      node = next;
    }
    return node;
  }

  function fail(operation: DiskOperation, errno: string): never {
    throw new FileFault(operation.label, operation.path, errno);
  }

  /** Counts an operation, and stops it when a test wants that. */
  function begin(kind: DiskOperation["kind"], path: string, label: string): DiskOperation {
    const operation = { kind, path, label };
    if (isOff || counts.operations + 1 >= cut) {
      isOff = true;
      fail(operation, "EPOWER");
    }
    counts.operations += 1;
    trace.push(operation);
    const injected = fault?.(operation, counts.operations);
    if (typeof injected === "string") fail(operation, injected);
    late = injected === undefined ? undefined : { operation, errno: injected.errno };
    return operation;
  }

  function end(): void {
    const failure = late;
    late = undefined;
    if (failure !== undefined) fail(failure.operation, failure.errno);
  }

  function folderOf(path: string, operation: DiskOperation): { folder: FolderNode; name: string } {
    const folder = find(dirname(path));
    if (folder?.kind !== "directory") fail(operation, "ENOENT");
    return { folder, name: partsOf(path).at(-1) ?? "" };
  }

  /** The file that a `write` fills: a new one, or with `reuse` the one that is there. */
  function fileToWrite(
    { mode, reuse }: Pick<Extract<FileStep, { op: "write" }>, "mode" | "reuse">,
    folder: FolderNode,
    name: string,
    create: DiskOperation,
  ): FileNode {
    const there = folder.names.get(name);
    if (there === undefined) {
      const file = newFile(mode, new Uint8Array(), counts.operations);
      changeNames(disk, create, folder, [[name, file]]);
      return file;
    }
    if (reuse === undefined || there.kind !== "file") fail(create, "EEXIST");
    changeMode(disk, create, there, mode);
    return there;
  }

  /** The operations of a step, one at a time, so that `run` can let others in between. */
  function* operations(step: FileStep): Generator<void> {
    for (const _ of effects(step)) {
      end();
      yield;
    }
    end();
  }

  function* effects(step: FileStep): Generator<void> {
    const { label } = step;
    switch (step.op) {
      case "write": {
        const create = begin("create", step.path, label);
        const { folder, name } = folderOf(step.path, create);
        const file = fileToWrite(step, folder, name, create);
        yield;
        begin("data", step.path, label);
        const data =
          typeof step.data === "string" ? Buffer.from(step.data, "utf8") : new Uint8Array(step.data);
        const beyond = step.reuse === "start" ? file.data.subarray(data.length) : new Uint8Array();
        file.data = beyond.length === 0 ? data : Buffer.concat([data, beyond]);
        counts.bytes += data.length;
        disk.unsynced.push({ kind: "data", path: step.path, label, file });
        if (!step.sync) return;
        yield;
        begin("sync", step.path, label);
        counts.fsyncs += 1;
        syncFile(disk, file);
        return;
      }
      case "sync": {
        const operation = begin("sync", step.path, label);
        const file = find(step.path);
        if (file?.kind !== "file") fail(operation, "ENOENT");
        counts.fsyncs += 1;
        syncFile(disk, file);
        return;
      }
      case "syncFiles": {
        const operation = begin("sync", step.folder, label);
        counts.fsyncs += 1;
        for (const path of step.paths) {
          const file = find(path);
          if (file?.kind !== "file") fail(operation, "ENOENT");
          syncFile(disk, file);
        }
        return;
      }
      case "syncDir": {
        const operation = begin("syncDir", step.path, label);
        const folder = find(step.path);
        if (folder?.kind !== "directory") fail(operation, "ENOENT");
        counts.fsyncs += 1;
        syncFolder(disk, folder);
        return;
      }
      case "rename": {
        const operation = begin("rename", step.to, label);
        const { folder, name } = folderOf(step.from, operation);
        const target = folderOf(step.to, operation);
        const node = folder.names.get(name);
        if (node === undefined && step.missingOk === true) return;
        if (node === undefined) fail(operation, "ENOENT");
        if (target.folder !== folder) fail(operation, "EXDEV");
        const replaced = folder.names.get(target.name);
        if (replaced?.kind === "directory") fail(operation, "EISDIR");
        counts.renames += 1;
        changeNames(disk, operation, folder, [
          [name, step.swap === true && swaps ? replaced : undefined],
          [target.name, node],
        ]);
        return;
      }
      case "unlink": {
        const operation = begin("unlink", step.path, label);
        const { folder, name } = folderOf(step.path, operation);
        const node = folder.names.get(name);
        if (node === undefined && step.missingOk) return;
        if (node === undefined) fail(operation, "ENOENT");
        if (node.kind === "directory") fail(operation, "EISDIR");
        counts.unlinks += 1;
        changeNames(disk, operation, folder, [[name, undefined]]);
        return;
      }
      case "mkdir": {
        const operation = begin("mkdir", step.path, label);
        if (find(step.path) !== undefined) {
          if (step.existsOk) return;
          fail(operation, "EEXIST");
        }
        const { folder, name } = folderOf(step.path, operation);
        changeNames(disk, operation, folder, [[name, newFolder(step.mode)]]);
        return;
      }
      case "rmdir": {
        const operation = begin("rmdir", step.path, label);
        const { folder, name } = folderOf(step.path, operation);
        const node = folder.names.get(name);
        if (node?.kind !== "directory") fail(operation, node === undefined ? "ENOENT" : "ENOTDIR");
        if (node.names.size > 0) fail(operation, "ENOTEMPTY");
        changeNames(disk, operation, folder, [[name, undefined]]);
        return;
      }
      case "chmod": {
        const operation = begin("chmod", step.path, label);
        const node = find(step.path);
        if (node === undefined) fail(operation, "ENOENT");
        changeMode(disk, operation, node, step.mode);
        return;
      }
    }
  }

  function statOf(node: Node): FileStat {
    return {
      kind: node.kind,
      size: node.kind === "file" ? node.data.length : 0,
      mode: node.mode,
      uid: 1000,
      links: node.kind === "file" ? 1 : 2,
      device: 1n,
      inode: node.inode,
      mtimeMs: node.touched,
      ctimeMs: node.touched,
    };
  }

  function visit(act: (path: string, node: Node) => void): void {
    const walk = (path: string, node: Node): void => {
      act(path, node);
      if (node.kind === "directory") {
        for (const [name, child] of [...node.names].sort(([a], [b]) => (a < b ? -1 : 1))) {
          walk(join(path, name), child);
        }
      }
    };
    for (const [name, child] of root.names) walk(`/${name}`, child);
  }

  function open(path: string, label: string): ReadHandle | undefined {
    const node = find(path);
    if (node === undefined) return undefined;
    if (node.kind !== "file") throw new FileFault(label, path, "EISDIR");
    let at = 0;
    return {
      stat: () => statOf(node),
      read(length) {
        const data = node.data.slice(at, at + length);
        at += data.length;
        return data;
      },
      close: () => {},
    };
  }

  return {
    uid: 1000,
    counts,
    trace,
    get isOff() {
      return isOff;
    },
    lstat: (path) => {
      const node = find(path);
      return node === undefined ? undefined : statOf(node);
    },
    open,
    list: (path) => {
      const node = find(path);
      return node?.kind === "directory" ? [...node.names.keys()] : undefined;
    },
    async run(steps) {
      for (const step of steps) {
        await gate?.(step);
        for (const _ of operations(step)) await Promise.resolve();
        await Promise.resolve();
      }
    },
    runSync(steps) {
      for (const step of steps) for (const _ of operations(step));
    },
    failWhen(next) {
      fault = next;
    },
    holdWhen(next) {
      gate = next;
    },
    cutAt(number) {
      cut = number;
    },
    cutAfter(operations) {
      cut = counts.operations + operations + 1;
    },
    takeOver() {
      isOff = true;
      return createMemoryFileSystem(disk);
    },
    unsynced: () => disk.unsynced,
    afterPowerCut(survival) {
      const survives: Survival =
        survival === "all" ? () => true : survival === "none" ? () => false : survival;
      const outcomes = disk.unsynced.map((change, index) => [change, survives(change, index)] as const);
      return createMemoryFileSystem({ root: survivor(root, outcomes), unsynced: [], swaps });
    },
    digest: () => treeDigest(root),
    files() {
      const found: Record<string, string> = {};
      visit((path, node) => {
        if (node.kind === "file") found[path] = Buffer.from(node.data).toString("utf8");
      });
      return found;
    },
    modes() {
      const found: Record<string, number> = {};
      visit((path, node) => {
        found[path] = node.mode;
      });
      return found;
    },
    seed(path, text, mode = 0o600) {
      let folder = root;
      const parts = partsOf(path);
      const name = parts.pop() ?? "";
      for (const part of parts) {
        const next = folder.names.get(part) ?? newFolder();
        if (next.kind !== "directory") throw new Error(`${part} is not a folder`);
        folder.names.set(part, next);
        folder.syncedNames.set(part, next);
        folder = next;
      }
      const data = Buffer.from(text, "utf8");
      const file = newFile(mode, data);
      folder.names.set(name, file);
      folder.syncedNames.set(name, file);
    },
    erase(path) {
      const folder = find(dirname(path));
      if (folder?.kind !== "directory") return;
      folder.names.delete(partsOf(path).at(-1) ?? "");
      folder.syncedNames.delete(partsOf(path).at(-1) ?? "");
    },
  };
}
