"""Trajectories of the update rules against torch.optim.

usage: test_pytorch.py TRAJECTORY     (the program built from trajectory.c)

Exit code 77 where PyTorch is not installed.
"""

import os
import subprocess
import sys

SYSTEM_PYTHON = "/usr/bin/python3"  # distributions install PyTorch for this one
STEPS = 100
TOLERANCE = {"f32": 1e-5, "f64": 1e-12}

try:
    import torch
except ImportError:
    if os.path.exists(SYSTEM_PYTHON) and "--again" not in sys.argv:
        os.execv(SYSTEM_PYTHON, [SYSTEM_PYTHON, *sys.argv, "--again"])
    print("skipped: PyTorch is not installed for " + sys.executable)
    sys.exit(77)


class Lion:
    """The formula of the paper; torch.optim has no such rule."""

    def __init__(self, parameters, lr, weight_decay=0.0):
        (self.parameter,) = parameters
        self.rate = lr
        self.decay = weight_decay
        self.mean = torch.zeros_like(self.parameter)

    @torch.no_grad()
    def step(self):
        """One step. Products are rounded before they are added, or signs near 0 would differ."""
        p, m, g = self.parameter, self.mean, self.parameter.grad
        p -= self.rate * self.decay * p
        p -= self.rate * torch.sign(0.9 * m + (1 - 0.9) * g)
        self.mean = 0.99 * m + (1 - 0.99) * g


PARAMETERS = (slice(0, 10), slice(10, 37))  # of trajectory.c, where they are one vector here


class Lamb:
    """The formula of the paper, with bias correction; torch.optim has no such rule."""

    def __init__(self, parameters, lr, weight_decay=0.0):
        (self.parameter,) = parameters
        self.rate = lr
        self.decay = weight_decay
        self.mean = torch.zeros_like(self.parameter)
        self.square = torch.zeros_like(self.parameter)
        self.steps = 0

    @torch.no_grad()
    def step(self):
        p, g = self.parameter, self.parameter.grad
        self.steps += 1
        self.mean = 0.9 * self.mean + (1 - 0.9) * g
        self.square = 0.999 * self.square + (1 - 0.999) * g * g
        mean = self.mean / (1 - 0.9**self.steps)
        square = self.square / (1 - 0.999**self.steps)
        direction = mean / (square.sqrt() + 1e-6) + self.decay * p
        for part in PARAMETERS:
            ratio = p[part].norm() / direction[part].norm()
            p[part] -= self.rate * ratio * direction[part]


class Lars:
    """The formula of the paper; torch.optim has no such rule."""

    def __init__(self, parameters, lr, momentum=0.0, weight_decay=0.0):
        (self.parameter,) = parameters
        self.rate = lr
        self.momentum = momentum
        self.decay = weight_decay
        self.velocity = torch.zeros_like(self.parameter)

    @torch.no_grad()
    def step(self):
        p, g = self.parameter, self.parameter.grad
        step = g + self.decay * p
        for part in PARAMETERS:
            norm = p[part].norm()
            step[part] *= self.rate * 0.001 * norm / (g[part].norm() + self.decay * norm)
        self.velocity = self.momentum * self.velocity + step
        p -= self.velocity


class Adafactor:
    """The formula of PyTorch 2.5 and later in f64, the parameter rounded once; the second parameter
    is a matrix of 3 rows."""

    def __init__(self, parameters, lr, weight_decay=0.0):
        (self.parameter,) = parameters
        self.rate = lr
        self.decay = weight_decay
        self.vector, self.matrix = PARAMETERS
        self.square = torch.zeros(10, dtype=torch.float64)
        self.rows = torch.zeros(3, 1, dtype=torch.float64)
        self.columns = torch.zeros(1, 9, dtype=torch.float64)
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        weight = self.steps**-0.8
        smallest = torch.finfo(self.parameter.dtype).eps
        rate = min(self.rate, 1 / self.steps**0.5)
        for part in PARAMETERS:
            p = self.parameter[part].to(torch.float64)
            g = self.parameter.grad[part].to(torch.float64)
            if part is self.vector:
                self.square = self.square.lerp(g * g, weight)
                estimate = self.square
            else:
                square = (g * g).view(3, 9)
                self.rows = self.rows.lerp(square.mean(1, keepdim=True), weight)
                self.columns = self.columns.lerp(square.mean(0, keepdim=True), weight)
                estimate = self.rows @ self.columns / self.rows.mean().clamp(min=smallest)
            update = g * estimate.reshape(-1).clamp(min=smallest**2).rsqrt()
            length = max(1e-3, (p.norm() / p.numel() ** 0.5).item()) * rate
            length /= max(1.0, (update.norm() / update.numel() ** 0.5).item())
            self.parameter[part] = p * (1 - self.rate * self.decay) - length * update


