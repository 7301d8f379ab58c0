import { dlopen, type FFIFunction, type Library } from "bun:ffi";

const NAMES = ["libc.so.6", `libc.musl-${process.arch === "arm64" ? "aarch64" : "x86_64"}.so.1`];

/**
 * Functions of Linux's C library that neither Bun nor Node has; undefined on other systems, and where a function or a
 * loadable library is missing (a static build).
 */
export function fromCLibrary<const F extends Record<string, FFIFunction>>(
  functions: F,
): Library<F>["symbols"] | undefined {
  if (process.platform !== "linux") return undefined;
  for (const name of NAMES) {
    try {
      return dlopen(name, functions).symbols;
    } catch {
      // The next name, if there is one.
    }
  }
  return undefined;
}
