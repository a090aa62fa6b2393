#!/usr/bin/env python3
"""digits: several workers train one classifier of handwritten digits.

    $ trireme run --nproc-per-node 4 -- python3 examples/digits/digits.py --strategy zero3
    language=python strategy=zero3 ranks=4 mode=processes accuracy=97.21 seconds=4.012 ...
    $ python3 examples/digits/digits.py --strategy zero3 --threads 4     the same as threads
    $ python3 examples/digits/digits.py --strategy zero1 --device cuda   the model on a device

The trained parameters are the same bits for every strategy and every number of ranks. So that they
also are those of the C, C# and Rust programs, sums over many terms are loops over whole arrays
here: numpy's own sums and matrix products add in an order of their own.

With --device cuda parameters, gradients and state of the optimizer are memory of a device, and its
kernels update them. numpy computes forward and backward on copies. With PyTorch or CuPy instead,
torch.from_dlpack(model.parameter(name)) is the parameter itself, and its gradient is handed in as
it is.
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


class Samples:
    """The samples of a step: 64 rows of the data, cut into leaves."""

    def __init__(self, images, labels, rows):
        self.images, self.labels, self.rows = images, labels, rows

    def of(self, call):
        """Images and labels of the leaf that a layer is called for."""
        rows = self.rows[call.leaf * LEAF : (call.leaf + 1) * LEAF]
        return self.images[rows], [self.labels[row] for row in rows]


def inputs_of(call):
    return np.asarray(call.input) if call.layer > 0 else call.batch.of(call)[0]


def layer_forward(call):
    """Arrays over the library's own memory: no copy."""
    weight, bias = (np.asarray(each) for each in call.parameters)
    output = np.asarray(call.output)
    output[:] = forward(call.layer, weight, bias, inputs_of(call))
    if call.layer == 2:
        labels = call.batch.of(call)[1]
        call.loss = (
            sum(
                math.log(sum(math.exp(score - row[label]) for score in row))
                for row, label in zip(output.tolist(), labels)
            )
            / LEAF
        )


def layer_backward(call):
    inputs, (weight, _) = inputs_of(call), call.parameters
    weight_gradient, bias_gradient = (np.asarray(each) for each in call.gradients)
    if call.layer == 2:
        delta = output_delta(np.asarray(call.output), call.batch.of(call)[1])
    else:
        delta = np.asarray(call.output_gradient)
    if call.layer > 0:
        weight, below = np.asarray(weight), np.zeros_like(inputs)
        for j in range(weight.shape[1]):
            below += delta[:, j : j + 1] * weight[:, j]
        np.asarray(call.input_gradient)[:] = np.where(inputs > 0, below, np.float32(0))
    weight_gradient[:], bias_gradient[:] = 0, 0
    for b in range(len(inputs)):
        weight_gradient += inputs[b][:, None] * delta[b]
        bias_gradient += delta[b]


def make_trainer(optimizer, checkpoint_every):
    """Gathers each layer around its functions and hands gradients in as they are produced, whose
    reduction overlaps with the rest. With checkpoints, outputs in between are computed again."""
    layers = [
        trireme.Layer(
            name,
            layer_forward,
            layer_backward,
            parameters=[f"{name}.weight", f"{name}.bias"],
            output=(LEAF, outputs),
        )
        for name, outputs in zip(LAYERS, WIDTHS[1:])
    ]
    return trireme.Trainer(optimizer, layers, checkpoint_every=checkpoint_every)


class LayerCall:
    """A trainer hands such a call to the functions of a layer. Here its memory is of the host."""

    def __init__(self, layer, batch, leaf, inputs, parameters):
        self.layer, self.batch, self.leaf, self.input = layer, batch, leaf, inputs
        self.parameters = parameters
        self.output = np.empty((LEAF, WIDTHS[layer + 1]), np.float32)
        self.output_gradient = None
        self.input_gradient = np.empty((LEAF, WIDTHS[layer]), np.float32)
        self.gradients = [np.empty_like(each) for each in parameters]


