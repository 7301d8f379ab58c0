/** Farther away than this, a name is not a misspelling of another. */
const MAX_DISTANCE = 3;

/** The candidate that the name most likely meant: the least edit distance, swaps of neighbours counting once. */
export function nearestName(name: string, candidates: readonly string[]): string | undefined {
  const limit = Math.min(MAX_DISTANCE, Math.floor(name.length / 2));
  let best: { candidate: string; distance: number } | undefined;
  for (const candidate of candidates) {
    const distance = editDistance(name.toLowerCase(), candidate.toLowerCase());
    if (distance <= limit && (best === undefined || distance < best.distance)) best = { candidate, distance };
  }
  return best?.candidate ?? candidates.find((candidate) => startsEither(name, candidate));
}

function startsEither(name: string, candidate: string): boolean {
  return name.length > 2 && (candidate.startsWith(name) || name.startsWith(candidate));
}

function editDistance(a: string, b: string): number {
  let twoBack: number[] = [];
  let back = Array.from({ length: b.length + 1 }, (_, column) => column);
  for (let row = 1; row <= a.length; row += 1) {
    const current = [row];
    for (let column = 1; column <= b.length; column += 1) {
      const same = a[row - 1] === b[column - 1];
      let least = Math.min(
        (back[column] ?? 0) + 1,
        (current[column - 1] ?? 0) + 1,
        (back[column - 1] ?? 0) + (same ? 0 : 1),
      );
      const swapped = row > 1 && column > 1 && a[row - 1] === b[column - 2] && a[row - 2] === b[column - 1];
      if (swapped) least = Math.min(least, (twoBack[column - 2] ?? 0) + 1);
      current.push(least);
    }
    twoBack = back;
    back = current;
  }
  return back[b.length] ?? 0;
}
