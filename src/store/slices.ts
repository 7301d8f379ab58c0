/**
 * Long reading that can be cut: a generator yields between two pieces, whoever runs it decides what happens there.
 * What it reads must not change meanwhile unless it is run at once.
 */
export type Slices<T> = Generator<undefined, T>;

/** After so many files a long reading yields. */
export const SLICE_FILES = 32;

/** Runs it without a pause. */
export function atOnce<T>(work: Slices<T>): T {
  for (;;) {
    const { done, value } = work.next();
    if (done === true) return value;
  }
}

/** Runs it with `pause` between the pieces. A rejection of `pause` ends it. */
export async function inSlices<T>(work: Slices<T>, pause: () => Promise<void>): Promise<T> {
  for (;;) {
    const { done, value } = work.next();
    if (done === true) return value;
    await pause();
  }
}
