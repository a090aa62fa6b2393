"""The cost of a call in Python; see calls.c."""

import array
import time

import trireme

BATCH, BATCHES = 200, 1000

with trireme.Communicator(0, 1, "local://calls") as communicator:
    value, best = array.array("d", [1]), float("inf")
    for _ in range(BATCHES):
        start = time.perf_counter_ns()
        for _ in range(BATCH):
            communicator.all_reduce(value)
        best = min(best, (time.perf_counter_ns() - start) / BATCH)
print(f"{best:.1f}")
