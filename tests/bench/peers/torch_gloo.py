#!/usr/bin/env python3
"""The operations of torch.distributed over Gloo, f32.

Usage: torch_gloo.py RANKS WARMUP ITERATIONS SECONDS OPERATION:BYTES...

Prints what the other peer programs print, sampled as they sample (src/cli/bench/sampling.hpp).
"""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

SAMPLE_SECONDS = 100e-6
FEWEST, MOST = 5, 500


def timed(call, calls):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - begin


def agree(value):
    tensor = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(tensor, 0)
    return tensor.item()


def measure(call, warmup, iterations, seconds):
    for _ in range(warmup):
        call()
    calls = max(1, -(-iterations // MOST))
    samples = -(-iterations // calls)
    if iterations == 0:
        calls = 1
        took = agree(timed(call, 1))
        while took < SAMPLE_SECONDS / 4 and calls < 4096:
            calls *= 4
            took = agree(timed(call, calls))
        one = max(took / calls, 1e-9)
        calls = int(min(max(SAMPLE_SECONDS / one, 1), 65536))
        samples = int(min(max(seconds / (one * calls), FEWEST), MOST))
    all_samples = torch.tensor([timed(call, calls) / calls * 1e6 for _ in range(samples)])
    dist.all_reduce(all_samples, op=dist.ReduceOp.MAX)
    return all_samples.sort().values[samples // 2].item()


def operation(name, count, rank, ranks):
    data = torch.full((count,), 1e-3)
    if name == "all_reduce":
        return lambda: dist.all_reduce(data)
    if name == "all_gather":
        parts = list(data.chunk(ranks))
        mine = parts[rank].clone()
        return lambda: dist.all_gather(parts, mine)
    if name == "broadcast":
        return lambda: dist.broadcast(data, 0)
    if name == "barrier":
        return dist.barrier
    return None  # this torch's Gloo has no such operation


def work(rank, ranks, folder, arguments):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
    )
    warmup, iterations, seconds = int(arguments[0]), int(arguments[1]), float(arguments[2])
    for case in arguments[3:]:
        name, size = case.split(":")
        call = operation(name, int(size) // 4, rank, ranks)
        if call is None:
            continue
        median = measure(call, warmup, iterations, seconds)
        if rank == 0:
            print(name, size, f"{median:.4f}", flush=True)
    dist.barrier()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        processes.spawn(work, (int(sys.argv[1]), where, sys.argv[2:]), nprocs=int(sys.argv[1]))
