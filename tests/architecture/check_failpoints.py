#!/usr/bin/env python3
"""Every failpoint is in the list, is passed somewhere in the sources, and is named in a test."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = "src/platform/failpoint.cpp"
VISIT = re.compile(r'(?:\bfailpoint|TRIREME_FAILPOINT)\(\s*(?:"(\w+)"|([\w.]+)),\s*"(\w+)"\s*\)')


def listed(text):
    """The names of failpoint.cpp: groups of collectives, their points, and single ones."""

    def strings(array):
        body = re.search(array + r"\[\] = \{(.*?)\};", text, re.S)
        if body is None:
            raise SystemExit(f"{LIST} has no {array}")
        return re.findall(r'"([\w.]+)"', body.group(1))

    collectives, points = strings("kCollectives"), strings("kCollectivePoints")
    single = strings("kOthers") + strings("kNetwork") + strings("kTraining")
    return collectives, points, single


def check(source, sources, tests):
    """`source` is the text of the list, `sources` and `tests` all the texts together."""
    collectives, points, single = listed(source)
    problems = []
    visited, visited_points = set(), set()
    for group, variable, point in VISIT.findall(sources):
        if variable:
            visited_points.add(point)
        else:
            visited.add(f"{group}.{point}")
    known = set(single) | {f"{group}.{point}" for group in collectives for point in points}
    problems += [f"{name} is not in the list" for name in sorted(visited - known)]
    problems += [f"{name} is listed, but passed nowhere" for name in single if name not in visited]
    problems += [
        f"{point} of collectives is listed, but passed nowhere"
        for point in points
        if point not in visited_points
    ]
    named = set(re.findall(r"[\"';]([a-z_]+\.[a-z_]+)", tests))
    problems += [f"{name} is named in no test" for name in single if name not in named]
    # Those of collectives are put together: "OPERATION.POINT".
    literals = set(re.findall(r'"(\w+)"', tests))
    problems += [f"{point} is named in no test" for point in points if point not in literals]
    return problems


def texts(folder, *suffixes):
    paths = sorted(path for path in folder.rglob("*") if path.suffix in suffixes)
    return "\n".join(path.read_text() for path in paths)


def check_tree(root=ROOT):
    return check(
        (root / LIST).read_text(),
        texts(root / "src", ".cpp", ".hpp", ".inc"),
        texts(root / "tests", ".c", ".h", ".cpp", ".hpp", ".inc", ".py"),
    )


def main():
    problems = check_tree()
    print("\n".join(problems) or "failpoints: each is passed, and named in a test")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
