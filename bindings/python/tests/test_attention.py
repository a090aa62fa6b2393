"""ParallelAttention: training with heads on several ranks, against differences of a plain loss."""

import array
import math
import unittest

from support import TestCase, trireme

ROWS, WIDTH, HEADS, HEAD = 3, 8, 4, 2
RATE, STEPS = 0.5, 3
SHAPES = {"qkv": (3 * WIDTH, WIDTH), "out": (WIDTH, WIDTH)}


def numbers(count, salt):
    return [((i * 37 + salt * 11) % 29 - 14) / 32 for i in range(count)]


X = numbers(ROWS * WIDTH, 1)
SLOPES = numbers(ROWS * WIDTH, 2)  # the loss is the sum of these times the outputs


def scores(q, k, row, step, head):
    """The weights of the positions up to `row`."""
    made = [
        math.exp(
            sum(q(row, head * HEAD + i) * k(other, head * HEAD + i) for i in range(HEAD))
            / math.sqrt(HEAD)
        )
        for other in range(row + 1)
    ]
    return [each / sum(made) for each in made]


def reader(call, part):
    own = len(call.heads) * call.head_width
    return lambda row, i: call.qkv[row * 3 * own + part * own + i]


def core_forward(call):
    q, k, v = (reader(call, part) for part in range(3))
    own = len(call.heads) * call.head_width
    for head in range(len(call.heads)):
        for row in range(call.rows):
            weights = scores(q, k, row, own, head)
            for i in range(HEAD):
                call.mixed[row * own + head * HEAD + i] = sum(
                    weight * v(other, head * HEAD + i) for other, weight in enumerate(weights)
                )


def core_backward(call):
    q, k, v = (reader(call, part) for part in range(3))
    own = len(call.heads) * call.head_width
    made = [0.0] * (call.rows * 3 * own)
    for head in range(len(call.heads)):
        for row in range(call.rows):
            weights = scores(q, k, row, own, head)
            dy = [call.mixed_gradient[row * own + head * HEAD + i] for i in range(HEAD)]
            slopes = [
                sum(dy[i] * v(other, head * HEAD + i) for i in range(HEAD))
                for other in range(row + 1)
            ]
            mean = sum(a * b for a, b in zip(weights, slopes))
            for other, weight in enumerate(weights):
                slope = weight * (slopes[other] - mean) / math.sqrt(HEAD)
                for i in range(HEAD):
                    at = head * HEAD + i
                    made[row * 3 * own + at] += slope * k(other, at)
                    made[other * 3 * own + own + at] += slope * q(row, at)
                    made[other * 3 * own + 2 * own + at] += weight * dy[i]
    for i, value in enumerate(made):
        call.qkv_gradient[i] = value


def plain_loss(weights):
    """In f64, with all heads."""
    qkv = [
        [
            sum(X[r * WIDTH + i] * weights["qkv"][j * WIDTH + i] for i in range(WIDTH))
            for j in range(3 * WIDTH)
        ]
        for r in range(ROWS)
    ]
    loss = 0.0
    for row in range(ROWS):
        mixed = []
        for head in range(HEADS):
            made = scores(lambda r, i: qkv[r][i], lambda r, i: qkv[r][WIDTH + i], row, WIDTH, head)
            for i in range(HEAD):
                at = 2 * WIDTH + head * HEAD + i
                mixed.append(sum(w * qkv[other][at] for other, w in enumerate(made)))
        for j in range(WIDTH):
            y = sum(mixed[i] * weights["out"][j * WIDTH + i] for i in range(WIDTH))
            loss += y * SLOPES[row * WIDTH + j]
    return loss


def plain_training():
    """SGD by central differences of the loss."""
    weights = {name: numbers(a * b, 3 + i) for i, (name, (a, b)) in enumerate(SHAPES.items())}
    losses = []
    for _ in range(STEPS):
        losses.append(plain_loss(weights))
        gradients = {}
        for name, values in weights.items():
            gradients[name] = []
            for i, value in enumerate(values):
                values[i] = value + 1e-5
                more = plain_loss(weights)
                values[i] = value - 1e-5
                less = plain_loss(weights)
                values[i] = value
                gradients[name].append((more - less) / 2e-5)
        for name, values in weights.items():
            for i, gradient in enumerate(gradients[name]):
                values[i] -= RATE * gradient
    return losses, weights


def trained(group):
    """Losses, and this rank's part of the weights with their places in the whole."""
    with trireme.Tensor(group, 4, gemm="builtin") as tensor:
        with trireme.ParallelAttention(
            tensor, "attention", WIDTH, HEADS, ROWS, core=(core_forward, core_backward)
        ) as attention:
            mode = trireme.ParallelMode
            assert attention.mode == mode.COLUMN | mode.ROW
            own = tensor.range(WIDTH)
            assert [h * HEAD for h in attention.heads] == list(own)[::HEAD]
            places = {
                "qkv": [
                    (part * WIDTH + i) * WIDTH + j
                    for part in range(3)
                    for i in own
                    for j in range(WIDTH)
                ],
                "out": [j * WIDTH + i for j in range(WIDTH) for i in own],
            }
            whole = {n: numbers(a * b, 3 + i) for i, (n, (a, b)) in enumerate(SHAPES.items())}
            mine = {n: array.array("f", (whole[n][p] for p in places[n])) for n in places}
            dw = {name: array.array("f", values) for name, values in mine.items()}
            x, dy = array.array("f", X), array.array("f", SLOPES)
            y, dx = array.array("f", X), array.array("f", X)
            kept, losses = bytearray(attention.kept_bytes), []
            for _ in range(STEPS):
                weights = mine["qkv"], None, mine["out"], None
                attention.forward(x, weights, y, kept)
                losses.append(sum(a * b for a, b in zip(y, dy)))
                attention.backward_input(dy, weights, dx, kept)
                attention.backward_weight(x, dy, (dw["qkv"], None, dw["out"], None), kept)
                for name, values in mine.items():
                    for i, gradient in enumerate(dw[name]):
                        values[i] -= RATE * gradient
            return losses, {n: dict(zip(places[n], mine[n])) for n in places}, list(dx)


