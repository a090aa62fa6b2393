#!/usr/bin/env python3
"""Writes docs/features.md from what the matrix of features tells, or compares.

Usage: matrix.py --write PROGRAM AXES | --check PROGRAM AXES

PROGRAM is the test api_matrix, which trains every cell and prints it with --table. Two of it run at
a time, each with one strategy. AXES is gpt_axes_matrix, which does so for ranks along axes.
"""

import concurrent.futures
import difflib
import pathlib
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "features.md"

STRATEGIES = ("data_parallel", "zero1", "zero2", "zero3", "hybrid_shard")

HEAD = """\
# Which features go together

`tests/api/matrix.py` writes this page from the results of the test `api_matrix`, and a test
fails when the two differ.

The test trains each feature alone, and each two of them, with every strategy by 1, 2, 3 and 4 ranks.
It does so with f32, f64, f16 and bf16 once each. The model has tied, frozen, empty and scalar parameters, and
units of nothing.

- `hybrid_shard` has groups of 1, 2, 3 and 2 ranks, or with `shards.stride` of 1, 1, 1 and 2.
- `units.reshard_ranks` is 1, 2, 1 and 2, with all ranks in one group.
- Two models train with one norm, on as many ranks each.

A cell is one of two kinds; there is no third:

- **=** Trained, and right. All ranks hold, bit by bit, the parameters that plain loops in one process
  compute. Memory and traffic are those of the plan. The norms are the same on all ranks.
- **A number** Refused when it is asked for, on all ranks, with the reason. The group goes on. The
  number leads to the reason.

Some details:

- The pairs of the update rules, and of all features below them, are trained once with each strategy.
  2, 3 and 4 ranks and the types take turns.
- The loss scale grows after each step. Between the first and the second step comes another one, in
  which one gradient of one rank is inf. All ranks skip that step.
- A trainer has the model as eight layers. A layer's input depends on the parameters of the layers
  before it, the gradient of its output on those behind it. The test counts layers computed again.
- Activations in a file have the least window, of two layers.
- Stochastic rounding is of bf16 alone, and f64 does not travel narrower.
- Files of state and of parameters have the smallest buffer.
- Where no feature names a rule, it is SGD with momentum or AdamW. Where 0.4 of the state is in a file,
  it is the caller's with eight vectors: the state of the others would be one block here.

Ranks and strategies train to the same bits as each other where `leaves` is on. Without it, sums
are those of the same ranks in their order.
"""


AXES = """
## Beside ranks along axes

`gpt_axes_matrix` trains a small transformer on 2 data ranks with each feature:

- **tensor**: 2 ranks split its layers. **sequence**: they split the rows between layers, too.
- **context**: as tensor, and 2 ranks along that axis have half of the positions each, `ZIGZAG` with `RING`.
- **experts**: as tensor, and 2 ranks along that axis have some of the experts of a routed MLP each, in a model
  of their own.

It has a tied embedding, fewer key/value heads than blocks, and a frozen layer. Each cell is trained with a strategy that
spreads no parameters and with one that does, in turn. Features that only some strategies take are trained with these.
**=**: all losses, norms and parameters have the bits of one process, which computes attention and routes rows with
plain loops. With experts, each of the two models has a norm of its own, or both have one. `gpt_test_axes` trains all layouts of 2 to 8
ranks.

"""


def output_of(program, *arguments):
    run = subprocess.run([program, "--table", *arguments], stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        print(run.stdout)
        raise SystemExit(f"{program} {' '.join(arguments)} fails with {run.returncode}")
    return run.stdout


def cells_of(program):
    cells = {}
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for output in pool.map(lambda strategy: output_of(program, strategy), STRATEGIES):
            for line in output.splitlines():
                if line.startswith("cell\t"):
                    _, first, second, strategy, result = line.split("\t")
                    cells[first, second, strategy] = result
    return cells


def axes_of(program):
    cells = {}
    for line in output_of(program).splitlines():
        if line.startswith("axis\t"):
            _, feature, axis, result = line.split("\t")
            cells[feature, axis] = result
    return cells


def letter_of(number):
    return chr(65 + number) if number < 26 else "A" + chr(65 + number - 26)


def page_of(cells, axes):
    features = [first for first, second, _ in cells if first == second]
    features = list(dict.fromkeys(features))
    reasons = []

    def mark(result):
        if result == "equal":
            return "="
        if result not in reasons:
            reasons.append(result)
        return str(reasons.index(result) + 1)

    lines = [HEAD, "## Alone", ""]
    lines.append("| | " + " | ".join(f"`{strategy}`" for strategy in STRATEGIES) + " |")
    lines.append("|---|" + "---|" * len(STRATEGIES))
    for number, feature in enumerate(features):
        row = [mark(cells[feature, feature, strategy]) for strategy in STRATEGIES]
        lines.append(f"| {letter_of(number)}: {feature} | " + " | ".join(row) + " |")

    lines += ["", "## In pairs", ""]
    lines.append(
        "With all strategies that take both alone; `-`: two values of one option, or nothing that "
        "could meet."
    )
    lines.append("")
    lines.append("| | " + " | ".join(letter_of(n) for n in range(len(features))) + " |")
    lines.append("|---|" + "---|" * len(features))
    for number, second in enumerate(features):
        row = []
        for first in features[: number + 1]:
            results = {
                strategy: cells[first, second, strategy]
                for strategy in STRATEGIES
                if (first, second, strategy) in cells
                and cells[first, first, strategy] == "equal"
                and cells[second, second, strategy] == "equal"
            }
            marks = sorted({mark(result) for result in results.values()})
            row.append(" ".join(marks) or "-")
        row += [""] * (len(features) - number - 1)
        lines.append(f"| {letter_of(number)} | " + " | ".join(row) + " |")

    lines += AXES.splitlines()
    columns = list(dict.fromkeys(axis for _, axis in axes))
    lines.append("| | " + " | ".join(columns) + " |")
    lines.append("|---|" + "---|" * len(columns))
    for feature in dict.fromkeys(feature for feature, _ in axes):
        row = [mark(axes[feature, axis]) for axis in columns]
        lines.append(f"| {feature} | " + " | ".join(row) + " |")

    lines += ["", "## Why not", ""]
    lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    results = list(cells.values()) + list(axes.values())
    count = len(results)
    equal = results.count("equal")
    lines += ["", f"{count} cells: {equal} equal, {count - equal} refused.", ""]
    return "\n".join(lines)


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("--write", "--check"):
        print(__doc__)
        return 2
    page = page_of(cells_of(sys.argv[2]), axes_of(sys.argv[3]))
    if sys.argv[1] == "--write":
        PAGE.write_text(page)
        return 0
    written = PAGE.read_text() if PAGE.exists() else ""
    for line in difflib.unified_diff(
        written.splitlines(), page.splitlines(), str(PAGE), "the matrix", lineterm=""
    ):
        print(line)
    return 0 if written == page else 1


if __name__ == "__main__":
    sys.exit(main())
