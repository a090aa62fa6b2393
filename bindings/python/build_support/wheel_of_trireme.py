"""Builds the wheel (PEP 517): the package, libtrireme.so.1 and the command trireme in one archive.

Library and command come from TRIREME_LIBRARY and TRIREME_COMMAND (without it: from beside the library,
if it is there), or are built with cmake from the repository around this folder. Needs nothing but the standard library.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = HERE.parent.parent


def _project() -> dict[str, str]:
    """The plain text values of [project]; Python 3.9 has no reader for TOML."""
    section = re.search(
        r"^\[project\]$(.*?)^\[", (HERE / "pyproject.toml").read_text(), re.M | re.S
    )
    assert section is not None
    return dict(re.findall(r'^([a-z-]+) = "(.*)"$', section[1], re.M))


def _binaries(work: pathlib.Path) -> dict[str, bytes]:
    """The library and, if it is there, the command, by their names in the package."""
    given = os.environ.get("TRIREME_LIBRARY")
    if given:
        library = pathlib.Path(given).resolve()
        command = pathlib.Path(os.environ.get("TRIREME_COMMAND") or library.with_name("trireme"))
        files = {"libtrireme.so.1": library.read_bytes()}
        if command.is_file():
            files["trireme-command"] = command.read_bytes()
        return files
    if not (REPOSITORY / "CMakeLists.txt").exists():
        raise SystemExit(
            "trireme: no repository around this folder to build the library from; set "
            "TRIREME_LIBRARY to the path of libtrireme.so.1"
        )
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DTRIREME_BUILD_TESTS=OFF"]
    options += ["-DTRIREME_BUILD_EXAMPLES=OFF", "-DCMAKE_UNITY_BUILD=ON"]
    if shutil.which("ninja") and "CMAKE_GENERATOR" not in os.environ:
        options += ["-G", "Ninja"]
    configure = ["cmake", "-S", REPOSITORY, "-B", work, *options]
    targets = {"trireme": "libtrireme.so.1", "trireme_cli": "trireme"}
    if subprocess.run([*configure, "-DTRIREME_BUILD_CLI=ON"], check=False).returncode != 0:
        print("trireme: libuv or CLI11 is missing: the package comes without the command")
        subprocess.run([*configure, "-DTRIREME_BUILD_CLI=OFF"], check=True)
        del targets["trireme_cli"]
    subprocess.run(["cmake", "--build", work, "--target", *targets], check=True)
    named = {"trireme": "trireme-command"}
    return {named.get(file, file): (work / file).read_bytes() for file in targets.values()}


def _metadata(project: dict[str, str]) -> str:
    return (
        "Metadata-Version: 2.1\n"
        f"Name: {project['name']}\n"
        f"Version: {project['version']}\n"
        f"Summary: {project['description']}\n"
        f"Requires-Python: {project['requires-python']}\n"
        "Description-Content-Type: text/markdown\n\n"
        f"{(HERE / project['readme']).read_text()}"
    )


def build_wheel(
    wheel_directory: str, config_settings: object = None, metadata_directory: object = None
) -> str:
    """The hook that pip calls; answers the name of the wheel."""
    project = _project()
    stem = f"{project['name']}-{project['version']}"
    tag = f"py3-none-linux_{platform.machine()}"
    sources = sorted((HERE / "trireme").rglob("*.py")) + [HERE / "trireme" / "py.typed"]
    files = {path.relative_to(HERE).as_posix(): path.read_bytes() for path in sources}
    with tempfile.TemporaryDirectory() as work:
        for name, content in _binaries(pathlib.Path(work)).items():
            files[f"trireme/{name}"] = content
    programs = {f"trireme/{name}" for name in ("libtrireme.so.1", "trireme-command")}
    files[f"{stem}.dist-info/entry_points.txt"] = (
        b"[console_scripts]\ntrireme = trireme.__main__:main\n"
    )
    files[f"{stem}.dist-info/METADATA"] = _metadata(project).encode()
    files[f"{stem}.dist-info/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: trireme\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    record = f"{stem}.dist-info/RECORD"
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}")
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()

    name = f"{stem}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path)  # a fixed date: the same input gives the same wheel
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if path in programs else 0o100644) << 16
            wheel.writestr(entry, content)
    return name


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    raise SystemExit("trireme: install from the repository; the library's sources are part of it")
