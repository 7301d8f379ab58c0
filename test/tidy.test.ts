import { describe, expect, test } from "bun:test";
import { join, posix } from "node:path";
import { blank, importsOf } from "./support/tidy-source.ts";

/** The rules of DESIGN.md that neither the compiler nor the linter knows. Each ban names its replacement. */

const ROOT = join(import.meta.dir, "..");

interface Source {
  /** Relative to the checkout, with slashes. */
  readonly path: string;
  readonly lines: number;
  readonly text: string;
  readonly bare: string;
  readonly imports: readonly string[];
}

async function sourcesIn(folder: string): Promise<Source[]> {
  const paths = [...new Bun.Glob(`${folder}/**/*.{ts,tsx}`).scanSync(ROOT)].sort();
  return Promise.all(
    paths
      .map((path) => path.replaceAll("\\", "/"))
      .filter((path) => !path.startsWith("test/fixtures/"))
      .map(async (path) => {
        const text = await Bun.file(join(ROOT, path)).text();
        const { code, bare } = blank(text);
        const lines = text.split("\n").length - (text.endsWith("\n") ? 1 : 0);
        return { path, lines, text, bare, imports: importsOf(code) };
      }),
  );
}

const src = await sourcesIn("src");
const tests = await sourcesIn("test");

/** A folder below src, or the entry file itself: `src/cli/run.ts` → `cli`, `src/main.ts` → `main.ts`. */
function roomOf(path: string): string {
  return path.split("/")[1] ?? "";
}

describe("imports follow the table of DESIGN.md", () => {
  const MAY_IMPORT: Record<string, readonly string[] | "all but cli"> = {
    "main.ts": ["cli"],
    "index.ts": ["host", "core", "config"],
    core: [],
    platform: ["core"],
    config: ["core"],
    store: ["core"],
    continuation: ["core"],
    turns: ["core"],
    harness: ["core"],
    model: ["core"],
    mcp: ["core"],
    http: ["core", "continuation", "turns"],
    channels: ["core", "http"],
    host: "all but cli",
    cli: ["host", "config", "platform", "core"],
  };

  test("every folder is in the table", () => {
    const unknown = [...new Set(src.map(({ path }) => roomOf(path)))].filter((room) => !(room in MAY_IMPORT));
    expect(unknown).toEqual([]);
  });

  test("a file imports only its own folder and those that the table allows it", () => {
    const wrong = src.flatMap(({ path, imports }) => {
      const room = roomOf(path);
      const allowed = MAY_IMPORT[room] ?? [];
      return imports
        .filter((specifier) => specifier.startsWith("."))
        .map((specifier) => posix.join(posix.dirname(path), specifier))
        .filter((target) => {
          const other = roomOf(target);
          if (!target.startsWith("src/")) return true;
          if (other === room) return false;
          return allowed === "all but cli"
            ? other === "cli" || other === "main.ts"
            : !allowed.includes(other);
        })
        .map((target) => `${path} must not import ${target}`);
    });
    expect(wrong).toEqual([]);
  });

  test("a relative import names its file with the extension", () => {
    const wrong = src.flatMap(({ path, imports }) =>
      imports
        .filter((specifier) => specifier.startsWith(".") && !/\.(ts|tsx|html|css|svg|json)$/.test(specifier))
        .map((specifier) => `${path}: ${specifier}`),
    );
    expect(wrong).toEqual([]);
  });
});

