#!/usr/bin/env python3
"""Rooms include one way only, files stay short, and library code does nothing that harms its
host."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Which rooms each room may include besides itself; "public" is include/trireme. From the bottom up.
ALLOWED = {"platform": {"public"}}
ALLOWED["kernels"] = {"platform", "public"}
ALLOWED["sharding"] = {"platform", "public"}
ALLOWED["backends"] = {"kernels"} | ALLOWED["kernels"]
ALLOWED["collectives"] = {"backends", "sharding"} | ALLOWED["backends"]
ALLOWED["optimizers"] = {"collectives", "sharding"} | ALLOWED["collectives"]
ALLOWED["strategies"] = {"optimizers"} | ALLOWED["optimizers"]
ALLOWED["cluster"] = {"platform"}
ALLOWED["api"] = {"strategies", "cluster"} | ALLOWED["strategies"]
ALLOWED["cli"] = {"cluster", "platform", "public"}

MOST_LINES = 800
SOURCES = {".c", ".cpp", ".h", ".hpp", ".cs", ".rs", ".py"}
BUILT = {"target", "build", "bin", "obj"}
# What a library must not do to the program it lives in. Methods called abort() are no harm.
HARM = re.compile(
    r"\b(std::)?(exit|_exit|abort|printf|puts|perror|signal|sigaction|setlocale)\("
    r"|std::c(out|err)\b"
)
METHOD = re.compile(r"(->|\.|[a-z]\w*::|void |Status )(?<!std::)abort\(")


def included(text):
    return re.findall(r'^\s*#\s*include\s*[<"]([^">]+)[">]', text, flags=re.M)


def room_of(include):
    if include.startswith("trireme/"):
        return "public"
    first = include.split("/")[0]
    return first if "/" in include and first in ALLOWED else None


def problems_of_source(path, room, text):
    problems = []
    for include in included(text):
        target = room_of(include)
        if target not in (None, room) and target not in ALLOWED[room]:
            problems.append(f"{path}: room {room} includes {include}, of room {target}")
    if room not in ("cli", "cluster"):
        code = re.sub(r"//.*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))
        code = METHOD.sub("", re.sub(r'"(\\.|[^"\\])*"', '""', code))
        for match in HARM.finditer(code):
            problems.append(f"{path}: {match.group(0)} may harm the host program")
    return problems


def check(root=ROOT):
    problems = []
    for path in sorted((root / "src").rglob("*.[ch]pp")):
        name = path.relative_to(root)
        if name.parts[1] not in ALLOWED:
            problems.append(f"{name}: no such room")
            continue
        problems += problems_of_source(name, name.parts[1], path.read_text())
    for folder in ("include", "src", "bindings", "tests", "tools", "examples"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SOURCES and not BUILT & set(path.relative_to(root).parts):
                lines = path.read_text().count("\n")
                if lines > MOST_LINES:
                    name = path.relative_to(root)
                    problems.append(f"{name}: {lines} lines, more than {MOST_LINES}")
    return problems


def main():
    problems = check()
    print("\n".join(problems) or f"architecture: {len(ALLOWED)} rooms, one way")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
