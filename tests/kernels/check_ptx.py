#!/usr/bin/env python3
"""Compiles the kernels of CUDA devices to PTX, and refuses instructions with other bits than the
host's: fused multiply-add, flushed subnormals, approximations.

    check_ptx.py SOURCE FOLDER -- NVCC [OPTION...]

The options are those of the build. FOLDER gets the PTX. Skipped (77) if NVCC is "none".
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REFUSED = re.compile(
    r"^\s*(?:@!?%p\d+\s+)?((?:fma|mad\.(?:rn|rz|rm|rp)|ex2|lg2|sin|cos|tanh)\b\S*"
    r"|\S*\.(?:ftz|approx|full|sat\.f(?:32|64))\b\S*)",
    re.M,
)
ENTRY = re.compile(r"\.entry trireme_(\w+)\(")


def compiled(command, source, output, *options):
    subprocess.run([*command, *options, "-ptx", source, "-o", output], check=True)
    return output.read_text()


def listed():
    """The names that src/kernels/elements/list.inc gives to kernels."""
    text = re.sub(r"//.*", "", (ROOT / "src/kernels/elements/list.inc").read_text())
    names = set(re.findall(r"X\((\w+),", text))
    for macro, parameters in re.findall(
        r"^  (TRIREME_\w+_KERNELS)\((X, [^)]*)\)", text, flags=re.M
    ):
        body = text.split(f"#define {macro}(")[1].split("\n\n")[0]
        suffix = parameters.split(",")[-1].strip()
        names |= {stem + suffix for stem in re.findall(r"X\((\w+_)##t,", body)}
    return names


def main():
    source, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    command = sys.argv[sys.argv.index("--") + 1 :]
    if command[0] == "none":
        print("skipped: nvcc is missing: no kernels are compiled")
        return 77
    folder.mkdir(parents=True, exist_ok=True)
    problems = []
    for target in ("75", "90"):
        text = compiled(command, source, folder / f"{target}.ptx", f"-arch=compute_{target}")
        found = REFUSED.findall(text)
        problems += [f"compute_{target}: {name}, {found.count(name)} times" for name in set(found)]
        entries, names = set(ENTRY.findall(text)), listed()
        problems += [f"compute_{target}: no kernel {name}" for name in sorted(names - entries)]
        problems += [f"compute_{target}: {name} is not listed" for name in sorted(entries - names)]
    # The gate sees what it looks for: contraction and fast arithmetic bring all three.
    exact = ("-fmad", "-prec-", "-ftz")
    loose = [word for word in command if not word.startswith(exact)]
    fast = compiled(loose, source, folder / "fast.ptx", "-arch=compute_90", "--use_fast_math")
    seen = REFUSED.findall(fast)
    for word in ("fma", "ftz", "approx"):
        if not any(word in name for name in seen):
            problems.append(f"--use_fast_math brings no {word}: the gate is blind")
    print("\n".join(problems) or f"ptx: {len(listed())} kernels without fma, ftz and approx")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
