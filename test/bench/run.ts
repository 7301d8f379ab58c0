/** `bun run bench <name> [options]`: each name is a file beside this one that exports `bench`. */

const BENCHES: Record<string, () => Promise<{ bench(args: readonly string[]): Promise<void> }>> = {
  store: () => import("./store.ts"),
  migrate: () => import("./migrate.ts"),
  service: () => import("./service.ts"),
};

const [name = "", ...args] = process.argv.slice(2);
const load = Object.hasOwn(BENCHES, name) ? BENCHES[name] : undefined;
if (load === undefined) {
  console.error(`usage: bun run bench <${Object.keys(BENCHES).join(" | ")}> [--json] [--quick]`);
  process.exit(2);
}
await (await load()).bench(args);

export {};
