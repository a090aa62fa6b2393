#!/usr/bin/env python3
"""PyTorch's AdamW, in each of its ways on a CPU.

Usage: torch_adamw.py ROUNDS MILLIONS THREADS

Prints "WAY MICROSECONDS..." for each way, a number for each round: the elements in 1 or 64 tensors,
updated tensor by tensor or with `foreach`.
"""

import sys
import time

import torch


def make(count, tensors, foreach):
    parameters = [torch.nn.Parameter(torch.full((count // tensors,), 0.5)) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    return torch.optim.AdamW(parameters, foreach=foreach)


def timed(optimizer):
    begin = time.perf_counter()
    optimizer.step()
    return (time.perf_counter() - begin) * 1e6


def main():
    rounds, millions, threads = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    for tensors in (1, 64):
        for foreach in (False, True):
            optimizer = make(millions * 1_000_000, tensors, foreach)
            times = [timed(optimizer) for _ in range(rounds + 1)][1:]
            name = f"{tensors}-tensor{'-foreach' * foreach}"
            print(name, *(f"{value:.3f}" for value in times), flush=True)
            del optimizer


if __name__ == "__main__":
    main()