class DeviceTrainer:
    """Trains a model on a device: the functions of the layers work on copies of its memory."""

    def __init__(self, group, optimizer):
        self.model, self.optimizer = optimizer.model, optimizer
        largest = max(inputs * outputs for inputs, outputs in zip(WIDTHS, WIDTHS[1:]))
        self.gradient = trireme.Buffer(group, 4 * largest)

    def step(self, batch):
        for micro_batch in range(self.model.info().micro_batches):
            self.train_leaf(batch, self.model.leaf(micro_batch))
        self.optimizer.step()

    def train_leaf(self, batch, leaf):
        """Without a leaf this rank only takes part in the gathers."""
        calls = []
        for layer, name in enumerate(LAYERS):
            with self.model.gathered(name):
                if leaf is not None:
                    inputs = calls[-1].output if calls else None
                    calls.append(LayerCall(layer, batch, leaf, inputs, self.parameters(name)))
                    layer_forward(calls[-1])
        if leaf is not None:
            self.model.begin_backward()
        for layer, name in reversed(list(enumerate(LAYERS))):
            with self.model.gathered(name):
                if leaf is not None:
                    if layer < 2:
                        calls[layer].output_gradient = calls[layer + 1].input_gradient
                    layer_backward(calls[layer])
                    self.hand_in(name, calls[layer].gradients)
        if leaf is not None:
            self.model.end_backward()

    def parameters(self, name):
        names = f"{name}.weight", f"{name}.bias"
        return [np.asarray(self.model.parameter(each).to_host()) for each in names]

    def hand_in(self, name, gradients):
        for kind, gradient in zip(("weight", "bias"), gradients):
            lent = self.gradient.array("f32", gradient.shape)
            lent.copy_from(gradient)
            self.model.gradient_ready(f"{name}.{kind}", lent)


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
    values = initial_values(random)
    if group.device is None:
        model.set_parameters(values, root=0)
    else:
        room = trireme.Buffer(group, values.nbytes).array("f32")
        room.copy_from(values)
        model.set_parameters(room, root=0)
    optimizer = trireme.Optimizer(
        model, "adamw", learning_rate=0.003, weight_decay=0.01, clipping=1.0
    )
    if group.device is None:
        trainer = make_trainer(optimizer, options.checkpoint_every)
    else:
        trainer = DeviceTrainer(group, optimizer)
    order = [row for row in range(len(labels)) if row % 5 != 4]

    start = time.monotonic()
    for _ in range(options.passes):
        for i in range(len(order) - 1, 0, -1):
            j = next(random) % (i + 1)
            order[i], order[j] = order[j], order[i]
        for first in range(0, len(order) - BATCH + 1, BATCH):
            trainer.step(Samples(images, labels, order[first : first + BATCH]))
    seconds = time.monotonic() - start

    parameters = model.get_parameters()
    parameters = np.asarray(parameters if group.device is None else parameters.to_host())
    if group.rank == 0:
        report(model, mode, seconds, accuracy(parameters, images, labels))
        if options.out:
            parameters.astype("<f4").tofile(options.out)


def device_of(options, rank):
    """The ranks of a host share its devices among them."""
    if options.device == "host":
        return None
    if not trireme.device_count():
        raise OSError("there is no CUDA device")
    return rank % trireme.device_count()


def train_as_thread(rank, options, images, labels, problems):
    try:
        name = f"local://digits-{os.getpid()}"
        device = device_of(options, rank)
        with trireme.Communicator(rank, options.threads, name, device=device) as group:
            train(group, "threads", options, images, labels)
    except Exception as problem:
        problems.append(problem)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="data_parallel")
    parser.add_argument("--threads", type=int, default=0, help="ranks as threads of this process")
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument(
        "--checkpoint-every", type=int, default=0, help="keep the output of every so many-th layer"
    )
    parser.add_argument("--data", default="examples/data/digits.csv.gz")
    parser.add_argument("--out", help="file for the trained parameters, raw f32")
    options = parser.parse_args()
    if options.device == "cuda" and options.checkpoint_every:
        parser.error("--checkpoint-every is of the trainer, which works on the host here")
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
        device = device_of(options, int(os.environ.get("LOCAL_RANK", 0)))
        with trireme.Communicator.from_environment(device=device) as group:
            train(group, "processes", options, images, labels)
    else:
        device = device_of(options, 0)
        with trireme.Communicator(0, 1, "local://digits", device=device) as group:
            train(group, "alone", options, images, labels)


if __name__ == "__main__":
    try:
        main()
    except trireme.TriremeError as problem:
        sys.exit(f"{problem.status}: {problem.message}")
    except OSError as problem:
        sys.exit(str(problem))
