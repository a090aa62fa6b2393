#!/usr/bin/env python3
"""Rooms include only what rooms.py says, and no class has a friend in another room. Comments name only
methods that exist. Files stay short, and library code does nothing that harms its host."""

import itertools
import re
import sys

import rooms
from rooms import GENERATED, ROOMS, ROOT

MOST_LINES = 800
SOURCES = {".c", ".cpp", ".h", ".hpp", ".inc", ".cs", ".rs", ".py"}
BUILT = {"target", "build", "bin", "obj"}
# Calls by which a library harms the program it lives in. Methods called abort() are no harm.
HARM = re.compile(
    r"\b(std::)?(exit|_exit|_Exit|quick_exit|abort|terminate|raise|kill|alarm|signal|sigaction"
    r"|v?f?printf|v?dprintf|f?puts|f?putc|fputc|putchar|perror|setlocale|fesetround|fesetenv"
    r"|feenableexcept)\s*\("
    r"|std::c(out|err|log)\b"
)
# A failpoint that a test has set kills or stops its own process.
HARM_ON_ORDER = {("src/platform/failpoint.cpp", "kill(")}
METHOD = re.compile(r"(->|\.|[a-z]\w*::|void |Status )(?<!std::)abort\(")
NAMED = re.compile(r"\b([A-Z]\w*)::(\w+)\(\)")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
FRIEND = re.compile(r"\bfriend\s+(?:class|struct)\s+(\w+)\s*;")


def problems_of_table(table=ROOMS):
    """A room may include only rooms above it in the table, and the rooms of one story stand
    together. So neither rooms nor stories include each other in a circle."""
    problems, above = [], {"public"}
    stories = [story for story, _ in itertools.groupby(table, key=rooms.story)]
    problems += [
        f"rooms.py: the rooms of {story} do not stand together in the table"
        for story in sorted(set(stories))
        if stories.count(story) > 1
    ]
    for room, (_, includes) in table.items():
        problems += [
            f"rooms.py: {room} includes {target}, which is not above it in the table"
            for target in includes.split()
            if target not in above
        ]
        above.add(room)
    return problems


def problems_of_source(path, room, text):
    problems = []
    for include in rooms.included(text):
        target = rooms.target_of(include)
        if target in (None, room) or target in ROOMS[room].includes.split():
            continue
        if target != "public" and target not in ROOMS:
            problems.append(f"{path}: includes {include}, of no room that rooms.py names")
        else:
            problems.append(f"{path}: room {room} includes {include}, of room {target}")
    if rooms.story(room) not in ("cli", "launch"):
        code = re.sub(r"//.*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))
        code = METHOD.sub("", re.sub(r'"(\\.|[^"\\])*"', '""', code))
        problems += [
            f"{path}: {match.group(0)} may harm the host program"
            for match in HARM.finditer(code)
            if (str(path), match.group(0)) not in HARM_ON_ORDER
        ]
    return problems


def problems_of_unused(pairs, table=ROOMS):
    """Permissions of the table that no source uses: it would hide an include that is new."""
    return [
        f"rooms.py: {room} includes nothing of {target} any more"
        for room, (_, includes) in table.items()
        for target in includes.split()
        if target != "public" and (room, target) not in pairs
    ]


def problems_of_friends(sources):
    """Friends across rooms. `sources`: (path, room, text) of all."""
    homes, problems = {}, []
    for _, room, text in sources:
        for name in re.findall(
            r"^\s*(?:class|struct)\s+(\w+)\s*(?:final\s*)?(?::[^:;{]*)?\{", text, flags=re.M
        ):
            homes.setdefault(name, set()).add(room)
    for path, room, text in sources:
        problems += [
            f"{path}: {name} is a friend, but of another room"
            for name in FRIEND.findall(text)
            if room not in homes.get(name, {room})
        ]
    return problems


def problems_of_comments(sources):
    """Methods that comments name, such as "Mesh::dial()", and that no class has. `sources`: as above."""
    code = {path: COMMENT.sub("", text) for path, _, text in sources}
    homes, problems = {}, []
    for path, text in code.items():
        for name in re.findall(r"^\s*(?:class|struct)\s+(\w+)[^;()]*\{", text, flags=re.M):
            homes.setdefault(name, []).append(path)
    for path, _, text in sources:
        for owner, method in NAMED.findall(" ".join(COMMENT.findall(text))):
            places = [code[home] for home in homes.get(owner, [])]
            if not any(re.search(rf"\b{method}\(", place) for place in places):
                problems.append(f"{path}: a comment names {owner}::{method}(), which is not there")
    return problems


def check(root=ROOT):
    problems = problems_of_table()
    sources = list(rooms.sources(root))
    for path, room, text in sources:
        if room not in ROOMS:
            problems.append(f"{path}: rooms.py names no room {room}")
        else:
            problems += problems_of_source(path, room, text)
    problems += problems_of_unused(rooms.edges(sources))
    problems += problems_of_friends(sources)
    problems += problems_of_comments(sources)
    return problems + problems_of_lengths(root)


def problems_of_lengths(root):
    """Files that people write. A generated file is as long as its header makes it."""
    problems = []
    for folder in ("include", "src", "bindings", "tests", "tools", "examples"):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root)
            if path.suffix not in SOURCES or BUILT & set(name.parts):
                continue
            text = path.read_text()
            lines = text.count("\n")
            if lines > MOST_LINES and not GENERATED.match(text):
                problems.append(f"{name}: {lines} lines, more than {MOST_LINES}")
    return problems


def main():
    problems = check()
    print("\n".join(problems) or f"architecture: {len(ROOMS)} rooms, one way")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
