#!/usr/bin/env python3
"""Lays out the sources, or says with --check which ones are laid out in another way.

    format.py [--check [FORMATTER]]     FORMATTER: that one alone

Each language has the formatter that its users know: clang-format, ruff and rustfmt. A formatter
of another release may break lines elsewhere, so only the releases below are used. The C# sources
have .editorconfig alone. A check that looks at nothing ends with 77. Generated files look as tools/bindgen.py writes them.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
from collections import namedtuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
SKIPPED = 77  # what ctest takes for "skipped"

Formatter = namedtuple("Formatter", "name version command check patterns leaves_out")

FORMATTERS = (
    Formatter(
        "clang-format",
        r"version 14\.",
        ["clang-format", "-i", "--style=file"],
        ["clang-format", "--dry-run", "-Werror", "--style=file"],
        ["src/**/*.cpp", "src/**/*.hpp", "src/**/*.inc", "tests/**/*.cpp", "tests/**/*.hpp"]
        + ["examples/**/*.cpp", "examples/**/*.hpp"],
        None,
    ),
    Formatter(
        "clang-format",
        r"version 14\.",
        ["clang-format", "-i", "--style=file:include/.clang-format"],
        ["clang-format", "--dry-run", "-Werror", "--style=file:include/.clang-format"],
        ["include/**/*.h", "tests/**/*.c", "tests/**/*.h", "tests/**/*.inc", "examples/**/*.c"],
        None,
    ),
    Formatter(
        "ruff",
        r"ruff 0\.17\.",
        ["ruff", "format", "--force-exclude", "--quiet"],
        ["ruff", "format", "--force-exclude", "--check"],
        [f"{folder}/**/*.py" for folder in ("bindings", "examples", "tests", "tools")],
        None,
    ),
    Formatter(
        "rustfmt",
        r"rustfmt 1\.",
        ["rustfmt", "--edition", "2021"],
        ["rustfmt", "--edition", "2021", "--check"],
        [f"{folder}/**/*.rs" for folder in ("bindings", "examples", "tests")],
        "/src/abi/",
    ),
)


def sources(formatter: Formatter, root: pathlib.Path) -> list[str]:
    """The files of a formatter, without what a build has made."""
    names = {
        path.relative_to(root).as_posix()
        for pattern in formatter.patterns
        for path in root.glob(pattern)
    }
    left_out = (formatter.leaves_out, "/target/", "/build/", "__pycache__")
    return sorted(
        name for name in names if not any(each in f"/{name}" for each in left_out if each)
    )


def is_there(formatter: Formatter) -> bool:
    return re.search(formatter.version, version_of(formatter)) is not None


def version_of(formatter: Formatter) -> str:
    """The formatter's own version text; "" if it is not installed."""
    try:
        said = subprocess.run([formatter.name, "--version"], capture_output=True, text=True)
    except OSError:
        return ""
    return said.stdout.strip()


def differences(formatter: Formatter, files: list[str], root: pathlib.Path = ROOT) -> str:
    """The changes that the formatter would make; "" if nothing."""
    done = subprocess.run([*formatter.check, *files], cwd=root, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[:4000] or "differs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    names = sorted({formatter.name for formatter in FORMATTERS})
    parser.add_argument("--check", nargs="?", const="", choices=["", *names], metavar="FORMATTER")
    check = parser.parse_args().check
    return run([each for each in FORMATTERS if not check or each.name == check], check is not None)


def run(formatters: list[Formatter], check: bool) -> int:
    found = skipped = 0
    for formatter in formatters:
        files = sources(formatter, ROOT)
        if not is_there(formatter):
            said = version_of(formatter) or "not installed"
            print(f"skipped: {len(files)} files of {formatter.name}: {said}")
            skipped += 1
            continue
        if not check:
            subprocess.run([*formatter.command, *files], cwd=ROOT, check=True)
            continue
        problems = differences(formatter, files)
        if problems:
            found += 1
            print(problems, "python3 tools/format.py lays them out", sep="\n")
    if found:
        return 1
    return SKIPPED if check and skipped == len(formatters) else 0


if __name__ == "__main__":
    sys.exit(main())
