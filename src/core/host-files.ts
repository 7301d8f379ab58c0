/** Entries of the host's state folder. */
export const HOST_ENTRIES = {
  database: "host.sqlite",
  /** Held by the running host; the operating system drops it with the process. */
  lock: "host-owner.sqlite",
  /** There from a restore until nothing is held any more. */
  restored: "restored.json",
  /** Backups that the host makes by itself. */
  backups: "backups",
  /** Logins of MCP servers. */
  logins: "mcp-login",
  /** Output folders of the runs under way; emptied at every start. */
  runs: "run-output",
} as const;
