import { closeSync, constants, fchmodSync, fsyncSync, openSync, writeSync } from "node:fs";
import { FileFault } from "../core/ports/platform.ts";
import { errnoOf } from "./filesystem-steps.ts";

/** A file that is written piece by piece, for what is too large to be held whole. */
export interface SequentialFile {
  write(data: Uint8Array): void;
  sync(): void;
  close(): void;
}

const NO_FOLLOW = constants.O_NOFOLLOW ?? 0;
const CREATE = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | NO_FOLLOW;

/** Creates the file exclusively. Every failure is a `FileFault` that names the label, the path and the errno. */
export function createSequentialFile(path: string, mode: number, label: string): SequentialFile {
  const guarded = <T>(act: () => T): T => {
    try {
      return act();
    } catch (error) {
      throw new FileFault(label, path, errnoOf(error), { cause: error });
    }
  };
  const descriptor = guarded(() => openSync(path, CREATE, mode));
  let open = true;
  const close = () => {
    if (open) closeSync(descriptor);
    open = false;
  };
  try {
    guarded(() => fchmodSync(descriptor, mode));
  } catch (error) {
    close();
    throw error;
  }
  return {
    write: (data) =>
      guarded(() => {
        for (let done = 0; done < data.length; )
          done += writeSync(descriptor, data, done, data.length - done);
      }),
    sync: () => guarded(() => fsyncSync(descriptor)),
    close: () => guarded(close),
  };
}
