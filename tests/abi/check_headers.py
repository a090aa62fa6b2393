#!/usr/bin/env python3
"""Every public header compiles alone, as C11 and as C++17, with all warnings as errors."""

import pathlib
import subprocess
import sys
import tempfile

import headers

MODES = (
    ("cc", "-std=c11", "c", ["-Wstrict-prototypes", "-Wpadded"]),
    ("c++", "-std=c++17", "c++", []),
)
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]


def problems_of(header, include):
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "alone.c")
        # Twice: the guard must hold.
        line = f"#include <trireme/{header.name}>\n"
        source.write_text(line * 2 + "int main(void) { return 0; }\n")
        for compiler, standard, language, more in MODES:
            command = [compiler, standard, "-x", language, *STRICT, *more, f"-I{include}", source]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode != 0:
                problems.append(f"{header.name} as {standard}: {run.stderr.strip()}")
    return problems


def main():
    found = headers.headers()
    problems = [text for header in found for text in problems_of(header, headers.INCLUDE)]
    count = len(found)
    print("\n".join(problems) or f"headers: {count} compile alone in {len(MODES)} languages")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
