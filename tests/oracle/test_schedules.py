"""Factors of the learning-rate schedules against torch.optim.lr_scheduler.

usage: test_schedules.py LIBRARY     (the path of libtrireme.so.1)

Exit code 77 where PyTorch is not installed.
"""

import os
import pathlib
import sys
import warnings

SYSTEM_PYTHON = "/usr/bin/python3"  # distributions install PyTorch for this one
RATE = 0.75
TOLERANCE = 1e-12

try:
    import torch
except ImportError:
    if os.path.exists(SYSTEM_PYTHON) and "--again" not in sys.argv:
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv, "--again"])
    print("skipped: PyTorch is not installed for " + sys.executable)
    sys.exit(77)

os.environ["TRIREME_LIBRARY"] = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bindings/python"))
import trireme  # noqa: E402

schedulers = torch.optim.lr_scheduler


def linear(optimizer, total, end):
    return schedulers.LinearLR(optimizer, start_factor=1.0, end_factor=end, total_iters=total)


def cosine(optimizer, total, end):
    return schedulers.CosineAnnealingLR(optimizer, T_max=total, eta_min=RATE * end)


def warm_up(optimizer, total, factor):
    return schedulers.LinearLR(optimizer, start_factor=factor, total_iters=total)


def one_cycle(optimizer, total, **options):
    return schedulers.OneCycleLR(
        optimizer, max_lr=RATE, total_steps=total, cycle_momentum=False, **options
    )


def cases():
    """Label, what PyTorch is asked for, the schedule, and how many steps are compared."""
    for total in (1, 2, 10, 317):
        for end in (0.0, 0.1, 1.0):
            ours = {"total_steps": total, "end_factor": end}
            yield "linear", linear, (total, end), {}, ours, total + 3
            yield "cosine", cosine, (total, end), {}, ours, total + 1
        for factor in (0.01, 1 / 3, 1.0):
            ours = {"warm_up_steps": total, "warm_up_factor": factor}
            yield "constant", warm_up, (total, factor), {}, ours, total + 3
    for total in (4, 10, 317):
        for names in (
            {},
            {"pct_start": 0.5},
            {"pct_start": 0.07, "div_factor": 3.0},
            {"div_factor": 2.0, "final_div_factor": 7.0},
        ):
            for line in (False, True):
                theirs = dict(names, anneal_strategy="linear" if line else "cos")
                ours = dict(names, total_steps=total, linear_annealing=line)
                yield "one_cycle", one_cycle, (total,), theirs, ours, total


def theirs(make, arguments, options, steps):
    """The rates of the steps, by PyTorch."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    scheduler = make(optimizer, *arguments, **options)
    rates = []
    for step in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step + 1 < steps:
            scheduler.step()
    return rates


def main():
    warnings.simplefilter("ignore")
    failures = rows = 0
    for kind, make, arguments, options, ours, steps in cases():
        rows += 1
        plan = trireme.Schedule(kind, **ours)
        expected = theirs(make, arguments, options, steps)
        worst = max(abs(RATE * plan.factor(step) - expected[step]) for step in range(steps))
        good = worst <= TOLERANCE
        failures += not good
        print("%-7s %s %s: %.2e" % ("ok" if good else "FAILED", kind, ours, worst))
    print("%d passed, %d failed, 0 skipped" % (rows - failures, failures))
    sys.exit(1 if failures else 0)


main()
