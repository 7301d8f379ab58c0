import fc from "fast-check";

/**
 * Makes the property tests of a check repeatable: what passed once passes again, on CI too. `FC_SEED=<number>` tries
 * another seed; a failure prints the one that it had.
 */
fc.configureGlobal({ seed: Number(process.env.FC_SEED ?? 20_261_130) });
