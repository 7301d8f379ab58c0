import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { FileFault, type FileStep } from "../../src/core/ports/platform.ts";
import { createFileSystem } from "../../src/platform/filesystem.ts";
import { createStepThreads } from "../../src/platform/filesystem-threads.ts";

let folder = "";
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "filesystem-threads-test-"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const write = (path: string, data: string | Uint8Array): FileStep => ({
  op: "write",
  path,
  data,
  mode: 0o600,
  sync: false,
  label: "w",
});

describe("the threads that change files", () => {
  test("closing waits for every list that is under way, and the next list starts a thread again", async () => {
    const fs = createFileSystem();
    const many = Array.from({ length: 100 }, (_, index) => write(join(folder, `many-${index}`), "x"));
    const lists = [
      fs.run(many),
      fs.run([write(join(folder, "one"), "1")]),
      fs.run([write(join(folder, "two"), "2")]),
    ];
    await fs.close?.();
    expect(readdirSync(folder).length).toBe(102);
    await Promise.all(lists);
    await fs.run([write(join(folder, "three"), "3")]);
    expect(readFileSync(join(folder, "three"), "utf8")).toBe("3");
    await fs.close?.();
  });

  test("a short list does not wait behind a long one", async () => {
    const fs = createFileSystem();
    const order: string[] = [];
    const long = Array.from({ length: 400 }, (_, index) => write(join(folder, `long-${index}`), "x"));
    // So that both threads are there already.
    await Promise.all([fs.run([]), fs.run([])]);
    await Promise.all([
      fs.run(long).then(() => order.push("long")),
      fs.run([write(join(folder, "short"), "x")]).then(() => order.push("short")),
    ]);
    expect(order).toEqual(["short", "long"]);
    await fs.close?.();
  });

  test("many files become durable together, and a missing one is reported", async () => {
    const fs = createFileSystem();
    const paths = Array.from({ length: 20 }, (_, index) => join(folder, `together-${index}`));
    const sync: FileStep = { op: "syncFiles", folder, paths, label: "s" };
    await fs.run([...paths.map((path) => write(path, "x")), sync]);
    const few: FileStep = { op: "syncFiles", folder, paths: [join(folder, "nowhere")], label: "s" };
    const missing = await fs.run([few]).catch((error: unknown) => error);
    expect(missing).toBeInstanceOf(FileFault);
    expect(missing).toMatchObject({ label: "s", path: folder, errno: "ENOENT" });
    const nowhere: FileStep = { ...sync, folder: join(folder, "nowhere") };
    const [first] = paths;
    const refused = await fs.run([write(`${first}-2`, "x"), nowhere]).catch((error: unknown) => error);
    expect(refused).toMatchObject({ label: "s", errno: "ENOENT" });
    await fs.close?.();
  });

  test("when a thread dies, each of its lists fails, and the next list gets a new thread", async () => {
    const threads = createStepThreads(new URL("../support/dying-thread.ts", import.meta.url));
    const run = (name: string) =>
      threads.run([write(join(folder, name), "x")]).catch((error: unknown) => error);
    const lists = await Promise.all([run("a"), run("b"), run("c"), run("d")]);
    for (const error of [...lists, await run("e")]) {
      expect(error).toBeInstanceOf(FileFault);
      expect(error).toMatchObject({ label: "w", errno: "ETHREAD" });
    }
    await threads.close();
  });

  test("a process with lists under way lives until they are done, and then ends by itself", () => {
    const path = join(folder, "from a process");
    const script = `
      import { createFileSystem } from ${JSON.stringify(join(import.meta.dir, "../../src/platform/filesystem.ts"))};
      const fs = createFileSystem();
      void fs.run([{ op: "write", path: ${JSON.stringify(path)}, data: "x", mode: 0o600, sync: true, label: "w" }])
        .then(() => console.log("done"));
    `;
    const { stdout, exitCode } = Bun.spawnSync([process.execPath, "-e", script]);
    expect([stdout.toString(), exitCode, existsSync(path)]).toEqual(["done\n", 0, true]);
  });
});
