#!/usr/bin/env python3
"""recovery: a rank dies, the others go on from the last snapshot, and the result has the same bits.

    $ trireme run --keep-survivors --nproc-per-node 3 -- python3 examples/recovery/recovery.py \\
          --folder /tmp/snapshots --kill-rank 1 --kill-step 25
    rank 0 of 2 goes on from step 20: rank 1 was lost (...)
    steps=60 ranks=2 parameters=6f2b6d0e

Without --kill-rank, and alone, the last line has the same parameters.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import sys
import zlib

import numpy as np

import trireme

LEAVES, STEPS, EVERY = 12, 60, 10  # micro-batches of a step, steps, steps between snapshots


def make(group):
    """The same model on any number of ranks."""
    model = trireme.Model(group, "zero3", leaves=LEAVES)
    model.add_parameter("weight", [16, 4], unit="layer")
    model.add_parameter("bias", [4], unit="layer")
    model.seal()
    return model, trireme.Optimizer(model, "adamw", learning_rate=0.01)


def step(model, optimizer):
    """One step of least squares; a leaf's data depend on step and leaf alone."""
    for micro_batch in range(model.info().micro_batches):
        leaf = model.leaf(micro_batch)
        with model.gathered("layer"):
            if leaf is not None:
                data = np.random.default_rng([optimizer.step_count, leaf])
                inputs = data.standard_normal((8, 16), np.float32)
                wanted = inputs[:, :4] * 2 + 1
                outputs = inputs @ np.asarray(model.parameter("weight"))
                outputs += np.asarray(model.parameter("bias"))
        if leaf is not None:
            with model.backward():
                model.gradient_ready("weight", inputs.T @ (outputs - wanted))
                model.gradient_ready("bias", (outputs - wanted).sum(axis=0))
    optimizer.step()


def save(folder, group, optimizer):
    """A snapshot counts once it has its name, and it has it once every rank has written its part."""
    part, whole = folder / "unfinished", folder / f"step-{optimizer.step_count:06}"
    if group.rank == 0:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    group.barrier()
    for index, piece in enumerate(optimizer.ranges()):
        name = f"{piece.kind}.{piece.vector}.{piece.parameter}.{piece.first}"
        (part / name).write_bytes(optimizer.read_range(index))
    if group.rank == 0:
        (part / "counters").write_text(json.dumps(dataclasses.asdict(optimizer.counters)))
    group.barrier()
    if group.rank == 0:
        part.rename(whole)
    group.barrier()


def load(folder, optimizer):
    """Goes on from the newest snapshot, if there is one, whatever number of ranks wrote it."""
    snapshots = sorted(folder.glob("step-*"))
    if not snapshots:
        return
    vectors = {}
    for path in sorted(snapshots[-1].glob("*.*.*.*"), key=lambda path: int(path.suffix[1:])):
        vectors.setdefault(path.stem, bytearray()).extend(path.read_bytes())
    for index, piece in enumerate(optimizer.ranges()):
        values = np.frombuffer(
            vectors[f"{piece.kind}.{piece.vector}.{piece.parameter}"], np.float32
        )
        optimizer.write_range(index, values[piece.first : piece.first + piece.count])
    counters = json.loads((snapshots[-1] / "counters").read_text())
    optimizer.restore(trireme.OptimizerCounters(**counters))


def survivors(group):
    """The group of those that are left. Another rank may be lost while they agree who that is."""
    while True:
        try:
            return group.shrink()
        except trireme.TriremeError as error:
            if not error.try_again:
                raise


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--kill-rank", type=int, default=-1)
    parser.add_argument("--kill-step", type=int, default=25)
    options = parser.parse_args()

    group = trireme.Communicator.from_environment()
    me, cause = group.rank, ""
    while True:
        try:
            model, optimizer = make(group)
            load(options.folder, optimizer)
            if cause:
                print(
                    f"rank {group.rank} of {group.world_size} goes on from step {optimizer.step_count}: {cause}"
                )
                sys.stdout.flush()
            while optimizer.step_count < STEPS:
                if me == options.kill_rank and optimizer.step_count == options.kill_step:
                    os.kill(os.getpid(), signal.SIGKILL)
                step(model, optimizer)
                if optimizer.step_count % EVERY == 0:
                    save(options.folder, group, optimizer)
            break
        except (trireme.PeerLostError, trireme.TimeoutError) as error:
            cause = str(error)
            group = survivors(group)  # the old model and optimizer go with the names below

    values = np.empty(16 * 4 + 4, np.float32)
    model.get_parameters(values)
    if group.rank == 0:
        print(
            f"steps={optimizer.step_count} ranks={group.world_size} parameters={zlib.crc32(values.tobytes()):08x}"
        )


if __name__ == "__main__":
    main()
