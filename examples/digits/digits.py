#!/usr/bin/env python3
"""digits: several workers train one classifier of handwritten digits.

    $ trireme run --nproc-per-node 4 -- python3 examples/digits/digits.py --strategy zero3
    language=python strategy=zero3 ranks=4 mode=processes accuracy=97.21 seconds=4.012 ...
    $ python3 examples/digits/digits.py --strategy zero3 --threads 4     the same as threads

The trained parameters are the same bits for every strategy and every number of ranks. So that they
also are those of the C, C# and Rust programs, sums over many terms are loops over whole arrays
here: numpy's own sums and matrix products add in an order of their own.
"""

import argparse
import gzip
import math
import os
import sys
import threading
import time

import numpy as np

import trireme

WIDTHS = (64, 128, 64, 10)
LAYERS = ("layer1", "layer2", "layer3")
BATCH, LEAVES = 64, 8
LEAF = BATCH // LEAVES


def read_data(path):
    """Images of 64 pixels from 0 to 1, and what they show."""
    with gzip.open(path, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
    return rows[:, :64].astype(np.float32) / np.float32(16), rows[:, 64].tolist()


def random_numbers(state=2026):
    """splitmix64: the same numbers in every language."""
    mask = (1 << 64) - 1
    while True:
        state = state + 0x9E3779B97F4A7C15 & mask
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        yield z ^ z >> 31


def initial_values(random):
    values = []
    for inputs, outputs in zip(WIDTHS, WIDTHS[1:]):
        limit = math.sqrt(6.0 / inputs)
        for _ in range(inputs * outputs):
            values.append((2 * ((next(random) >> 40) * 2.0**-24) - 1) * limit)
        values.extend([0.0] * outputs)
    return np.array(values).astype(np.float32)


def forward(layer, weight, bias, inputs):
    """One layer of several samples: bias + inputs * weight, then ReLU except for the last."""
    out = np.tile(bias, (len(inputs), 1))
    for k in range(len(weight)):
        out += inputs[:, k : k + 1] * weight[k]
    return out if layer == 2 else np.where(out > 0, out, np.float32(0))


def output_delta(scores, labels):
    """Gradient of the cross-entropy of softmax, as its share of the whole batch."""
    delta = np.empty_like(scores)
    for row, label, out in zip(scores.tolist(), labels, delta):
        largest, total = max(row), 0.0
        exponentials = [math.exp(score - largest) for score in row]
        for exponential in exponentials:
            total += exponential
        for c, exponential in enumerate(exponentials):
            out[c] = (exponential / total - (1.0 if c == label else 0.0)) * (1.0 / BATCH)
    return delta


def parameters_of(model, layer):
    """Weight and bias, as arrays over the library's own memory: no copy."""
    return [np.asarray(model.parameter(f"{LAYERS[layer]}.{name}")) for name in ("weight", "bias")]


def forward_pass(model, images):
    """What goes into each layer, and the scores. Each unit is gathered only while it is used."""
    values = [images]
    for layer, unit in enumerate(LAYERS):
        with model.gathered(unit):
            values.append(forward(layer, *parameters_of(model, layer), values[layer]))
    return values


def backward_pass(model, values, labels):
    """Hands each gradient in as it is produced; its reduction overlaps with the rest."""
    delta = output_delta(values[3], labels)
    for layer in (2, 1, 0):
        inputs, unit = values[layer], LAYERS[layer]
        with model.gathered(unit):
            weight, bias = parameters_of(model, layer)
            weight_gradient, bias_gradient = np.zeros_like(weight), np.zeros_like(bias)
            below = np.zeros_like(inputs)
            if layer > 0:
                for j in range(weight.shape[1]):
                    below += delta[:, j : j + 1] * weight[:, j]
        for b in range(len(inputs)):
            weight_gradient += inputs[b][:, None] * delta[b]
            bias_gradient += delta[b]
        model.gradient_ready(f"{unit}.weight", weight_gradient)
        model.gradient_ready(f"{unit}.bias", bias_gradient)
        delta = np.where(inputs > 0, below, np.float32(0))


def accuracy(parameters, images, labels):
    """Percent of the test rows that are classified right."""
    values, first = images[4::5], 0
    for layer, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:])):
        bias = first + inputs * outputs
        weight = parameters[first:bias].reshape(inputs, outputs)
        first = bias + outputs
        values = forward(layer, weight, parameters[bias:first], values)
    return 100.0 * np.mean(np.argmax(values, axis=1) == np.array(labels[4::5]))


