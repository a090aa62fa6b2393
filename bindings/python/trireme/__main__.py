"""`python -m trireme` and the command `trireme` of an installed package: runs the launcher."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys


def _candidates() -> list[tuple[str, str]]:
    """Where the command may be, each with why."""
    here = pathlib.Path(__file__).resolve().parent
    places = [(os.environ.get("TRIREME_COMMAND", ""), "TRIREME_COMMAND")]
    places.append((str(here / "trireme-command"), "in the package"))
    library = os.environ.get("TRIREME_LIBRARY", "")
    if library:
        beside = pathlib.Path(library).resolve().parent / "trireme"
        places.append((str(beside), "beside TRIREME_LIBRARY"))
    own = pathlib.Path(sys.argv[0]).resolve()
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = shutil.which("trireme", path=folder) if folder else None
        # The console script of this package is no launcher.
        if found and pathlib.Path(found).resolve() != own and not _is_script(found):
            places.append((found, "in PATH"))
    return [place for place in places if place[0]]


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def main() -> int:
    """Becomes the launcher; answers only if there is none."""
    looked = _candidates()
    for path, _ in looked:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            # Scripts and modules are run by the interpreter that has this package.
            environment = {"TRIREME_PYTHON": sys.executable, **os.environ}
            os.execve(path, ["trireme", *sys.argv[1:]], environment)
    tried = "".join(f"\n  {path} ({why})" for path, why in looked) or " nowhere else than in PATH"
    print(
        f"trireme: the command is not installed; looked for it at:{tried}\n"
        "Build it with cmake (target trireme_cli) and set TRIREME_COMMAND to its path, or put it "
        "into PATH.",
        file=sys.stderr,
    )
    return 127


if __name__ == "__main__":
    sys.exit(main())
