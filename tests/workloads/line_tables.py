"""Writes the line of every instruction of many standard modules, as CPython itself gives it.

usage: line_tables.py FILE. One JSON object a line: name, first line, the table's bytes, and for every
code unit its line or null.
"""

import dis
import json
import os
import sys
import types

MODULES = 150


def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def lines_of(code):
    units = [None] * (len(code.co_code) // 2)
    if hasattr(code, "co_lines"):
        for start, end, line in code.co_lines():
            for unit in range(start // 2, end // 2):
                units[unit] = line
        return units, list(code.co_linetable)
    # Before 3.10: what `f_lineno` does, by CPython's own function.
    starts = dict(dis.findlinestarts(code))
    line = code.co_firstlineno
    for unit in range(len(units)):
        line = starts.get(2 * unit, line)
        units[unit] = line
    return units, list(code.co_lnotab)


def main():
    folder = os.path.dirname(os.__file__)
    names = sorted(name for name in os.listdir(folder) if name.endswith(".py"))[:MODULES]
    with open(sys.argv[1], "w") as out:
        for name in names:
            with open(os.path.join(folder, name), encoding="utf-8") as source:
                top = compile(source.read(), name, "exec", dont_inherit=True)
            for code in codes(top):
                lines, table = lines_of(code)
                entry = {"name": f"{name}:{code.co_name}", "first_line": code.co_firstlineno,
                         "table": table, "lines": lines}
                out.write(json.dumps(entry) + "\n")


main()
