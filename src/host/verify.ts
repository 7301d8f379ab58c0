/** Recomputing one continuation's bindings from disk, where the command line may import it from. */
export { type Match, type Verification, verifyContinuation } from "../store/verify.ts";
