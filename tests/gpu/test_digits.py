#!/usr/bin/env python3
"""The digits example with its model on a device, over the driver of the tests: the bits are those of
the host on one rank, for each strategy that trains there, on 1, 2 and 3 ranks.

    test_digits.py EXAMPLE DRIVER PLUGIN
"""

import os
import pathlib
import subprocess
import sys
import tempfile

EXAMPLE, DRIVER, PLUGIN = sys.argv[1:]
DATA = pathlib.Path(__file__).resolve().parents[2] / "examples/data/digits.csv.gz"
STRATEGIES = ("data_parallel", "zero1", "zero2", "zero3", "hybrid_shard")
ELEMENTS = 17226
FAKE = {
    "TRIREME_CUDA_DRIVER": DRIVER,
    "TRIREME_CUDA_PLUGIN": PLUGIN,
    "TRIREME_NCCL_LIBRARY": "/nowhere/libnccl.so.2",  # not that of the machine
    "FAKE_CUDA": "mode=lazy",
}


def run(*arguments, environment=None):
    words = [EXAMPLE, "--data", str(DATA), "--passes", "1", *arguments]
    return subprocess.run(
        words, capture_output=True, text=True, env={**os.environ, **(environment or {})}
    )


def trained(folder, *arguments, environment=None):
    """The parameters, as bytes."""
    out = pathlib.Path(folder, "out")
    done = run("--out", str(out), *arguments, environment=environment)
    if done.returncode != 0:
        sys.exit(f"{arguments}: {done.stdout}{done.stderr}")
    return out.read_bytes()


def refused(text, *arguments, environment=None):
    done = run(*arguments, environment=environment)
    if done.returncode == 0 or text not in done.stderr:
        sys.exit(f"{arguments} is not refused with {text!r}: {done}")


with tempfile.TemporaryDirectory() as folder:
    host = trained(folder, "--threads", "1")
    if len(host) != 4 * ELEMENTS or not any(host):
        sys.exit(f"{len(host)} bytes on the host")
    for strategy in STRATEGIES:
        for ranks in "1", "2", "3":
            words = "--threads", ranks, "--strategy", strategy, "--device", "cuda"
            if trained(folder, *words, environment=FAKE) != host:
                sys.exit(f"{words}: other bits than on the host")

refused("--device takes host or cuda", "--device", "tpu")
refused("UNSUPPORTED", "--device", "cuda", environment={**FAKE, "TRIREME_CUDA_DRIVER": "/nowhere"})
refused("no CUDA device", "--device", "cuda", environment={**FAKE, "FAKE_CUDA": "devices=0"})
