import {
  chmodSync,
  closeSync,
  constants,
  fchmodSync,
  fdatasyncSync,
  fstatSync,
  fsyncSync,
  ftruncateSync,
  mkdirSync,
  openSync,
  renameSync,
  rmdirSync,
  unlinkSync,
  writeSync,
} from "node:fs";
import { FileFault, type FileStep } from "../core/ports/platform.ts";
import { swapNames } from "./swap-names.ts";
import { openForSyncfs, type Syncfs } from "./syncfs.ts";

/**
 * Owns: how each labelled step is carried out, in the calling thread; turning system errors into `FileFault`.
 * Does not own: in which thread that is (filesystem.ts, filesystem-worker.ts).
 *
 * I1. Modes are set explicitly after creation, so the process's umask changes nothing.
 * I2. Nothing follows a symlink at the last component of a path that is opened or created, but for a folder that is
 *     synced: what was done in it by its path followed that link, too.
 */

const NO_FOLLOW = constants.O_NOFOLLOW ?? 0;
/** Without O_NONBLOCK an open would hang on a FIFO that somebody put in place of a file. */
export const READ = constants.O_RDONLY | NO_FOLLOW | (constants.O_NONBLOCK ?? 0);
const FOLDER = constants.O_RDONLY | (constants.O_DIRECTORY ?? 0);
const CREATE = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | NO_FOLLOW;
const REUSE = constants.O_WRONLY | constants.O_CREAT | NO_FOLLOW | (constants.O_NONBLOCK ?? 0);

/**
 * A file whose length stays costs the disk its data alone, and not a commit of its own journal with whatever else waits
 * for one: that is what fdatasync leaves out. On Linux, where it is known to wait for the data.
 */
const DATA_ALONE = process.platform === "linux";
/** Windows has no fsync of a folder; NTFS journals names by itself. */
const SYNCS_FOLDERS = process.platform !== "win32";
/** With fewer files than this, one fsync each costs less than syncfs, which writes out all files of the disk. */
const SYNCFS_FROM = 8;

/** The system's name of an error, such as ENOSPC. */
export function errnoOf(error: unknown): string {
  if (typeof error === "object" && error !== null && "code" in error && typeof error.code === "string") {
    return error.code;
  }
  return "EUNKNOWN";
}

export function pathOf(step: FileStep): string {
  if (step.op === "syncFiles") return step.folder;
  return step.op === "rename" ? step.to : step.path;
}

/** A step of a list that failed: the rest of the list was not begun. */
export interface StepFailure {
  readonly index: number;
  readonly errno: string;
  readonly cause: unknown;
}

/** Carries out the steps strictly in order; returns the first failure, after which nothing more is done. */
export function performSteps(steps: readonly FileStep[]): StepFailure | undefined {
  let index = 0;
  let syncfs: Syncfs | undefined;
  try {
    const together = steps.findIndex((step) => step.op === "syncFiles" && step.paths.length >= SYNCFS_FROM);
    const step = steps[together];
    // Opened before the files are written: only then syncfs reports every failed write of them.
    if (step?.op === "syncFiles") {
      index = together;
      syncfs = openForSyncfs(step.folder);
      index = 0;
    }
    for (const step of steps) {
      perform(step, syncfs);
      index += 1;
    }
    return undefined;
  } catch (error) {
    return { index, errno: errnoOf(error), cause: error };
  } finally {
    syncfs?.close();
  }
}

export function faultOf(steps: readonly FileStep[], failure: StepFailure): FileFault {
  const step = steps[failure.index];
  const label = step?.label ?? "steps";
  return new FileFault(label, step === undefined ? "" : pathOf(step), failure.errno, {
    cause: failure.cause,
  });
}

function perform(step: FileStep, syncfs: Syncfs | undefined): void {
  switch (step.op) {
    case "write":
      if (step.reuse !== undefined) overwrite(step);
      else create(step);
      return;
    case "sync":
      sync(step.path);
      return;
    case "syncDir":
      if (SYNCS_FOLDERS) sync(step.path, FOLDER);
      return;
    case "syncFiles":
      if (step.paths.length >= SYNCFS_FROM && syncfs?.sync()) return;
      for (const path of step.paths) sync(path);
      return;
    case "rename":
      if (step.swap === true && swapNames(step.from, step.to)) return;
      unlessMissing(step.missingOk === true, () => renameSync(step.from, step.to));
      return;
    case "unlink":
      unlessMissing(step.missingOk, () => unlinkSync(step.path));
      return;
    case "mkdir":
      try {
        mkdirSync(step.path, { mode: step.mode });
      } catch (error) {
        if (step.existsOk && errnoOf(error) === "EEXIST") return;
        throw error;
      }
      chmodSync(step.path, step.mode);
      return;
    case "rmdir":
      rmdirSync(step.path);
      return;
    case "chmod":
      chmodSync(step.path, step.mode);
      return;
  }
}

function unlessMissing(missingOk: boolean, act: () => void): void {
  try {
    act();
  } catch (error) {
    if (!(missingOk && errnoOf(error) === "ENOENT")) throw error;
  }
}

type Write = Extract<FileStep, { op: "write" }>;

function create({ path, data, mode, sync: durable }: Write): void {
  const descriptor = openSync(path, CREATE, mode);
  try {
    fchmodSync(descriptor, mode);
    writeAll(descriptor, bytesOf(data));
    if (durable) fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}

function overwrite(step: Write): void {
  const descriptor = openOwn(step.path, step.mode);
  if (descriptor === undefined) {
    // Somebody's link to it, or something in its place: by its name it is ours to replace, but not to write through.
    unlinkSync(step.path);
    create(step);
    return;
  }
  const { data, mode, sync: durable, reuse } = step;
  try {
    const there = fstatSync(descriptor);
    const loose = (there.mode & 0o7777) !== mode;
    if (loose) fchmodSync(descriptor, mode);
    const bytes = bytesOf(data);
    writeAll(descriptor, bytes);
    const keepsLength = reuse === "start" && there.size >= bytes.length;
    if (reuse === "whole" && there.size > bytes.length) ftruncateSync(descriptor, bytes.length);
    if (!durable) return;
    if (DATA_ALONE && keepsLength && !loose) fdatasyncSync(descriptor);
    else fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}

/** Opens a regular file with one name, made when nothing is there; undefined when something else is. */
function openOwn(path: string, mode: number): number | undefined {
  let descriptor: number;
  try {
    descriptor = openSync(path, REUSE, mode);
  } catch (error) {
    // A symlink, and a pipe that nobody reads.
    if (errnoOf(error) === "ELOOP" || errnoOf(error) === "ENXIO") return undefined;
    throw error;
  }
  const there = fstatSync(descriptor);
  if (there.isFile() && there.nlink === 1) return descriptor;
  closeSync(descriptor);
  return undefined;
}

const bytesOf = (data: string | Uint8Array) => (typeof data === "string" ? Buffer.from(data, "utf8") : data);

function writeAll(descriptor: number, data: Uint8Array): void {
  for (let done = 0; done < data.length; ) {
    done += writeSync(descriptor, data, done, data.length - done);
  }
}

function sync(path: string, flags = READ): void {
  const descriptor = openSync(path, flags);
  try {
    fsyncSync(descriptor);
  } finally {
    closeSync(descriptor);
  }
}
