/** The shape of a report of `doctor` (host-facts.md §8). */

export type SectionStatus = "ok" | "waiting" | "disabled" | "error";

export interface DoctorSection {
  readonly id: string;
  readonly label: string;
  readonly status: SectionStatus;
  readonly details: readonly string[];
}

/** How much of a long list is said, and where the rest is to be had. */
export interface Listing {
  /** More lines than these are counted, not listed. Default: all are listed. */
  readonly listedMax?: number | undefined;
  /** How the command line is called. */
  readonly program: string;
}

/** The lines, or as many of them as are listed and how many more there are. */
export function listed(lines: readonly string[], { listedMax, program }: Listing): readonly string[] {
  if (listedMax === undefined || lines.length <= listedMax) return lines;
  const more = `and ${lines.length - listedMax} more; \`${program} doctor --json\` lists all`;
  return [...lines.slice(0, listedMax), more];
}

export interface DoctorReport {
  /** No section is in error. */
  readonly ok: boolean;
  /** The configuration could be read and holds together. */
  readonly structurallyValid: boolean;
  /** Nothing is in error and nothing waits. */
  readonly operationallyReady: boolean;
  readonly sections: readonly DoctorSection[];
}
