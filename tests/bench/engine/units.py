"""The cost of a unit's calls in Python, in microseconds: `units.py hooks` as row_hooks() in gather.c,
`units.py trainer` as row_trainer() in trainer.c."""

import array
import sys
import time

import trireme

UNITS, PASSES = 1000, 20


def hooks(model, optimizer):
    gradient, best = array.array("f", [1]), float("inf")
    for _ in range(PASSES):
        model.begin_backward()
        start = time.perf_counter_ns()
        for unit in range(UNITS - 1, -1, -1):
            model.gather_unit(unit)
            model.gradient_ready(unit, gradient)
            model.release_unit(unit)
        best = min(best, time.perf_counter_ns() - start)
        model.end_backward()
        optimizer.step()
    return best


def trainer(_, optimizer):
    def do_nothing(_call):
        pass

    # A trainer refuses gradients that backward has not written.
    def write_gradient(call):
        call.gradients[0][0] = 1

    layers = [
        trireme.Layer(
            f"layer{unit}", do_nothing, write_gradient, parameters=[unit], output=16, saved_bytes=64
        )
        for unit in range(UNITS)
    ]
    best = float("inf")
    with trireme.Trainer(optimizer, layers) as made:
        for _ in range(PASSES):
            start = time.perf_counter_ns()
            made.step()
            best = min(best, time.perf_counter_ns() - start)
    return best


with trireme.Communicator(0, 1, "local://units") as communicator:
    model = trireme.Model(communicator, "zero3")
    for unit in range(UNITS):
        model.add_parameter(f"layer{unit}", (1,))
    model.seal()
    optimizer = trireme.Optimizer(model, "sgd")
    best = {"hooks": hooks, "trainer": trainer}[sys.argv[1]](model, optimizer)
    optimizer.close()
    model.close()
print(f"{best / 1e3 / UNITS:.4f}")
