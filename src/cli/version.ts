/** Replaced by build.ts with the version of package.json; absent when run from the sources. */
declare const MONO_AGENT_VERSION: string | undefined;

export const VERSION: string = typeof MONO_AGENT_VERSION === "string" ? MONO_AGENT_VERSION : "0.0.0-dev";
