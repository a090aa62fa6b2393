#!/usr/bin/env python3
"""An exercise: adds a made-up element-wise update rule to a copy of the tree, and trains with it.

It edits at most 4 files by hand, which it counts. docs/architecture.md describes the same steps.

    new_rule.py OBJECTS COMPILER ARCHIVE...

OBJECTS lists the object files of the library. The exercise compiles the sources that know the rule
and links them with these. With TRIREME_TEST_LONG it builds the library of the copy as a whole.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MOST_FILES = 4
COPIED = ("bindings", "cmake", "docs", "include", "src", "tests", "tools")
FILES = ("CMakeLists.txt", "README.md")
BUILT = shutil.ignore_patterns("build", "target", "bin", "obj", "__pycache__", "*.so", "*.so.*")
GENERATED = ("bindings/", "tests/abi/golden-")

STRUCT = """/** SOFTSIGN. */
typedef struct trireme_softsign_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** b1, the decay of the mean of gradients. In (0, 1). Default: 0.9. */
    double beta1;
    /** A mean of this size makes half of the longest step. Above 0, finite. Default: 0.125. */
    double limit;
} trireme_softsign_options; /* since 1.0 */

/** Options of SOFTSIGN with all defaults. */
#define TRIREME_SOFTSIGN_OPTIONS_INIT \\
    TRIREME_INIT_KIND(trireme_softsign_options, TRIREME_RULE_SOFTSIGN)

"""
FORMULA = """ * SOFTSIGN:
 * - g += wd * p; m = b1 * m + (1 - b1) * g; p -= a * m / (|m| + limit).
 * - State: m.
 *
"""
USE = """#include <trireme/trireme.h>
double limit(void) {
    trireme_softsign_options rule = TRIREME_SOFTSIGN_OPTIONS_INIT;
    return rule.base.kind == TRIREME_RULE_SOFTSIGN ? rule.limit : -1;
}
"""


def replace(path, pattern, text):
    """Puts `text` for the one place in the file where `pattern` is; text(match) if it is called."""
    before = path.read_text()
    after, count = re.subn(pattern, text if callable(text) else lambda _: text, before)
    if count != 1:
        raise SystemExit(f"{path}: {pattern!r} is there {count} times")
    path.write_text(after)


def add_rule(copy):
    """All that is done by hand."""
    header = copy / "include/trireme/rules.h"
    replace(
        header,
        r"(TRIREME_RULE_\w+ = )(\d+)\n\};",
        lambda last: f"{last[1]}{last[2]},\n    TRIREME_RULE_SOFTSIGN = {int(last[2]) + 1}\n}};",
    )
    replace(header, r"(?=/\*\* Most state vectors)", STRUCT)
    replace(copy / "include/trireme/optimizer.h", r"(?= \* LAMB \(You)", FORMULA)
    shutil.copy(HERE / "softsign.hpp", copy / "src/kernels/rule_softsign.inc")
    rules = copy / "src/kernels/rules.inc"
    replace(rules, r"(?=\n// By number\.)", '#include "kernels/rule_softsign.inc"\n')
    replace(rules, r"(?<=\))(?=\n// clang-format on)", " \\\n  ROW(SOFTSIGN, softsign, Softsign)")


def texts(tree):
    return {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in tree.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def changed(before, after):
    names = before.keys() | after.keys()
    return sorted(name for name in names if before.get(name) != after.get(name))


def check_by_hand(names):
    print("by hand:", *names)
    if len(names) > MOST_FILES:
        raise SystemExit(f"{len(names)} files are changed by hand, more than {MOST_FILES}")


def check_generated(names):
    if wrong := [name for name in names if not name.startswith(GENERATED)]:
        raise SystemExit(f"tools changed {wrong}, which are no generated files")
    print(f"generated: {len(names)} files")


def run(*command, **options):
    subprocess.run([str(each) for each in command], check=True, **options)


def build(copy, objects, compiler, archives):
    """The library of the copy: what knows the rule is compiled, all else is linked."""
    flags = ["-std=c++20", "-O1", "-fPIC", "-ffp-contract=off", "-fno-math-errno"]
    flags += ["-fvisibility=hidden", "-fvisibility-inlines-hidden", "-DTRIREME_NO_VECTOR_LOOPS"]
    flags += [f"-I{copy / 'src'}", f"-I{copy / 'include'}"]
    made, running = [], []
    for name in ("loops_scalar", "rules", "update", "vector"):
        made.append(copy / f"{name}.o")
        source = copy / "src/kernels" / f"{name}.cpp"
        running.append(subprocess.Popen([compiler, *flags, "-c", source, "-o", made[-1]]))
    if any([each.wait() for each in running]):
        raise SystemExit("the copy does not compile")
    library = copy / "libtrireme.so.1"
    script = f"-Wl,--version-script={copy / 'src/api/trireme.map'}"
    # Of two definitions the first one counts.
    link = [
        compiler,
        "-shared",
        "-o",
        library,
        "-Wl,-z,muldefs",
        "-Wl,-z,nodelete",
        "-Wl,--no-undefined",
    ]
    run(*link, script, *made, f"@{objects}", *archives, "-pthread")
    return library


def build_whole(copy):
    options = ["-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_BUILD_TYPE=Release"]
    options += [f"-DTRIREME_BUILD_{each}=OFF" for each in ("TESTS", "EXAMPLES", "CLI")]
    run("cmake", "-G", "Ninja", "-S", copy, "-B", copy / "build", *options)
    run("cmake", "--build", copy / "build", "--target", "trireme", "-j2")
    return copy / "build/libtrireme.so.1"


def main():
    objects, compiler, *archives = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, "copy")
        for name in COPIED:
            shutil.copytree(ROOT / name, copy / name, ignore=BUILT)
        for name in FILES:
            shutil.copy(ROOT / name, copy)
        before = texts(copy)
        add_rule(copy)
        by_hand = texts(copy)
        check_by_hand(changed(before, by_hand))
        python = [sys.executable, "-B"]
        run(*python, copy / "tools/bindgen.py")
        run(*python, copy / "tests/abi/check_layout.py", "--update")
        check_generated(changed(by_hand, texts(copy)))
        for gate in (
            "abi/check_comments.py",
            "architecture/check_prose.py",
            "architecture/check_includes.py",
        ):
            run(*python, copy / "tests" / gate)
        run(
            "cc",
            "-std=c11",
            f"-I{copy / 'include'}",
            "-fsyntax-only",
            "-xc",
            "-",
            input=USE.encode(),
        )
        if os.environ.get("TRIREME_TEST_LONG"):
            library = build_whole(copy)
        else:
            library = build(copy, pathlib.Path(objects).resolve(), compiler, archives)
        environment = dict(os.environ, TRIREME_LIBRARY=str(library))
        environment["PYTHONPATH"] = str(copy / "bindings/python")
        run(*python, HERE / "train.py", env=environment)


if __name__ == "__main__":
    main()
