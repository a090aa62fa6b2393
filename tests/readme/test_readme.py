#!/usr/bin/env python3
"""Compiles and runs the programs that the README, docs and the C# binding's page show; each must
print 6 on each of four ranks. The tutorials are followed by their own commands and must learn the weights that made the
samples. The two programs of docs/pytorch.md must train to the same parameters but for rounding. Every link of a page
leads to a file and a heading that exist.

    test_readme.py [TEST...]

Needs TRIREME_LIBRARY, the path of libtrireme.so.1. It names a failed test by a line `FAILED  TEST: ...`.
Last line: "N passed, N failed, N skipped".
"""

import functools
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ["TRIREME_LIBRARY"])
WANT = [f"rank {rank}: 6" for rank in range(4)]
ENVIRONMENT = dict(
    os.environ, LD_LIBRARY_PATH=str(LIBRARY.parent), TRIREME_LIB_DIR=str(LIBRARY.parent)
)


def blocks(page):
    """{language: its program} of a page's first block in each language."""
    found = {}
    for language, text in re.findall(
        r"^```(\w+)\n(.*?)^```", (ROOT / page).read_text(), flags=re.S | re.M
    ):
        found.setdefault(language, text)
    return found


def run(*command, **more):
    arguments = [str(part) for part in command]
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=600, env=ENVIRONMENT, **more
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def run_c(text, folder):
    (folder / "readme.c").write_text(text)
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{ROOT}/include"]
    run("cc", *options, folder / "readme.c", LIBRARY, "-o", folder / "readme")
    return run(folder / "readme")


def run_python(text, folder):
    (folder / "readme.py").write_text(text)
    ENVIRONMENT["PYTHONPATH"] = str(ROOT / "bindings/python")
    return run(sys.executable, folder / "readme.py")


def run_csharp(text, folder):
    (folder / "readme.cs").write_text(text)
    run("bash", ROOT / "bindings/dotnet/build.sh", folder)
    run("mcs", "-langversion:7.2", "-out:readme.exe", "-r:Trireme.dll", "readme.cs", cwd=folder)
    return run("mono", folder / "readme.exe")


def run_rust(text, folder):
    (folder / "src").mkdir()
    (folder / "src/main.rs").write_text(text)
    (folder / "Cargo.toml").write_text(
        '[package]\nname = "readme"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n'
        f'trireme = {{ path = "{ROOT}/bindings/rust/trireme" }}\n[workspace]\n'
    )
    ENVIRONMENT["CARGO_TARGET_DIR"] = str(folder / "target")
    return run("cargo", "run", "-q", "--offline", cwd=folder)


LANGUAGES = {
    "c": (run_c, "cc"),
    "python": (run_python, "cc"),
    "csharp": (run_csharp, "mcs"),
    "rust": (run_rust, "cargo"),
}
DOTNET_PAGE = "bindings/dotnet/README.md"


PAGES = {
    "README.md": ["python"],
    "docs/first-program.md": LANGUAGES,
    "docs/collectives.md": ["python", "csharp", "rust"],
    DOTNET_PAGE: ["csharp"],
}


def run_dotnet_page(program, folder):
    """By the page's own commands, in a folder that looks like that of the project."""
    (folder / "train.cs").write_text(program)
    (folder / "build").mkdir()
    (folder / "build/release").symlink_to(LIBRARY.parent)
    for name in ("bindings", "examples"):
        (folder / name).symlink_to(ROOT / name)
    commands = blocks(DOTNET_PAGE)["sh"]
    printed = run("bash", "-euo", "pipefail", "-c", commands, cwd=folder).splitlines()
    if sorted(printed[len(WANT) :]) != WANT:  # the launcher's run
        raise RuntimeError(f"printed {printed}")
    return "\n".join(printed[: len(WANT)])


# Of each tutorial: the program's file, and the tool that builds it.
TUTORIALS = {
    "c": ("line.c", "cc"),
    "python": ("line.py", "cc"),
    "csharp": ("line.cs", "mcs"),
    "rust": ("src/main.rs", "cargo"),
}


def run_tutorial(language, folder):
    """Does what the page says, in a folder that looks like that of the project."""
    page = blocks(f"docs/first-model-{language}.md")
    program = folder / TUTORIALS[language][0]
    program.parent.mkdir(exist_ok=True)
    program.write_text(page[language])
    (folder / "build").mkdir()
    (folder / "build/release").symlink_to(LIBRARY.parent)
    for name in ("bindings", "examples", "include"):
        (folder / name).symlink_to(ROOT / name)
    if language == "rust":
        (folder / "Cargo.toml").write_text(
            '[package]\nname = "line"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n'
            f'trireme = {{ path = "{ROOT}/bindings/rust/trireme" }}\n[workspace]\n'
        )
    ENVIRONMENT.update(
        PYTHONPATH=str(ROOT / "bindings/python"),
        TRIREME_LIBRARY=str(LIBRARY),
        CARGO_TARGET_DIR=str(folder / "target"),
        PATH=f"{LIBRARY.parent}:{os.environ['PATH']}",
    )
    commands = page["sh"].replace("FOLDER", str(folder))
    printed = run("bash", "-euo", "pipefail", "-c", commands, cwd=folder).splitlines()
    # One rank, then four.
    want = [f"rank {rank}: 1.000 2.000 3.000 4.000" for rank in (0, 0, 1, 2, 3)]
    if sorted(printed) != want:
        raise RuntimeError(f"printed {printed}")


