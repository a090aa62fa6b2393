"""Checks one run of the digits example and prints its row.

Usage: row.py LINE PARAMETERS REFERENCE MODE
"""

import array
import sys

line, out, reference, mode = sys.argv[1:]
fields = dict(part.split("=", 1) for part in line.split())


def read(path):
    values = array.array("f")
    with open(path, "rb") as file:
        values.frombytes(file.read())
    return values


def shard(elements, ranks):
    """Elements of rank 0, by the formula: n / N, the first n % N ranks one more. The three units
    are below 1 MiB together, so they are one group, cut as one."""
    return elements // ranks + (elements % ranks > 0)


ours, alone = read(out), read(reference)
elements, ranks, strategy = 17226, int(fields["ranks"]), fields["strategy"]
difference = max(abs(a - b) for a, b in zip(ours, alone))
whole, part = 4 * elements, 4 * shard(elements, ranks)
want = {
    "parameters": part if strategy == "zero3" else whole,
    "gradients": part if strategy in ("zero2", "zero3") else whole,
    "state": 2 * (whole if strategy == "data_parallel" else part),  # AdamW keeps two numbers
}

problems = []
if fields["mode"] != mode:
    problems.append(f"ran as {fields['mode']}")
if len(ours) != elements or len(alone) != elements or bytes(ours) != bytes(alone):
    problems.append("other parameters than alone")
if float(fields["accuracy"]) < 95:
    problems.append("accuracy below 95 %")
for kind in ("parameters", "gradients", "state", "working"):
    planned, allocated = map(int, fields[kind].split("/"))
    if planned != allocated:
        problems.append(f"{kind}: planned {planned}, allocated {allocated}")
    if planned != want.get(kind, planned):
        problems.append(f"{kind}: {planned} bytes, the formula says {want[kind]}")

print(
    f"{fields['language']:<8} {strategy:<14} {ranks:>5} {mode:<9} {fields['accuracy']:>7}% "
    f"{float(fields['seconds']):>7.2f}"
    f"  {fields['parameters']:<15} {fields['gradients']:<15} {fields['state']:<17} "
    f"{fields['working']:<15}"
    f" {difference:g}  {'; '.join(problems)}",
    flush=True,
)
sys.exit(1 if problems else 0)
