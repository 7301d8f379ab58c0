import type { DiskOperation, Survival } from "../core/ports/crash-disk.ts";

/**
 * The nodes of the in-memory disk, and what a power cut leaves of them: the data of a file that is not synced, each
 * change of names whose folder is not synced, and the changed mode of either, may be kept or lost independently.
 *
 * The first mode is no such change: an inode is made with it, so whatever keeps the name keeps the mode.
 */

export interface FileNode {
  readonly kind: "file";
  readonly inode: bigint;
  mode: number;
  syncedMode: number;
  data: Uint8Array;
  /** What a power cut leaves when nothing unsynced survives. */
  syncedData: Uint8Array;
  touched: number;
}
export interface FolderNode {
  readonly kind: "directory";
  readonly inode: bigint;
  mode: number;
  syncedMode: number;
  readonly names: Map<string, Node>;
  readonly syncedNames: Map<string, Node>;
  touched: number;
}
export type Node = FileNode | FolderNode;

/** Something that a power cut now may take back. */
export type Unsynced =
  | { readonly kind: "data"; readonly path: string; readonly label: string; readonly file: FileNode }
  | {
      readonly kind: "names";
      readonly path: string;
      readonly label: string;
      readonly folder: FolderNode;
      readonly changes: readonly NameChange[];
    }
  | { readonly kind: "mode"; readonly path: string; readonly label: string; readonly node: Node };

type NameChange = readonly [name: string, node: Node | undefined];

export interface Disk {
  readonly root: FolderNode;
  /** In the order in which it was done. */
  unsynced: Unsynced[];
  /** Whether names can be swapped: Linux can, other systems only rename. */
  readonly swaps: boolean;
}

export function memoryDisk(options: { swaps: boolean } = { swaps: true }): Disk {
  return { root: newFolder(), unsynced: [], swaps: options.swaps };
}

let inodes = 0n;
const nextInode = () => {
  inodes += 1n;
  return inodes;
};
export const newFolder = (mode = 0o700): FolderNode => ({
  kind: "directory",
  inode: nextInode(),
  mode,
  syncedMode: mode,
  names: new Map(),
  syncedNames: new Map(),
  touched: 0,
});
/** A file whose data, if any, is durable. */
export const newFile = (mode: number, data: Uint8Array, touched = 0): FileNode => ({
  kind: "file",
  inode: nextInode(),
  mode,
  syncedMode: mode,
  data,
  syncedData: data,
  touched,
});

function applyNames(names: Map<string, Node>, changes: readonly NameChange[]): void {
  for (const [name, node] of changes) {
    if (node === undefined) names.delete(name);
    else names.set(name, node);
  }
}

export function changeNames(
  disk: Disk,
  { path, label }: DiskOperation,
  folder: FolderNode,
  changes: readonly NameChange[],
): void {
  applyNames(folder.names, changes);
  disk.unsynced.push({ kind: "names", path, label, folder, changes });
}

export function changeMode(disk: Disk, { path, label }: DiskOperation, node: Node, mode: number): void {
  if (node.mode === mode) return;
  node.mode = mode;
  disk.unsynced.push({ kind: "mode", path, label, node });
}

export function syncFolder(disk: Disk, folder: FolderNode): void {
  syncMode(disk, folder);
  disk.unsynced = disk.unsynced.filter((change) => {
    if (change.kind !== "names" || change.folder !== folder) return true;
    applyNames(folder.syncedNames, change.changes);
    return false;
  });
}

export function syncFile(disk: Disk, file: FileNode): void {
  syncMode(disk, file);
  file.syncedData = file.data;
  disk.unsynced = disk.unsynced.filter((change) => change.kind !== "data" || change.file !== file);
}

function syncMode(disk: Disk, node: Node): void {
  node.syncedMode = node.mode;
  disk.unsynced = disk.unsynced.filter((change) => change.kind !== "mode" || change.node !== node);
}

/** A deep copy of what is durable, with the surviving changes applied in their order; all of it durable. */
export function survivor(
  root: FolderNode,
  outcomes: readonly (readonly [Unsynced, ReturnType<Survival>])[],
): FolderNode {
  const copies = new Map<Node, Node>();
  const modeOf = (node: Node) => {
    const kept = outcomes.some(
      ([change, outcome]) => change.kind === "mode" && change.node === node && outcome,
    );
    return kept ? node.mode : node.syncedMode;
  };
  const copy = (node: Node): Node => {
    const known = copies.get(node);
    if (known !== undefined) return known;
    if (node.kind === "file") {
      let data = node.syncedData;
      for (const [change, outcome] of outcomes) {
        if (change.kind !== "data" || change.file !== node) continue;
        if (outcome === true) data = node.data;
        if (outcome === "zeros") data = new Uint8Array(node.data.length);
        const half = Math.floor(node.data.length / 2);
        if (outcome === "torn") data = node.data.slice(0, half);
        if (outcome === "mixed")
          data = Buffer.concat([node.data.subarray(0, half), node.syncedData.subarray(half)]);
      }
      const mode = modeOf(node);
      const file: FileNode = { ...node, mode, syncedMode: mode, data, syncedData: data };
      copies.set(node, file);
      return file;
    }
    const folder = newFolder(modeOf(node));
    copies.set(node, folder);
    const names = new Map(node.syncedNames);
    for (const [change, outcome] of outcomes) {
      if (change.kind === "names" && change.folder === node && outcome !== false) {
        applyNames(names, change.changes);
      }
    }
    for (const [name, child] of names) {
      const next = copy(child);
      folder.names.set(name, next);
      folder.syncedNames.set(name, next);
    }
    return folder;
  };
  const result = copy(root);
  if (result.kind !== "directory") throw new Error("the root is a folder");
  return result;
}

const contentKeys = new WeakMap<Uint8Array, string>();

/** Contents are never changed in place, so each is hashed once however many disks share it. */
function contentKey(data: Uint8Array): string {
  let key = contentKeys.get(data);
  if (key === undefined) {
    key = Bun.hash(data).toString(36);
    contentKeys.set(data, key);
  }
  return key;
}

/** Names, modes and contents of a tree as one short text. */
export function treeDigest(root: FolderNode): string {
  const parts: string[] = [];
  const walk = (folder: FolderNode): void => {
    for (const name of [...folder.names.keys()].sort()) {
      const node = folder.names.get(name);
      if (node === undefined) continue;
      parts.push(name, String(node.mode));
      if (node.kind === "file") parts.push(contentKey(node.data));
      else walk(node);
    }
    parts.push("/");
  };
  walk(root);
  return Bun.hash(parts.join("\0")).toString(36);
}