def anchors(text):
    """The names that headings have in links."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), flags=re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(root):
    """Links of the pages below a folder that lead nowhere."""
    broken = []
    pages = [root / "README.md", *root.glob("docs/*.md"), *root.glob("bindings/*/README.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if re.match(r"\w+:", target):
                continue
            if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
                broken.append(f"{page.relative_to(root)}: {target}")
    return broken


def check_links():
    if broken := broken_links(ROOT):
        raise RuntimeError("; ".join(broken))
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "README.md").write_text("# A\n[good](#a) [no page](docs/b.md) [no heading](#b)\n")
        if len(broken_links(root)) != 2:
            raise RuntimeError("links that lead nowhere are not noticed")


def trained(program, folder):
    """The parameters that each of two ranks prints after training."""
    (folder / "train.py").write_text(program)
    environment = dict(
        ENVIRONMENT, PYTHONPATH=str(ROOT / "bindings/python"), TRIREME_LIBRARY=str(LIBRARY)
    )
    # By itself the launcher names PyTorch's usual port, which another job of this machine may have.
    command = [
        LIBRARY.parent / "trireme",
        "run",
        "--standalone",
        "--no-prefix",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*command, "--", sys.executable, folder / "train.py"],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    if done.returncode != 0:
        raise RuntimeError(f"ended with {done.returncode}: {done.stdout}{done.stderr}")
    return dict(re.findall(r"^(rank \d): (\S+)$", done.stdout, flags=re.M))


def check_pytorch():
    text = (ROOT / "docs/pytorch.md").read_text()
    before, after = re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)[:2]
    with tempfile.TemporaryDirectory() as folder:
        theirs = trained(before, pathlib.Path(folder))
        # The page says that nothing else changes.
        for strategy in ("data_parallel", "zero1", "zero2"):
            ours = trained(after.replace("data_parallel", strategy), pathlib.Path(folder))
            if set(theirs) != set(ours) or len(ours) != 2 or len(set(ours.values())) != 1:
                raise RuntimeError(f"PyTorch printed {theirs}, {strategy} {ours}")
            if abs(float(ours["rank 0"]) / float(theirs["rank 0"]) - 1) > 1e-5:
                raise RuntimeError(f"PyTorch trains to {theirs}, {strategy} to {ours}")


def check_program(page, language):
    runner = run_dotnet_page if page == DOTNET_PAGE else LANGUAGES[language][0]
    with tempfile.TemporaryDirectory() as folder:
        lines = sorted(runner(blocks(page)[language], pathlib.Path(folder)).splitlines())
    if lines != WANT:
        raise RuntimeError(f"printed {lines}")


def check_tutorial(language):
    with tempfile.TemporaryDirectory() as folder:
        run_tutorial(language, pathlib.Path(folder))


def all_tests():
    """Of each test: its name, its needs as a text or "", and its function."""

    def without(tool):
        return "" if shutil.which(tool) else f"{tool} is not installed"

    no_torch = "" if importlib.util.find_spec("torch") else "torch is not installed"
    yield "docs/pytorch.md", no_torch, check_pytorch
    yield "links", "", check_links
    for language, (_, tool) in TUTORIALS.items():
        yield f"tutorial/{language}", without(tool), functools.partial(check_tutorial, language)
    for page, languages in PAGES.items():
        for language in languages:
            check = functools.partial(check_program, page, language)
            yield f"{page}/{language}", without(LANGUAGES[language][1]), check


def main():
    tests = {name: (missing, check) for name, missing, check in all_tests()}
    if unknown := set(sys.argv[1:]) - tests.keys():
        sys.exit(f"no test {', '.join(sorted(unknown))}; there are {', '.join(tests)}")
    passed = failed = skipped = 0
    for name in sys.argv[1:] or tests:
        missing, check = tests[name]
        if missing:
            print(f"skipped: {name}: {missing}")
            skipped += 1
            continue
        try:
            check()
            passed += 1
        except (RuntimeError, ValueError, KeyError, subprocess.TimeoutExpired) as problem:
            print(f"FAILED  {name}: {problem}")
            failed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