class AttentionTest(TestCase):
    def test_training_is_that_of_a_plain_loop(self):
        losses, weights = plain_training()
        found = {}
        for ranks in (1, 2, 4):
            outcomes = self.ranks(ranks, trained)
            parts = {name: {} for name in SHAPES}
            for own_losses, own, dx in outcomes:
                self.assertEqual((own_losses, dx), (outcomes[0][0], outcomes[0][2]))
                for name in SHAPES:
                    parts[name] |= own[name]
            found[ranks] = outcomes[0][0], outcomes[0][2], parts
            self.assertEqual(found[ranks], found[1])  # the same bits
        for one, other in zip(found[1][0], losses):
            self.assertAlmostEqual(one, other, 4)
        self.assertLess(losses[-1], losses[0])
        for name, values in weights.items():
            self.assertEqual(len(found[1][2][name]), len(values))
            for i, value in enumerate(values):
                self.assertAlmostEqual(found[1][2][name][i], value, 4)

    def test_arguments_are_checked(self):
        def body(group):
            core = core_forward, core_backward
            with trireme.Tensor(group, 4, gemm="builtin") as tensor:
                for heads, width in ((3, 6), (0, 8), (4, 6)):
                    with self.assertRaisesRegex(trireme.InvalidArgumentError, f"{heads} heads"):
                        trireme.ParallelAttention(tensor, "a", width, heads, ROWS, core=core)
                with self.assertRaises(TypeError):
                    trireme.ParallelAttention(tensor, "a", 8, 4, ROWS, core=(1, 2))
                for _ in range(2):  # the names are free again
                    with trireme.ParallelAttention(tensor, "a", 8, 4, ROWS, core=core) as one:
                        with self.assertRaisesRegex(trireme.InvalidArgumentError, "kept has 3"):
                            one.forward([], (None,) * 4, [], bytearray(3))

        self.ranks(1, body)

    def test_passes_come_in_their_order(self):
        def body(group):
            broken = []

            def forward(call):
                core_forward(call)
                if broken:
                    raise broken.pop()

            core = forward, core_backward
            with trireme.Tensor(group, 4, gemm="builtin") as tensor:
                layers = [
                    trireme.ParallelAttention(tensor, name, WIDTH, HEADS, ROWS, core=core)
                    for name in "ab"
                ]
                x, dy = array.array("f", X), array.array("f", SLOPES)
                qkv, out = (array.array("f", numbers(a * b, 3)) for a, b in SHAPES.values())
                weights = qkv, None, out, None
                kept = bytearray(layers[0].kept_bytes)

                def call(name, layer=0):
                    one, to = layers[layer], array.array("f", X)
                    if name == "forward":
                        one.forward(x, weights, to, kept)
                    elif name == "backward_input":
                        one.backward_input(dy, weights, to, kept)
                    else:
                        one.backward_weight(x, dy, (qkv[:], None, out[:], None), kept)

                def refused(name, missing, layer=0):
                    with self.assertRaisesRegex(
                        trireme.InvalidStateError, f"^{name}: {missing}.. of this .* is missing"
                    ):
                        call(name, layer)

                def all_but(name):
                    if name != "backward_input":
                        refused("backward_input", "forward")
                    if name != "backward_weight":
                        refused("backward_weight", "backward_input")

                all_but("forward")
                for _ in range(2):  # also with what the micro-batch before has left
                    call("forward")
                    call("forward")
                    refused("backward_input", "forward", layer=1)
                    all_but("backward_input")
                    call("backward_input")
                    refused("backward_weight", "backward_input", layer=1)
                    all_but("backward_weight")
                    call("backward_weight")
                    all_but("forward")
                call("forward")
                broken.append(ZeroDivisionError())
                with self.assertRaises(ZeroDivisionError):
                    call("forward")
                all_but("forward")
                for layer in layers:
                    layer.close()

        self.ranks(1, body)

    def test_abort_ends_the_wait_for_a_core_that_raised(self):
        def broken(call):
            raise ZeroDivisionError

        def body(group):
            core = broken if group.rank == 1 else core_forward
            with trireme.Tensor(group, 4, gemm="builtin") as tensor:
                with trireme.ParallelAttention(
                    tensor, "a", WIDTH, HEADS, ROWS, core=(core, core_backward)
                ) as layer:
                    x, y = array.array("f", X), array.array("f", X)
                    qkv = array.array("f", bytes(4 * 3 * WIDTH * WIDTH // 2))
                    out = array.array("f", bytes(4 * WIDTH * WIDTH // 2))
                    try:
                        layer.forward(x, (qkv, None, out, None), y, bytearray(layer.kept_bytes))
                    except ZeroDivisionError:
                        group.abort("a core has raised")
                        return "raised"
                    except trireme.AbortedError as error:
                        return str(error)

        told, raised = self.ranks(2, body)
        self.assertEqual(raised, "raised")
        self.assertIn("a core has raised", told)


if __name__ == "__main__":
    unittest.main()
