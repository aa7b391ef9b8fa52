"""Writes the line of every instruction of many standard modules, as CPython itself gives it.

usage: line_tables.py FILE. One JSON object a line: name, first line, the table's bytes, and `at`: pairs of
byte offset and line or null. `live` entries are from `f_lineno` of running frames, `-1` included.
"""

import dis
import json
import os
import sys
import types

MODULES = 200
SKIPPED = {"test", "tests", "lib2to3", "idlelib", "site-packages", "__pycache__"}

# What the standard library has little of: long jumps both ways, decorators, lines beyond 2 bytes.
HARD = (
    "def f(x):\n" + "\n" * 300 + "    return [\n" + "\n" * 200 + "        x,\n\n  x]\n",
    "x = (1 +\n" + "\n" * 70000 + "  int('2'))\n",
    "\n\n@str\n@repr\ndef g(a=1,\n  b=2):\n    '''doc'''\n    yield a\n",
    "try:\n  pass\nfinally:\n" + "".join("  f(%d,\n%sg)\n" % (i, "\n" * (i % 140)) for i in range(200)),
    "async def h():\n  async with a as b:\n    return [i async for i in b if i]\n",
)


def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def table_of(code):
    return list(code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab)


def lines_of(code):
    units = [None] * (len(code.co_code) // 2)
    if hasattr(code, "co_lines"):
        for start, end, line in code.co_lines():
            for unit in range(start // 2, end // 2):
                units[unit] = line
        return units
    # Before 3.10: what `f_lineno` does, by CPython's own function.
    starts = dict(dis.findlinestarts(code))
    line = code.co_firstlineno
    for unit in range(len(units)):
        line = starts.get(2 * unit, line)
        units[unit] = line
    return units


def sources():
    folder = os.path.dirname(os.__file__)
    paths = []
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED)
        paths += [os.path.join(top, name) for name in sorted(names) if name.endswith(".py")]
    # A distribution may link to files that only come with its other packages.
    for path in list(filter(os.path.exists, paths))[:MODULES]:
        with open(path, encoding="utf-8") as source:
            yield os.path.relpath(path, folder), source.read()
    for number, source in enumerate(HARD):
        yield "hard %d" % number, source


def live():
    """Lines of running frames: every frame of the stack at every call and return of some real work."""
    seen = {}

    def look(frame, _event, _argument):
        while frame is not None:
            seen.setdefault(frame.f_code, {})[frame.f_lasti] = frame.f_lineno
            frame = frame.f_back

    import argparse, ast, asyncio, csv, io, textwrap, tokenize

    async def nap():
        await asyncio.sleep(0)
        return [i for i in range(3)]

    work = open(argparse.__file__, encoding="utf-8").read()[:20000]
    unstarted = []
    for source in HARD[2:3]:
        space = {"str": lambda f: f, "repr": lambda f: f}
        exec(compile(source, "hard", "exec"), space)
        unstarted.append(space["g"]())
    sys.setprofile(look)
    try:
        parser = argparse.ArgumentParser()
        parser.add_argument("--x", type=int)
        parser.parse_args(["--x", "3"])
        parser.format_help()
        ast.dump(ast.parse("a = [b for c in d]"))
        list(tokenize.generate_tokens(io.StringIO(textwrap.dedent(work)[:3000]).readline))
        csv.DictWriter(io.StringIO(), ["a"]).writerow({"a": 1})
        asyncio.run(nap())
    except (tokenize.TokenError, IndentationError):
        pass
    finally:
        sys.setprofile(None)
    for generator in unstarted:
        frame = generator.gi_frame
        seen.setdefault(frame.f_code, {})[frame.f_lasti] = frame.f_lineno
    return seen


def main():
    with open(sys.argv[1], "w") as out:
        def write(name, code, at, kind):
            entry = {"name": "%s:%s" % (name, code.co_name), "kind": kind, "at": at,
                     "first_line": code.co_firstlineno, "table": table_of(code)}
            out.write(json.dumps(entry) + "\n")

        for name, source in sources():
            try:
                top = compile(source, name, "exec", dont_inherit=True)
            except SyntaxError:
                continue  # deliberately broken examples
            for code in codes(top):
                at = [[2 * unit, line] for unit, line in enumerate(lines_of(code))]
                write(name, code, at, "static")
        for code, lines in live().items():
            write(code.co_filename, code, sorted(lines.items()), "live")


main()
