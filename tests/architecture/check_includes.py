#!/usr/bin/env python3
"""Rooms include only what rooms.py says, no class has friends in another room but for those listed
here, files stay short, and library code does nothing that harms its host."""

import itertools
import re
import sys

import rooms
from rooms import ROOMS, ROOT

# A friend across rooms, and the seam that is to take its place. This list only gets shorter.
FRIENDS = {
    ("model", "Optimizer"): "ShardView: what an optimizer sees of a model",
    ("model", "Trainer"): "ShardView: what a trainer sees of a model",
}

MOST_LINES = 800
SOURCES = {".c", ".cpp", ".h", ".hpp", ".inc", ".cs", ".rs", ".py"}
BUILT = {"target", "build", "bin", "obj"}
# What a library must not do to the program it lives in. Methods called abort() are no harm.
HARM = re.compile(
    r"\b(std::)?(exit|_exit|abort|printf|puts|perror|signal|sigaction|setlocale)\("
    r"|std::c(out|err)\b"
)
METHOD = re.compile(r"(->|\.|[a-z]\w*::|void |Status )(?<!std::)abort\(")
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
        for match in HARM.finditer(code):
            problems.append(f"{path}: {match.group(0)} may harm the host program")
    return problems


def problems_of_unused(pairs, table=ROOMS):
    """What the table permits and nobody does: it would hide an include that is new."""
    return [
        f"rooms.py: {room} includes nothing of {target} any more"
        for room, (_, includes) in table.items()
        for target in includes.split()
        if target != "public" and (room, target) not in pairs
    ]


def problems_of_friends(sources, known=FRIENDS):
    """`sources`: (path, room, text) of all."""
    homes, friends, problems = {}, set(), []
    for _, room, text in sources:
        for name in re.findall(
            r"^\s*(?:class|struct)\s+(\w+)\s*(?:final\s*)?(?::[^:;{]*)?\{", text, flags=re.M
        ):
            homes.setdefault(name, set()).add(rooms.story(room))
    for path, room, text in sources:
        for name in FRIEND.findall(text):
            at_home = rooms.story(room) in homes.get(name, {rooms.story(room)})
            if not at_home:
                friends.add((room, name))
                if (room, name) not in known:
                    problems.append(f"{path}: {name} is a friend, but of another room")
    return problems + [
        f"FRIENDS lists {name} in {room}, who is none"
        for room, name in sorted(set(known) - friends)
    ]


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
    print("\n".join(problems) or f"architecture: {len(ROOMS)} rooms, one way")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
