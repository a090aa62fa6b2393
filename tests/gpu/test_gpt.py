#!/usr/bin/env python3
"""The language model with its model on a device, over the driver of the tests: losses and text not
trained on have the bits of the host, for each strategy that trains there, on 1, 2 and 3 ranks.

    test_gpt.py TRIREME EXAMPLE DRIVER PLUGIN
"""

import gzip
import os
import pathlib
import subprocess
import sys
import tempfile

TRIREME, EXAMPLE, DRIVER, PLUGIN = sys.argv[1:]
TEXT = pathlib.Path(__file__).resolve().parents[2] / "examples/data/trireme.txt.gz"
STRATEGIES = ("data_parallel", "zero1", "zero2", "zero3", "hybrid_shard")
SMALL = (
    "--layers 2 --width 32 --heads 4 --context 16 --leaves 4 --sequences 2 --steps 4 --sample 9"
).split()
FAKE = {
    "TRIREME_CUDA_DRIVER": DRIVER,
    "TRIREME_CUDA_PLUGIN": PLUGIN,
    "TRIREME_NCCL_LIBRARY": "/nowhere/libnccl.so.2",  # not that of the machine
    "FAKE_CUDA": "mode=lazy",
}


def trained(folder, ranks, strategy, device):
    """The sample of text and the losses, the last one to its last bit."""
    launcher = [TRIREME, "run", "--no-prefix", "--nproc-per-node", str(ranks), "--"]
    words = [EXAMPLE, "--text", folder / "text", "--out", folder, "--strategy", strategy]
    words += [*SMALL, "--device", device]
    done = subprocess.run(
        [str(word) for word in launcher + words],
        capture_output=True,
        text=True,
        env={**os.environ, **(FAKE if device == "cuda" else {})},
    )
    if done.returncode != 0:
        sys.exit(f"{words}: {done.stdout}{done.stderr}")
    first = done.stdout.index("---- sample")
    return done.stdout[first:]


with tempfile.TemporaryDirectory() as made:
    folder = pathlib.Path(made)
    (folder / "text").write_bytes(gzip.decompress(TEXT.read_bytes()))
    host = trained(folder, 1, "zero1", "host")
    if "to the last bit: 0x" not in host:
        sys.exit(host)
    for strategy in STRATEGIES:
        for ranks in 1, 2, 3:
            found = trained(folder, ranks, strategy, "cuda")
            if found != host:
                sys.exit(
                    f"{strategy} on {ranks} ranks: other bits than on the host\n{found}\n{host}"
                )