class Muon:
    """The formula of torch.optim.Muon, which computes in bf16; ADAMW for what is no matrix."""

    def __init__(self, parameters, lr, momentum=0.95, nesterov=False, weight_decay=0.0):
        (self.parameter,) = parameters
        self.rate = lr
        self.momentum = momentum
        self.nesterov = nesterov
        self.decay = weight_decay
        self.velocity = torch.zeros_like(self.parameter)
        self.vector = torch.nn.Parameter(self.parameter[25:].detach().clone())
        self.others = torch.optim.AdamW([self.vector], lr=lr, weight_decay=weight_decay)

    def orthogonal(self, update):
        """The steps between are computed in f64, in which rounding is not seen."""
        x = update.double()
        x = x if x.shape[0] <= x.shape[1] else x.T
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        x = x if update.shape[0] <= update.shape[1] else x.T
        return x.to(update.dtype)

    @torch.no_grad()
    def step(self):
        """One step of both."""
        p, g = self.parameter, self.parameter.grad
        self.velocity.lerp_(g, 1 - self.momentum)
        update = g.lerp(self.velocity, self.momentum) if self.nesterov else self.velocity
        for part, rows, columns in ((slice(0, 10), 2, 5), (slice(10, 25), 5, 3)):
            along = self.orthogonal(update[part].reshape(rows, columns)).reshape(-1)
            p[part] *= 1 - self.rate * self.decay
            p[part] -= self.rate * max(1, rows / columns) ** 0.5 * along
        self.vector.copy_(p[25:])
        self.vector.grad = g[25:].clone()
        self.others.step()
        p[25:] = self.vector


# Name, rule, and the arguments of both sides.
RULES = [
    ("sgd", torch.optim.SGD, {}),
    ("sgd", torch.optim.SGD, {"weight_decay": 0.1}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    ("sgd", torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("adam", torch.optim.Adam, {}),
    ("adam", torch.optim.Adam, {"weight_decay": 0.1}),
    ("adamw", torch.optim.AdamW, {"weight_decay": 0.0}),
    ("adamw", torch.optim.AdamW, {"weight_decay": 0.1}),
    ("adagrad", torch.optim.Adagrad, {}),
    ("adagrad", torch.optim.Adagrad, {"weight_decay": 0.1}),
    ("rmsprop", torch.optim.RMSprop, {}),
    ("rmsprop", torch.optim.RMSprop, {"weight_decay": 0.1}),
    ("rmsprop", torch.optim.RMSprop, {"momentum": 0.9}),
    ("rmsprop", torch.optim.RMSprop, {"centered": True}),
    ("rmsprop", torch.optim.RMSprop, {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    ("lion", Lion, {}),
    ("lion", Lion, {"weight_decay": 0.1}),
    ("lamb", Lamb, {}),
    ("lamb", Lamb, {"weight_decay": 0.1}),
    ("lars", Lars, {}),
    ("lars", Lars, {"momentum": 0.9, "weight_decay": 0.1}),
    ("adafactor", Adafactor, {}),
    ("adafactor", Adafactor, {"weight_decay": 0.1}),
    ("muon", Muon, {}),
    ("muon", Muon, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
]
FLAGS = ("nesterov", "centered")  # the first bit of the flags of the rule
RANKS = [(1, "data_parallel"), (3, "data_parallel"), (3, "zero3")]


def torch_trajectory(rule, settings, dtype):
    """The parameters after each step, computed by PyTorch in `dtype`."""
    n = 37
    number = torch.arange(n)
    p = torch.nn.Parameter((1 + (number % 7) * 0.375 - (number % 3) * 1.25).to(dtype))
    c = (2 ** (number % 3)).to(dtype) / 4
    a = (number % 5).to(dtype) / 2 - 1
    optimizer = rule([p], lr=0.01, **settings)
    trajectory = []
    for t in range(STEPS):
        w = ((7 * t + 3 * number) % 16).to(dtype) / 32 - 0.25
        with torch.no_grad():
            p.grad = c * (p - a) + (p - torch.roll(p, -1)) / 4 + w
        optimizer.step()
        trajectory.append(p.detach().to(torch.float64).clone())
    return torch.stack(trajectory)


def our_trajectory(program, name, settings, dtype, world_size, strategy):
    """The parameters after each step, computed by the library."""
    command = [
        program,
        name,
        str(settings.get("momentum", 0)),
        "1" if any(settings.get(flag) for flag in FLAGS) else "0",
        str(settings.get("weight_decay", 0)),
        dtype,
        str(world_size),
        strategy,
        str(STEPS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError("%s: exit code %d, %s" % (command, done.returncode, done.stderr))
    rows = [[float.fromhex(word) for word in line.split()] for line in done.stdout.splitlines()]
    return torch.tensor(rows, dtype=torch.float64)


def main():
    program = sys.argv[1]
    failures = rows = 0
    for dtype in ("f32", "f64"):
        for name, rule, settings in RULES:
            expected = torch_trajectory(rule, settings, getattr(torch, "float" + dtype[1:]))
            for world_size, strategy in RANKS:
                rows += 1
                got = our_trajectory(program, name, settings, dtype, world_size, strategy)
                label = "%s %s %s, %d x %s" % (dtype, name, settings, world_size, strategy)
                if got.shape != expected.shape:
                    print("%s: shape %s is not %s" % (label, got.shape, expected.shape))
                    failures += 1
                    continue
                # Relative to the largest parameter of the step; NaN fails.
                error = ((got - expected).abs().amax(1) / expected.abs().amax(1)).max().item()
                good = error <= TOLERANCE[dtype]
                failures += not good
                print("%-7s %s: %.2e" % ("ok" if good else "FAILED", label, error))
    print("%d passed, %d failed, 0 skipped" % (rows - failures, failures))
    sys.exit(1 if failures else 0)


main()
