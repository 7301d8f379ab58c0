/** The shape of a report of `doctor` (host-facts.md §8). */

export type SectionStatus = "ok" | "waiting" | "disabled" | "error";

export interface DoctorSection {
  readonly id: string;
  readonly label: string;
  readonly status: SectionStatus;
  readonly details: readonly string[];
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
