import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { TOOL_RESULT_MAX_CHARS } from "../../src/core/limits.ts";
import { buildCatalogue, type ListedTool } from "../../src/mcp/catalogue.ts";
import { capText, resultText } from "../../src/mcp/result-text.ts";
import { redactor, stderrLines } from "../../src/mcp/stderr-lines.ts";

const listed = (...names: string[]): ListedTool[] =>
  names.map((name) => ({ name, description: "", inputSchema: {}, digest: `d-${name}`, readOnly: false }));

describe("tool names", () => {
  test("a tool whose prefixed name clashes too is left out with a warning", () => {
    const { tools, warnings } = buildCatalogue([
      { server: "a", tools: listed("x", "mcp__b__x") },
      { server: "b", tools: listed("x", "y") },
    ]);
    expect(tools.map((tool) => tool.name)).toEqual(["x", "mcp__b__x", "y"]);
    expect(warnings.map(({ server, code }) => [server, code])).toEqual([["b", "mcp_tool_name_taken"]]);
  });

  test("are unique and acceptable to every provider, whatever servers list", () => {
    const tools = fc.array(fc.oneof(fc.constantFrom("a", "b.c", ""), fc.string({ maxLength: 100 })));
    fc.assert(
      fc.property(tools, tools, (first, second) => {
        const catalogue = buildCatalogue([
          { server: "one", tools: listed(...first) },
          { server: "two", tools: listed(...second) },
        ]);
        const names = catalogue.tools.map((tool) => tool.name);
        expect(new Set(names).size).toBe(names.length);
        for (const name of names) expect(name).toMatch(/^[A-Za-z0-9_-]{1,64}$/);
        expect(names.length + catalogue.warnings.length).toBe(first.length + second.length);
      }),
    );
  });
});

describe("result texts", () => {
  test("structured content is added unless a text repeats it", () => {
    const structuredContent = { open: 3, closed: 4 };
    const said = (text: string) => resultText({ content: [{ type: "text", text }], structuredContent });
    expect(resultText({ content: [], structuredContent })).toBe('{"open":3,"closed":4}');
    expect(said("three")).toBe('three\n{"open":3,"closed":4}');
    expect(said('{ "closed": 4, "open": 3 }')).toBe('{ "closed": 4, "open": 3 }');
    expect(said('{"open":')).toBe('{"open":\n{"open":3,"closed":4}');
    const wrapped = (text: string, value: unknown) =>
      resultText({ content: [{ type: "text", text }], structuredContent: { result: value } });
    expect(wrapped("all of it\n", "all of it\n")).toBe("all of it\n");
    expect(wrapped("[1, 2]", [1, 2])).toBe("[1, 2]");
    expect(wrapped("most of it", "all of it")).toBe('most of it\n{"result":"all of it"}');
    expect(resultText({ content: [] })).toBe("(no content)");
  });

  test("resources are named in a line, and their text is given", () => {
    const text = resultText({
      content: [
        { type: "resource_link", name: "report", uri: "file:///r.pdf" },
        { type: "resource", resource: { uri: "file:///a.txt", text: "hello" } },
        { type: "resource", resource: { uri: "file:///b.bin", blob: btoa("1234") } },
      ],
    });
    expect(text).toBe(
      "[resource: report file:///r.pdf]\n[resource: file:///a.txt]\nhello\n[resource: file:///b.bin, 4 bytes]",
    );
  });

  test("at the cap a text is whole, one character more and it is cut to the cap with a note", () => {
    const whole = "x".repeat(TOOL_RESULT_MAX_CHARS);
    expect(capText(whole)).toBe(whole);
    const cut = capText(`${whole}y`);
    expect(cut).toHaveLength(TOOL_RESULT_MAX_CHARS);
    expect(cut).toEndWith(`[cut: the result had ${TOOL_RESULT_MAX_CHARS + 1} characters]`);
  });

  test("that are cut keep what must follow them", () => {
    const cut = capText("x".repeat(TOOL_RESULT_MAX_CHARS), "\nthe end");
    expect(cut).toHaveLength(TOOL_RESULT_MAX_CHARS);
    expect(cut).toEndWith(`[cut: the result had ${TOOL_RESULT_MAX_CHARS} characters]\nthe end`);
  });

  test("never hold half a surrogate pair, neither from a server nor from the cut", () => {
    expect(capText("half \ud83d pair")).toBe("half \ufffd pair");
    for (const lead of ["", "x"]) {
      const cut = capText(lead + "😀".repeat(TOOL_RESULT_MAX_CHARS));
      expect(cut.isWellFormed()).toBe(true);
      expect(cut).toHaveLength(TOOL_RESULT_MAX_CHARS);
    }
  });
});

describe("standard error", () => {
  const collect = (...secrets: string[]) => {
    const lines: string[] = [];
    return { lines, ...stderrLines(redactor(secrets), (line) => lines.push(line)) };
  };

  test("comes in whole lines however it is cut up, with secrets taken out even across the cuts", () => {
    const text = "one\ntwo with secret-1234 in it\n\nthree";
    fc.assert(
      fc.property(fc.array(fc.nat(text.length)), (cuts) => {
        const { lines, write, end } = collect("secret-1234");
        const at = [0, ...cuts.sort((a, b) => a - b), text.length];
        for (let i = 1; i < at.length; i += 1) write(text.slice(at[i - 1], at[i]));
        end();
        expect(lines).toEqual(["one", "two with [redacted] in it", "three"]);
      }),
    );
  });

  test("a long line is cut after it was redacted, and memory stays bounded", () => {
    const { lines, write, end } = collect("secret-1234");
    write(`${"x".repeat(495)}secret-1234`);
    for (let i = 0; i < 100; i += 1) write("y".repeat(10_000));
    write("\nnext");
    end();
    expect(lines).toHaveLength(2);
    expect(lines[0]).toHaveLength(501);
    expect(lines[0]).not.toContain("secret");
    expect(lines[1]).toBe("next");
  });
});
