"""What the hooks of a unit cost in Python, in microseconds; see row_hooks() in gather.c."""

import array
import time

import trireme

UNITS, PASSES = 1000, 20


with trireme.Communicator(0, 1, "local://hooks") as communicator:
    model = trireme.Model(communicator, "zero3")
    for unit in range(UNITS):
        model.add_parameter(f"layer{unit}", (1,))
    model.seal()
    optimizer = trireme.Optimizer(model, "sgd")
    gradient, best = array.array("f", [1]), float("inf")
    for _ in range(PASSES):
        model.begin_backward()
        start = time.perf_counter_ns()
        for unit in range(UNITS - 1, -1, -1):
            model.gather_unit(unit)
            model.gradient_ready(unit, gradient)
            model.release_unit(unit)
        best = min(best, (time.perf_counter_ns() - start) / 1e3 / UNITS)
        model.end_backward()
        optimizer.step()
    optimizer.close()
    model.close()
print(f"{best:.4f}")
