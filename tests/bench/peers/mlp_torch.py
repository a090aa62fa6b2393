#!/usr/bin/env python3
"""A peer of bench_mlp: the same MLP block, split as Megatron-LM splits it, by PyTorch over Gloo.

    mlp_torch.py [WIDTH ROWS]...

Ranks are two processes with one thread each. Prints the time of one rank, of two, and their ratio.
"""

import multiprocessing
import os
import statistics
import sys
import time

os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # read when torch is imported

import torch
import torch.distributed

STEPS = 9


class Copy(torch.autograd.Function):
    """Before the first layer: the gradients of all ranks are added."""

    @staticmethod
    def forward(context, x):
        return x

    @staticmethod
    def backward(context, gradient):
        if torch.distributed.get_world_size() > 1:
            torch.distributed.all_reduce(gradient)
        return gradient


class Reduce(torch.autograd.Function):
    """Behind the second layer: the outputs of all ranks are added."""

    @staticmethod
    def forward(context, x):
        if torch.distributed.get_world_size() > 1:
            torch.distributed.all_reduce(x)
        return x

    @staticmethod
    def backward(context, gradient):
        return gradient


def run(rank, ranks, width, rows, port, answers):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    own = 4 * width // ranks
    x = torch.randn(rows, width, requires_grad=True)
    w1, b1 = torch.randn(own, width, requires_grad=True), torch.zeros(own, requires_grad=True)
    w2, b2 = torch.randn(width, own, requires_grad=True), torch.zeros(width, requires_grad=True)
    dy = torch.randn(rows, width)
    times = []
    for _ in range(STEPS):
        for leaf in (x, w1, b1, w2, b2):
            leaf.grad = None
        torch.distributed.barrier()
        begin = time.perf_counter()
        hidden = torch.nn.functional.linear(Copy.apply(x), w1, b1)
        hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
        y = Reduce.apply(torch.nn.functional.linear(hidden, w2)) + b2
        y.backward(dy)
        torch.distributed.barrier()
        times.append(1000 * (time.perf_counter() - begin))
    if rank == 0:
        answers.put(statistics.median(times[2:]))


def measure(ranks, width, rows, port):
    answers = multiprocessing.Queue()
    processes = [
        multiprocessing.Process(target=run, args=(rank, ranks, width, rows, port, answers))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    found = answers.get(timeout=60)
    for process in processes:
        process.join()
    return found


def main():
    words = [int(word) for word in sys.argv[1:]] or [1024, 512, 768, 256]
    for number, (width, rows) in enumerate(zip(words[::2], words[1::2])):
        port = 29400 + 2 * number
        one, two = measure(1, width, rows, port), measure(2, width, rows, port + 1)
        print(
            f"PyTorch {torch.__version__}, h={width}, {rows} rows: "
            f"{one:.1f} ms, 2 ranks {two:.1f} ms, ratio {one / two:.2f}"
        )


if __name__ == "__main__":
    main()
