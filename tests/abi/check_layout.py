#!/usr/bin/env python3
"""Compares the layout of the public structs and the numbers of the constants with the golden file.

A struct may grow at its end, so its own size may grow; every other line stays for ever:
- `fixed` is the size of a struct that never grows.
- `first` is the size of a struct in the release that brought it. The library refuses a smaller one.

Whatever is new must be in the golden file: `check_layout.py --update` writes it.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

import headers

SOURCES = headers.ROOT / "src"
GOLDEN = pathlib.Path(__file__).with_name("golden-1.0.txt")


def current(include=headers.INCLUDE, sources=SOURCES):
    lines = ["#include <stddef.h>", "#include <stdio.h>", "#include <trireme/trireme.h>"]
    lines.append("int main(void) {")
    for name, fields in headers.structs(include).items():
        lines.append(f'printf("struct {name} size %zu\\n", sizeof({name}));')
        for field in fields:
            lines.append(
                f'printf("field {name}.{field} offset %zu size %zu\\n", '
                f"offsetof({name}, {field}), sizeof((({name} *)0)->{field}));"
            )
    for name in headers.fixed_structs(include):
        lines.append(f'printf("fixed {name} size %zu\\n", sizeof({name}));')
    for name in headers.constants(include):
        lines.append(f'printf("constant {name} %lld\\n", (long long){name});')
    for name, size in first_sizes(sources).items():
        lines.append(f'puts("first {name} size {size}");')
    lines.append("return 0; }")
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "layout.c")
        source.write_text("\n".join(lines))
        program = pathlib.Path(folder, "layout")
        subprocess.run(["cc", "-std=c11", f"-I{include}", source, "-o", program], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def first_sizes(sources=SOURCES):
    """{struct: its size in the release that brought it}, as the library's sources have it."""
    files = [sources / "api/first_size.hpp", *sorted((sources / "kernels").glob("rule_*.inc"))]
    text = "".join(path.read_text() for path in files)
    found = re.findall(r"TRIREME_(?:FIRST_SIZE|RULE_OPTIONS)\((trireme_\w+), (\d+)\)", text)
    return dict(found)


def first_problems(now, include=headers.INCLUDE):
    """First sizes that are missing, or of a struct of this very release and not its size."""
    sizes = dict(re.findall(r"^struct (\w+) size (\d+)$", now, flags=re.M))
    firsts = dict(re.findall(r"^first (\w+) size (\d+)$", now, flags=re.M))
    version = re.findall(r"^constant TRIREME_VERSION_(?:MAJOR|MINOR) (\d+)$", now, flags=re.M)
    releases = headers.releases(include)
    problems = []
    for name in headers.initial(include):
        first, size = firsts.get(name), sizes.get(name)
        if first is None:
            problems.append(f"{name} has no first size in src/api/first_size.hpp")
        elif releases.get(name) == ".".join(version) and first != size:
            problems.append(f"{name} has the first size {first}, but is new with {size} bytes")
    return problems


def differences(golden, now):
    """Differences that break a program compiled against `golden`, and what `golden` lacks."""
    known, found = golden.splitlines(), now.splitlines()
    problems = []
    sizes = dict(re.findall(r"^struct (\w+) size (\d+)$", now, flags=re.M))
    for line in known:
        if match := re.fullmatch(r"struct (\w+) size (\d+)", line):
            size = sizes.get(match.group(1))
            if size is None or int(size) < int(match.group(2)):
                problems.append(f"was: {line}; now: {size}")
        elif line not in found:
            problems.append(f"gone or changed: {line}")
    problems += [f"not in the golden file: {line}" for line in found if line not in known]
    return problems


def main():
    now = current()
    if "--update" in sys.argv:
        GOLDEN.write_text(now)
        return 0
    problems = differences(GOLDEN.read_text(), now) + first_problems(now)
    print("\n".join(problems) or f"layout: {len(now.splitlines())} lines as in {GOLDEN.name}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
