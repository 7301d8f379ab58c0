import { HOST_ENTRIES } from "../core/host-files.ts";

/** Entries of the host's state folder by their own names. */

export const {
  database: HOST_DATABASE,
  lock: HOST_LOCK,
  restored: RESTORED_FILE,
  backups: BACKUPS_FOLDER,
  runs: RUN_FOLDERS,
} = HOST_ENTRIES;