describe("each package has its rooms", () => {
  const ROOMS: readonly { packages: RegExp; rooms: readonly string[]; instead: string }[] = [
    {
      packages: /^zod$/,
      rooms: ["core", "config", "cli", "http", "channels", "turns", "store", "mcp", "model", "harness"],
      instead: "a schema of core",
    },
    { packages: /^@modelcontextprotocol\//, rooms: ["mcp"], instead: "core/ports/tools.ts" },
    { packages: /^(ai|@ai-sdk\/)/, rooms: ["model"], instead: "core/ports/model.ts" },
    { packages: /^hono(\/|$)/, rooms: ["http", "channels"], instead: "the apps of http/" },
    {
      packages: /^(consola|citty)(\/|$)/,
      rooms: ["cli", "platform", "main.ts"],
      instead: "the Logger port, or an exit code",
    },
    { packages: /^bun:sqlite$/, rooms: ["store", "turns"], instead: "the ports of store and turns" },
    {
      packages: /^(node:)?(fs|fs\/promises)$/,
      rooms: ["platform", "config", "mcp/example"],
      instead: "the FileSystem port",
    },
    { packages: /^(node:)?crypto$/, rooms: ["core", "platform"], instead: "core/digest.ts, or the Ids port" },
    { packages: /^(node:)?child_process$/, rooms: ["mcp", "cli"], instead: "the tool host of mcp/" },
    { packages: /^(node:)?readline(\/|$)/, rooms: ["cli"], instead: "the channels" },
    { packages: /^(node:)?worker_threads$/, rooms: ["platform"], instead: "the FileSystem port" },
    { packages: /^bun:ffi$/, rooms: ["platform"], instead: "the FileSystem port" },
    { packages: /^(node:)?timers(\/|$)/, rooms: ["platform"], instead: "the Clock port" },
  ];
  /** What any folder may use: pure helpers of the runtime. */
  const ANYWHERE = /^(node:)?(path|url|util|buffer|os|assert)$|^bun$/;

  test("a package is imported only in its rooms", () => {
    const wrong = src.flatMap(({ path, imports }) =>
      imports
        .filter((specifier) => !specifier.startsWith(".") && !ANYWHERE.test(specifier))
        .flatMap((specifier) => {
          const rule = ROOMS.find(({ packages }) => packages.test(specifier));
          if (rule === undefined) return [`${path} imports ${specifier}, which no room has`];
          if (rule.rooms.some((room) => isIn(path, room))) return [];
          return [`${path} must not import ${specifier}: use ${rule.instead}`];
        }),
    );
    expect(wrong).toEqual([]);
  });

  test("core imports zod and hashing only", () => {
    const foreign = src
      .filter(({ path }) => roomOf(path) === "core")
      .flatMap(({ imports }) => imports.filter((specifier) => !specifier.startsWith(".")));
    expect([...new Set(foreign)].sort()).toEqual(["node:crypto", "zod"]);
  });
});

/** `room` is a path below src: a folder or a file. */
function isIn(path: string, room: string): boolean {
  return path === `src/${room}` || path.startsWith(`src/${room}/`);
}

describe("what varies is injected", () => {
  const BANS: readonly {
    what: string;
    sample: string;
    pattern: RegExp;
    rooms: readonly string[];
    instead: string;
  }[] = [
    {
      what: "Date.now",
      sample: "const now = Date.now ?? x",
      pattern: /\bDate\s*\.\s*now\b/,
      rooms: ["platform"],
      instead: "clock.now()",
    },
    {
      what: "new Date()",
      sample: "f(new Date( ), 1)",
      pattern: /\bnew\s+Date\s*(\(\s*\)|(?![\w\s(]))/,
      rooms: ["platform"],
      instead: "new Date(clock.now())",
    },
    {
      what: "performance.now",
      sample: "performance.now()",
      pattern: /\bperformance\s*\.\s*now\b/,
      rooms: ["platform"],
      instead: "clock.now()",
    },
    {
      what: "Math.random",
      sample: "Math.random()",
      pattern: /\bMath\s*\.\s*random\b/,
      rooms: ["platform"],
      instead: "ids.token(bytes)",
    },
    {
      what: "random ids",
      sample: "crypto.randomUUID()",
      pattern: /\b(randomUUID|randomUUIDv7|randomBytes|getRandomValues)\b/,
      rooms: ["platform"],
      instead: "ids.uuid() or ids.token(bytes)",
    },
    {
      what: "timers",
      sample: "setTimeout(f, 1)",
      pattern: /\b(setTimeout|setInterval)\b/,
      rooms: ["platform"],
      instead: "clock.timer(delayMs, fire)",
    },
    {
      what: "sleeping",
      sample: "await Bun.sleep(1)",
      pattern: /\bBun\s*\.\s*sleep/,
      rooms: ["platform", "cli", "mcp/example"],
      instead: "clock.timer(delayMs, fire)",
    },
    {
      what: "process.env",
      sample: "const { env } = process",
      pattern:
        /\b(process|Bun|import\s*\.\s*meta)\s*\.\s*env\b|\bconst\s*\{[^}]*\benv\b[^}]*\}\s*=\s*process\b/,
      rooms: ["platform", "config", "cli/io.ts"],
      instead: "the env that the caller passes",
    },
    {
      what: "process.cwd",
      sample: "process.cwd()",
      pattern: /\bprocess\s*\.\s*cwd\b/,
      rooms: ["platform", "cli/io.ts"],
      instead: "the cwd that the caller passes",
    },
    {
      what: "process.exit",
      sample: "process.exit(1)",
      pattern: /\bprocess\s*\.\s*exit\b(?!Code)/,
      rooms: [],
      instead: "an exit code, or a thrown AppError",
    },
    {
      what: "Bun's files",
      sample: "Bun.file(path)",
      pattern: /\bBun\s*\.\s*(file|write)\b/,
      rooms: ["platform", "cli/demo"],
      instead: "the FileSystem port",
    },
    {
      what: "console",
      sample: "console.log(1)",
      pattern: /\bconsole\s*\.\s*\w/,
      rooms: ["cli"],
      instead: "the Logger port",
    },
    {
      what: "any",
      sample: "x as any",
      pattern: /(\bas\s+any\b|:\s*any\b|<\s*any\b|\bany\s*\[\s*\]|,\s*any\s*>)/,
      rooms: [],
      instead: "unknown and a schema",
    },
    {
      what: "as unknown as",
      sample: "x as unknown as Y",
      pattern: /\bas\s+unknown\s+as\b/,
      rooms: [],
      instead: "a schema or a type guard",
    },
    {
      what: "inheritance of anything but an error",
      sample: "class Dog extends Animal {}",
      pattern: /\bclass\s+\w+\s+extends\s+(?!\w*Error\b)/,
      rooms: [],
      instead: "a function that returns an object of functions",
    },
  ];

  for (const { what, sample, pattern, rooms, instead } of BANS) {
    const where = rooms.length === 0 ? "nowhere" : `only in ${rooms.join(", ")}`;
    test(`${what} is used ${where}; elsewhere: ${instead}`, () => {
      const wrong = src
        .filter(({ path }) => !rooms.some((room) => isIn(path, room)))
        .flatMap(({ path, bare }) =>
          linesThatMatch(bare, pattern).map((line) => `${path}:${line}: use ${instead}`),
        );
      expect(wrong).toEqual([]);
      expect(sample).toMatch(pattern);
    });
  }

  test("no comment switches the compiler off; make the type fit", () => {
    const wrong = src.flatMap(({ path, text }) =>
      linesThatMatch(text, /@ts-(ignore|nocheck|expect-error)/).map((line) => `${path}:${line}`),
    );
    expect(wrong).toEqual([]);
  });

  test("what is allowed looks close to what is not", () => {
    const fine = [
      "new Date(clock.now()).toISOString()",
      "const date: Date = x; new DateTime()",
      "process.exitCode = 1",
      "class StoreError extends AppError {}",
      "const many: Company[] = anything",
      "environment.env",
    ].join("\n");
    expect(BANS.filter(({ pattern }) => pattern.test(fine)).map(({ what }) => what)).toEqual([]);
  });
});

