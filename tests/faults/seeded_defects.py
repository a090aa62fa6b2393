#!/usr/bin/env python3
"""Tests of the tests: builds the library with one defect at a time, which a named test must
catch.

    seeded_defects.py [--list] [NAME-PART...]

Takes all defects, or those whose name holds a NAME-PART; --list prints them and builds nothing.
Works on a copy of the tree in build/defects. Last line: "N passed, N failed, 0 skipped".
"""

import argparse
import filecmp
import os
import pathlib
import re
import shutil
import subprocess
import sys

from defects import (
    activation,
    context,
    experts,
    executor,
    early_roots,
    gradients,
    deep,
    device_api,
    device_models,
    device_moves,
    device_nccl,
    device_units,
    device_trainers,
    device_work,
    devices,
    layers,
    lent,
    library,
    lines,
    mail,
    network,
    parallel,
    passed_cells,
    pipeline,
    placements,
    rebalance,
    rooted,
    stage_sizes,
    stages,
    tied,
    tiles,
    together,
    vocabulary,
    wide_axes,
    wide_layers,
    windows,
)
from defects.settings import BUILD, DOTNET, FLIPS, FOLDER, OVER_GLOO, ROOT

COPY = FOLDER / "source"
SECONDS = 300  # a test that hangs has caught the defect, too
TOPICS = (
    activation,
    library,
    network,
    lines,
    rooted,
    early_roots,
    passed_cells,
    lent,
    placements,
    together,
    layers,
    tiles,
    gradients,
    vocabulary,
    wide_layers,
    wide_axes,
    context,
    experts,
    pipeline,
    executor,
    stage_sizes,
    stages,
    tied,
    rebalance,
    mail,
    deep,
    devices,
    device_work,
    device_moves,
    device_api,
    device_nccl,
    device_trainers,
    device_models,
    device_units,
    parallel,
    windows,
)
DEFECTS = [defect for topic in TOPICS for defect in topic.DEFECTS]


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, **options)


def files_below(folder):
    ignored = {"build", ".git", "__pycache__", "target", "bin", "obj"}
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in ignored]
        yield from (pathlib.Path(path, name).relative_to(folder) for name in files)


def copy_tree():
    """Writes only what differs: a file that had the last defect of an earlier run is younger than
    what was built from it, and must stay so."""
    wanted = set(files_below(ROOT))
    for file in set(files_below(COPY)) - wanted:
        (COPY / file).unlink()
    for file in wanted:
        there = COPY / file
        if there.is_file() and filecmp.cmp(ROOT / file, there, shallow=False):
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, there)
        shutil.copymode(ROOT / file, there)


def build(tests):
    programs = {test.split()[0] for test in tests if not test.startswith(DOTNET)}
    if any(test.startswith(DOTNET) for test in tests):
        script = COPY / "bindings" / "dotnet" / "build.sh"
        if run(["bash", script, BUILD / "dotnet"]).returncode != 0:
            return False
    return (
        run(
            ["cmake", "--build", BUILD, "--target", "trireme", "trireme_cuda", *programs]
        ).returncode
        == 0
    )


def caught(test):
    # As every day: the long sweeps would come to the end of their time, with a defect or without.
    usual = {name: value for name, value in os.environ.items() if name != "TRIREME_TEST_LONG"}
    program, *more = test.split()
    if test.startswith(DOTNET):
        command = ["mono", "--debug", BUILD / "dotnet" / "Trireme.Tests.exe", *more]
        usual["LD_LIBRARY_PATH"] = str(BUILD)
        usual["TRIREME_LIBRARY"] = str(BUILD / "libtrireme.so.1")
        usual["TRIREME_SOURCE"] = str(COPY)
    else:
        command = [BUILD / "tests" / program]
        usual.update(word.split("=", 1) for word in more)
    try:
        return run(command, timeout=SECONDS, env=usual).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def places(text, old):
    """Where `old` stands in a source, however the lines of both are broken."""
    words = re.findall(r"\w+|[^\w\s]", old)
    return list(re.finditer(r"\s*".join(re.escape(word) for word in words), text))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="print the defects, build nothing")
    parser.add_argument("parts", nargs="*", metavar="NAME-PART", help="part of a defect's name")
    asked = parser.parse_args()
    chosen = [d for d in DEFECTS if not asked.parts or any(a in d[0] for a in asked.parts)]
    if not chosen:
        parser.error(f"no defect's name holds {' or '.join(asked.parts)}")
    if asked.list:
        print("\n".join(f"{name}, by {test}" for name, _, _, _, test in chosen))
        return 0
    copy_tree()
    command = ["cmake", "--preset", "release", "-B", BUILD, "-DTRIREME_NVCC=OFF"]
    if shutil.which("ccache"):
        command += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")]
    if run(command, cwd=COPY).returncode != 0:
        print("the tree cannot be configured\n0 passed, 1 failed, 0 skipped")
        return 1
    skipped = 0
    if not (shutil.which("mcs") and shutil.which("mono")):
        there = [defect for defect in chosen if not defect[4].startswith(DOTNET)]
        skipped = len(chosen) - len(there)
        chosen = there
        print("skipped: defects of the C# binding: Mono is missing")
    if run(["cmake", "--build", BUILD, "--target", "trireme_gloo"]).returncode != 0:
        there = [defect for defect in chosen if defect[4] not in (OVER_GLOO, FLIPS)]
        skipped += len(chosen) - len(there)
        chosen = there
        print("skipped: defects that are seen over Gloo: it is not installed")
    tests = sorted({defect[4] for defect in chosen})
    if not build(tests):
        print("the tree does not build\n0 passed, 1 failed, 0 skipped")
        return 1
    # A test that fails anyway, or is skipped here, catches nothing.
    sound = {test for test in tests if not caught(test)}
    for test in tests:
        if test not in sound:
            print(f"FAILED: {test} does not pass without a defect")
    passed = 0
    for name, file, old, new, test in chosen:
        path = COPY / file
        text = path.read_text()
        found = places(text, old)
        if len(found) != 1:
            print(f"FAILED  {name}: its place in {file} is found {len(found)} times")
            continue
        path.write_text(text[: found[0].start()] + new + text[found[0].end() :])
        if not build([test]):
            print(f"FAILED  {name}: does not build")
        elif test in sound and caught(test):
            passed += 1
            print(f"caught: {name}, by {test}")
        else:
            print(f"FAILED  {name}: {test} tells nothing of it")
        sys.stdout.flush()
        path.write_text(text)
    print(f"{passed} passed, {len(chosen) - passed} failed, {skipped} skipped")
    return 0 if passed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
