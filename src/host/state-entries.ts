/** Entries of the host's state folder. */

export const HOST_DATABASE = "host.sqlite";
/** Held by the running host; the operating system drops it with the process. */
export const HOST_LOCK = "host-owner.sqlite";
/** There from a restore until nothing is held any more (restored.ts). */
export const RESTORED_FILE = "restored.json";
/** Backups that the host makes by itself. */
export const BACKUPS_FOLDER = "backups";
