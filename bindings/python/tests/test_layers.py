"""Layers that ranks split: forward and backward against plain sums, modes, refusals."""

import array
import math
import unittest

from support import TestCase, trireme

ROWS, INPUT, HIDDEN = 3, 4, 6


def whole(rows, columns, salt):
    """Whole numbers, so that sums are exact in any order."""
    return [[(i * 7 + j * 3 + salt) % 9 - 4 for j in range(columns)] for i in range(rows)]


def flat(matrix):
    return array.array("f", (value for row in matrix for value in row))


def zeros(count):
    return array.array("f", [0] * count)


def product(left, right):
    return [[sum(a * b for a, b in zip(row, column)) for column in zip(*right)] for row in left]


def turned(matrix):
    return [list(column) for column in zip(*matrix)]


class LayersTest(TestCase):
    def test_a_pair_of_layers_computes_what_one_process_does(self):
        x, w1, w2 = whole(ROWS, INPUT, 1), whole(HIDDEN, INPUT, 2), whole(INPUT, HIDDEN, 3)
        b2, dy = whole(1, INPUT, 5), whole(ROWS, INPUT, 4)
        hidden = product(x, turned(w1))
        y = [[a + b for a, b in zip(row, b2[0])] for row in product(hidden, turned(w2))]
        dh = product(dy, w2)

        def body(group):
            with trireme.Tensor(group, 4, gemm="builtin", row_tile=2) as tensor:
                own = tensor.range(HIDDEN)
                mine = [row[own.start : own.stop] for row in w2]
                with (
                    trireme.ColumnParallelLinear(tensor, "fc1", INPUT, HIDDEN, ROWS) as one,
                    trireme.RowParallelLinear(tensor, "fc2", HIDDEN, INPUT, ROWS, bias=True) as two,
                ):
                    assert one.info.tile_rows == 2 and two.info.tile_rows == 2
                    assert one.mode == trireme.ParallelMode.COLUMN
                    assert two.mode == trireme.ParallelMode.ROW
                    assert range(one.info.first, one.info.first + one.info.count) == own
                    h, out = zeros(ROWS * len(own)), zeros(ROWS * INPUT)
                    one.forward(flat(x), flat(w1[own.start : own.stop]), h)
                    two.forward(h, flat(mine), out, bias=flat(b2))
                    assert out == flat(y), out
                    gh, gx = zeros(ROWS * len(own)), zeros(ROWS * INPUT)
                    two.backward_input(flat(dy), flat(mine), gh)
                    one.backward_input(gh, flat(w1[own.start : own.stop]), gx)
                    assert gx == flat(product(dh, w1))
                    gw, gb = zeros(INPUT * len(own)), zeros(INPUT)
                    for add in (False, True):
                        if add:
                            two.forward(h, flat(mine), out, bias=flat(b2))
                        two.backward_weight(h, flat(dy), gw, bias_out=gb, add=add)
                    wanted = [row[own.start : own.stop] for row in product(turned(dy), hidden)]
                    assert gw == flat([[2 * value for value in row] for row in wanted])
                    assert gb == array.array("f", (2 * sum(column) for column in zip(*dy)))
                    assert two.info.backward_weight_passes == 2
                    # Both gradients in one call, then once more for the weights' to be added.
                    gw1 = zeros(INPUT * len(own))
                    for add in (False, True):
                        one.forward(flat(x), flat(w1[own.start : own.stop]), h)
                        two.forward(h, flat(mine), out, bias=flat(b2))
                        gh, gx = zeros(ROWS * len(own)), zeros(ROWS * INPUT)
                        two.backward(h, flat(dy), flat(mine), gh, gw, bias_out=gb, add=add)
                        one.backward(flat(x), gh, flat(w1[own.start : own.stop]), gx, gw1, add=add)
                        assert gh == flat(row[own.start : own.stop] for row in dh)
                        assert gx == flat(product(dh, w1))
                    assert gw == flat([[2 * value for value in row] for row in wanted])
                    assert gb == array.array("f", (2 * sum(column) for column in zip(*dy)))
                    wanted1 = product(turned(dh), x)[own.start : own.stop]
                    assert gw1 == flat([[2 * value for value in row] for row in wanted1])

        self.ranks(3, body)

    def test_gradients_of_one_call_are_those_of_two(self):
        """With rows that are split, gathered once more or kept. A pass too many is refused."""
        x, dy, w = whole(ROWS, INPUT, 1), whole(ROWS, HIDDEN, 4), whole(HIDDEN, INPUT, 2)

        def body(group):
            for keep in (False, True):
                with trireme.Tensor(
                    group, gemm="builtin", sequence=True, keep_gathered=keep
                ) as tensor:
                    own, rows = tensor.range(HIDDEN), tensor.range(ROWS)
                    part = flat(w[own.start : own.stop])
                    own_x = flat(x[rows.start : rows.stop])
                    own_dy = flat(row[own.start : own.stop] for row in dy)
                    with trireme.ColumnParallelLinear(tensor, "fc", INPUT, HIDDEN, ROWS) as layer:
                        kept = bytearray(layer.info.kept_bytes)
                        assert bool(kept) == keep
                        dx, dw = zeros(len(own_x)), zeros(len(part))
                        layer.forward(own_x, part, zeros(ROWS * len(own)), kept=kept)
                        read = None if keep else own_x
                        layer.backward(read, own_dy, part, dx, dw, kept=kept)
                        assert dx == flat(product(dy, w)[rows.start : rows.stop])
                        assert dw == flat(product(turned(dy), x)[own.start : own.stop])
                        with self.assertRaises(trireme.InvalidStateError):
                            layer.backward(read, own_dy, part, dx, dw, kept=kept)
                        with self.assertRaisesRegex(trireme.InvalidArgumentError, "weight_out has"):
                            layer.backward(read, own_dy, part, dx, zeros(1), kept=kept)

        self.ranks(2, body)

    def test_an_mlp_has_the_same_bits_for_every_number_of_ranks(self):
        sizes = {"w1": (2 * HIDDEN, INPUT), "w2": (INPUT, HIDDEN)}
        weights = {name: whole(*size, salt) for salt, (name, size) in enumerate(sizes.items())}
        x, dy = whole(ROWS, INPUT, 1), whole(ROWS, INPUT, 4)

        def body(group, row_tile=0):
            keep = row_tile > 0
            with trireme.Tensor(
                group, 4, gemm="builtin", sequence=True, keep_gathered=keep, row_tile=row_tile
            ) as tensor:
                own, rows = tensor.range(HIDDEN), tensor.range(ROWS)
                w1 = weights["w1"]
                parts = w1[own.start : own.stop] + w1[HIDDEN + own.start : HIDDEN + own.stop]
                w2 = [row[own.start : own.stop] for row in weights["w2"]]
                mine, count = (flat(parts), None, flat(w2), None), len(rows) * INPUT
                with trireme.ParallelMLP(
                    tensor, "mlp", INPUT, HIDDEN, INPUT, ROWS, activation="swiglu"
                ) as mlp:
                    assert mlp.info.tile_rows == (row_tile or ROWS)
                    assert trireme.ParallelMode.SEQUENCE in mlp.mode
                    kept, y, dx = bytearray(mlp.info.kept_bytes), zeros(count), zeros(count)
                    own_x = flat(x[rows.start : rows.stop])
                    own_dy = flat(dy[rows.start : rows.stop])
                    mlp.forward(own_x, mine, y, kept)
                    mlp.backward_input(own_dy, mine, dx, kept)
                    dw1, dw2 = zeros(len(parts) * INPUT), zeros(len(own) * INPUT)
                    # `kept` has the gathered gradient, and with `keep` the input.
                    read, gradients = None if keep else own_x, (dw1, None, dw2, None)
                    mlp.backward_weight(read, None, gradients, kept)
                    assert any(dw1) == (len(own) > 0)
                    mlp.forward(own_x, mine, y, kept)
                    both = zeros(count), zeros(len(dw1)), None, zeros(len(dw2)), None
                    if not keep and count:
                        with self.assertRaisesRegex(ValueError, "input is NULL"):
                            mlp.backward(None, own_dy, mine, both[0], both[1:], kept)
                    mlp.backward(read, own_dy, mine, both[0], both[1:], kept)
                    assert (dx, dw1, dw2) == (both[0], both[1], both[3])
                    return y, dx

        def run(ranks, row_tile):
            parts = self.ranks(ranks, lambda group: body(group, row_tile))
            return [array.array("f", sum((list(part[i]) for part in parts), [])) for i in (0, 1)]

        alone = run(1, 0)
        self.assertTrue(any(alone[0]) and any(alone[1]))
        for ranks in (1, 2, 4):
            for row_tile in (0, 1, 2):
                self.assertEqual(alone, run(ranks, row_tile), (ranks, row_tile))

    def test_products_of_the_caller_are_those_that_layers_use(self):
        x, w, dy = whole(ROWS, INPUT, 1), whole(HIDDEN, INPUT, 2), whole(ROWS, HIDDEN, 4)

        def body(group):
            shapes = []

            def multiply(p):
                shapes.append((p.dtype, p.rows, p.columns, p.depth))
                for i in range(p.rows):
                    for j in range(p.columns):
                        total = p.result[i * p.result_step + j] if p.add else 0
                        for k in range(p.depth):
                            left = (k, i) if p.left_transposed else (i, k)
                            right = (j, k) if p.right_transposed else (k, j)
                            total += (
                                p.left[left[0] * p.left_step + left[1]]
                                * p.right[right[0] * p.right_step + right[1]]
                            )
                        p.result[i * p.result_step + j] = total

            with trireme.Tensor(group, 3, gemm=multiply) as tensor:
                assert tensor.gemm.kind == "caller"
                own = tensor.range(HIDDEN)
                layer = trireme.ColumnParallelLinear(tensor, "fc1", INPUT, HIDDEN, ROWS)
            with layer:  # the function lives as long as the layer
                part = flat(w[own.start : own.stop])
                y, dx, dw = zeros(ROWS * len(own)), zeros(ROWS * INPUT), zeros(len(part))
                own_dy = flat(row[own.start : own.stop] for row in dy)
                layer.forward(flat(x), part, y)
                assert y == flat(row[own.start : own.stop] for row in product(x, turned(w)))
                layer.backward_input(own_dy, part, dx)
                assert dx == flat(product(dy, w))
                layer.backward_weight(flat(x), own_dy, dw)
                assert dw == flat(product(turned(dy), x)[own.start : own.stop])
            assert all(shape[0] == "f32" for shape in shapes) and len(shapes) >= 3, shapes

        for ranks in (1, 3):
            self.ranks(ranks, body)

    def test_activations_of_the_caller_are_those_that_mlps_use(self):
        """Each output is the activation of an input, and the gradient of that is the slope."""
        inputs = array.array("f", (i / 4 - 3 for i in range(25)))
        unit, rows = array.array("f", [1]), len(inputs)

        def below(x):
            return (1 + math.erf(x / math.sqrt(2))) / 2

        def forward(call):
            assert (call.rows, call.columns, call.output_gradient) == (rows, 1, None)
            for i, x in enumerate(call.input):
                call.result[i] = x * below(x)

        def backward(call):
            for i, x in enumerate(call.input):
                slope = below(x) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
                call.result[i] = call.output_gradient[i] * slope

        def body(group):
            found = []
            with trireme.Tensor(group, gemm="builtin") as tensor:
                for name, activation in (("own", (forward, backward)), ("library", "gelu")):
                    with trireme.ParallelMLP(
                        tensor, name, 1, 1, 1, rows, activation=activation
                    ) as mlp:
                        y, dx = zeros(rows), zeros(rows)
                        kept, weights = bytearray(mlp.info.kept_bytes), (unit, None, unit, None)
                        mlp.forward(inputs, weights, y, kept)
                        mlp.backward_input(array.array("f", [1] * rows), weights, dx, kept)
                        found.append((y, dx))
            return found

        ((own, library),) = self.ranks(1, body)
        for one, other in zip(own, library):
            for a, b in zip(one, other):
                self.assertAlmostEqual(a, b, delta=1e-7 * max(1, abs(b)))
        self.assertAlmostEqual(library[0][16], below(1), delta=1e-7)

    def test_an_exception_of_a_function_comes_out_of_the_pass(self):
        def body(group):
            rank = group.rank

            def fail(_):
                raise ZeroDivisionError("of rank 1")

            def end(_):
                pass

            answers = []
            with trireme.Tensor(group, gemm=fail if rank == 1 else end) as tensor:
                with trireme.RowParallelLinear(tensor, "row", 2, 2, 1) as layer:
                    try:
                        layer.forward(zeros(len(tensor.range(2))), zeros(2), zeros(2))
                    except (ZeroDivisionError, trireme.CallbackError) as error:
                        answers.append(type(error).__name__)
            return answers

        self.assertEqual(self.ranks(2, body), [["CallbackError"], ["ZeroDivisionError"]])

        def bend(group):
            def fail(_):
                raise KeyError("of rank 0")

            def end(_):
                pass

            with trireme.Tensor(group, gemm="builtin") as tensor:
                activation = (fail if group.rank == 0 else end, end)
                with trireme.ParallelMLP(
                    tensor, "mlp", 2, 2, 2, 1, activation=activation, gated=True
                ) as mlp:
                    weights = zeros(4), None, zeros(2), None
                    try:
                        mlp.forward(zeros(2), weights, zeros(2), bytearray(mlp.info.kept_bytes))
                    except (KeyError, trireme.CallbackError) as error:
                        return type(error).__name__
            return None

        self.assertEqual(self.ranks(2, bend), ["KeyError", "CallbackError"])

    def test_the_provider_is_told(self):
        def body(group):
            with trireme.Tensor(group) as tensor, self.assertRaises(trireme.InvalidStateError):
                trireme.ColumnParallelLinear(tensor, "x", 1, 1, 1)
            with trireme.Tensor(group) as tensor:
                assert tensor.gemm is None and not tensor.sequence
            with trireme.Tensor(group, gemm="builtin") as tensor:
                assert tensor.gemm == trireme.GemmInfo("builtin", 1, True, "", "", "")
            with self.assertRaisesRegex(trireme.UnsupportedError, "tried libno.so: "):
                trireme.Tensor(group, gemm="loaded", library_name="libno.so,libneither.so")
            with self.assertRaisesRegex(ValueError, "gemm"):
                trireme.Tensor(group, gemm="blas")
            with self.assertRaisesRegex(TypeError, "the function itself"):
                trireme.Tensor(group, gemm="caller")

        self.ranks(1, body)

    def test_arrays_are_checked(self):
        def body(group):
            with (
                trireme.Tensor(group, gemm="builtin") as tensor,
                trireme.ColumnParallelLinear(tensor, "x", 2, 2, 1, bias=True) as layer,
            ):
                good, out = zeros(2), zeros(2)
                with self.assertRaisesRegex(trireme.InvalidArgumentError, "weight has 2 elements"):
                    layer.forward(good, zeros(2), out, bias=good)
                with self.assertRaisesRegex(TypeError, "bias is None"):
                    layer.forward(good, zeros(4), out)
                with self.assertRaisesRegex(TypeError, "input has elements of type f64"):
                    layer.forward(array.array("d", [0, 0]), zeros(4), out, bias=good)
                with self.assertRaises(trireme.InvalidStateError):
                    layer.backward_input(good, zeros(4), out)

        self.ranks(1, body)


if __name__ == "__main__":
    unittest.main()
