#!/usr/bin/env python3
"""The time that DistributedDataParallel over Gloo adds to a step.

Usage: torch_ddp.py STEPS TENSORS ELEMENTS

Two processes of one thread each train a model of TENSORS tensors of ELEMENTS f32 elements.
One step with the exchange and one without (no_sync) take turns. Prints the difference for each pair, in
microseconds, as the slowest rank has it.
"""

import contextlib
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

WARMUP = 3


class Layers(torch.nn.Module):
    """The cheapest compute that needs every element."""

    def __init__(self, tensors, elements):
        super().__init__()
        self.layers = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros(elements)) for _ in range(tensors)]
        )

    def forward(self, weight):
        return sum((layer * weight).sum() for layer in self.layers)


def timed(model, weight, context):
    dist.barrier()
    begin = time.perf_counter()
    with context:
        model(weight).backward()
    return (time.perf_counter() - begin) * 1e6


def work(rank, folder, steps, tensors, elements):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(
        Layers(tensors, elements), gradient_as_bucket_view=True
    )
    weight = torch.full((elements,), 1e-3)
    differences = []
    for step in range(-WARMUP, steps):
        synchronised = timed(model, weight, contextlib.nullcontext())
        alone = timed(model, weight, model.no_sync())
        times = torch.tensor([synchronised, alone], dtype=torch.float64)
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        if step >= 0:
            differences.append((times[0] - times[1]).item())
    if rank == 0:
        print(*(f"{difference:.3f}" for difference in differences), flush=True)
    dist.barrier()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        processes.spawn(work, (where, *map(int, sys.argv[1:4])), nprocs=2)