def make_model(group, strategy):
    model = trireme.Model(group, strategy, leaves=LEAVES, gradients="sum")
    for unit, inputs, outputs in zip(LAYERS, WIDTHS, WIDTHS[1:]):
        model.add_parameter(f"{unit}.weight", [inputs, outputs], unit=unit)
        model.add_parameter(f"{unit}.bias", [outputs], unit=unit)
    model.seal()
    return model


def report(model, mode, seconds, percent):
    info, memory = model.info(), model.memory()
    kinds = (
        ("parameters", memory.planned_parameters, memory.allocated_parameters),
        ("gradients", memory.planned_gradients, memory.allocated_gradients),
        ("state", memory.planned_optimizer_state, memory.allocated_optimizer_state),
        ("working", memory.planned_working, memory.allocated_working),
    )
    print(
        f"language=python strategy={info.strategy} ranks={info.world_size} mode={mode} "
        f"accuracy={percent:.2f} seconds={seconds:.3f} "
        + " ".join(f"{kind}={planned}/{allocated}" for kind, planned, allocated in kinds)
    )


def train(group, mode, options, images, labels):
    """Everything one rank does."""
    random = random_numbers()
    model = make_model(group, options.strategy)
    model.set_parameters(initial_values(random), root=0)
    optimizer = trireme.Optimizer(
        model, "adamw", learning_rate=0.003, weight_decay=0.01, max_norm=1.0
    )
    order = [row for row in range(len(labels)) if row % 5 != 4]

    start = time.monotonic()
    for _ in range(options.passes):
        for i in range(len(order) - 1, 0, -1):
            j = next(random) % (i + 1)
            order[i], order[j] = order[j], order[i]
        for step in range(len(order) // BATCH):
            for micro_batch in range(model.info().micro_batches):
                leaf = model.leaf(micro_batch)
                if leaf is None:  # only takes part in the gathers
                    for unit in LAYERS + LAYERS[::-1]:
                        with model.gathered(unit):
                            pass
                    continue
                first = step * BATCH + leaf * LEAF
                samples = order[first : first + LEAF]
                values = forward_pass(model, images[samples])
                with model.backward():
                    backward_pass(model, values, [labels[row] for row in samples])
            optimizer.step()
    seconds = time.monotonic() - start

    parameters = np.asarray(model.get_parameters())
    if group.rank == 0:
        report(model, mode, seconds, accuracy(parameters, images, labels))
        if options.out:
            parameters.astype("<f4").tofile(options.out)


def train_as_thread(rank, options, images, labels, problems):
    try:
        name = f"local://digits-{os.getpid()}"
        with trireme.Communicator(rank, options.threads, name) as group:
            train(group, "threads", options, images, labels)
    except Exception as problem:
        problems.append(problem)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="data_parallel")
    parser.add_argument("--threads", type=int, default=0, help="ranks as threads of this process")
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--data", default="examples/data/digits.csv.gz")
    parser.add_argument("--out", help="file for the trained parameters, raw f32")
    options = parser.parse_args()
    images, labels = read_data(options.data)

    if options.threads > 0:
        problems = []
        threads = [
            threading.Thread(target=train_as_thread, args=(rank, options, images, labels, problems))
            for rank in range(options.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
    elif "RANK" in os.environ:
        with trireme.Communicator.from_environment() as group:
            train(group, "processes", options, images, labels)
    else:
        with trireme.Communicator(0, 1, "local://digits") as group:
            train(group, "alone", options, images, labels)


if __name__ == "__main__":
    try:
        main()
    except trireme.TriremeError as problem:
        sys.exit(f"{problem.status}: {problem.message}")
    except OSError as problem:
        sys.exit(str(problem))