function linesThatMatch(text: string, pattern: RegExp): number[] {
  return [...text.matchAll(new RegExp(pattern.source, `${pattern.flags}g`))].map(
    ({ index }) => text.slice(0, index).split("\n").length,
  );
}

describe("files are small and named for what they hold", () => {
  test("no source file exceeds 400 lines and no test file 600", () => {
    const long = [...src.filter(({ lines }) => lines > 400), ...tests.filter(({ lines }) => lines > 600)].map(
      ({ path, lines }) => `${path}: ${lines} lines; split it by concern`,
    );
    expect(long).toEqual([]);
  });

  test("file names are kebab-case and say more than helpers, utils, manager, base, misc or common", () => {
    const wrong = [...src, ...tests]
      .map(({ path }) => path)
      .filter((path) => {
        const name = posix.basename(path).replace(/(\.test)?\.tsx?$/, "");
        return (
          !/^[a-z0-9]+(-[a-z0-9]+)*$/.test(name) ||
          /(^|-)(helpers?|utils?|manager|base|misc|common)$/.test(name)
        );
      });
    expect(wrong).toEqual([]);
  });
});

describe("the reader of this test", () => {
  test("leaves comments and literals out, and keeps the code inside templates", () => {
    const source = [
      "const a = 'Date.now'; // Date.now",
      "/* Date.now */ const b = `Date.now @{Date.now()} Date.now`;",
      "const c = /Date.now[/'\"`]/.test(x) ? 1 / 2 : `@{`@{y}`}`;",
      'import z from "zod"; export * from "./x.ts"; await import("./y.ts");',
    ]
      .join("\n")
      .replaceAll("@{", "$\u007b");
    const { code, bare } = blank(source);
    expect(bare.match(/Date\.now/g)?.length).toBe(1);
    expect(linesThatMatch(bare, /Date\.now/)).toEqual([2]);
    expect(bare.split("\n")[2]).toContain("? 1 / 2 :");
    expect(importsOf(code)).toEqual(["zod", "./x.ts", "./y.ts"]);
    expect(code.length).toBe(source.length);
  });

  test.each([
    ["return /a'b/.test(x); setTimeout(f)", true],
    ["const a = b / c; setTimeout(f); d / e", true],
    ['const s = "a\\"setTimeout"', false],
    ["f(x)/2; '/'; setTimeout", true],
  ])("%p", (source, found) => {
    expect(/setTimeout/.test(blank(source).bare)).toBe(found);
  });
});
