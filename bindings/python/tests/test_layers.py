"""Layers that ranks split: forward and backward against plain sums, modes, refusals."""

import array
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
            with trireme.Tensor(group, 4, gemm="builtin") as tensor:
                own = tensor.range(HIDDEN)
                mine = [row[own.start : own.stop] for row in w2]
                with (
                    trireme.ColumnParallelLinear(tensor, "fc1", INPUT, HIDDEN, ROWS) as one,
                    trireme.RowParallelLinear(tensor, "fc2", HIDDEN, INPUT, ROWS, bias=True) as two,
                ):
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

        self.ranks(3, body)

    def test_an_mlp_has_the_same_bits_for_every_number_of_ranks(self):
        sizes = {"w1": (2 * HIDDEN, INPUT), "w2": (INPUT, HIDDEN)}
        weights = {name: whole(*size, salt) for salt, (name, size) in enumerate(sizes.items())}
        x, dy = whole(ROWS, INPUT, 1), whole(ROWS, INPUT, 4)

        def body(group):
            with trireme.Tensor(group, 4, gemm="builtin", sequence=True) as tensor:
                own, rows = tensor.range(HIDDEN), tensor.range(ROWS)
                w1 = weights["w1"]
                parts = w1[own.start : own.stop] + w1[HIDDEN + own.start : HIDDEN + own.stop]
                w2 = [row[own.start : own.stop] for row in weights["w2"]]
                mine, count = (flat(parts), None, flat(w2), None), len(rows) * INPUT
                with trireme.ParallelMLP(
                    tensor, "mlp", INPUT, HIDDEN, INPUT, ROWS, activation="swiglu"
                ) as mlp:
                    assert trireme.ParallelMode.SEQUENCE in mlp.mode
                    kept, y, dx = bytearray(mlp.info.kept_bytes), zeros(count), zeros(count)
                    own_x = flat(x[rows.start : rows.stop])
                    own_dy = flat(dy[rows.start : rows.stop])
                    mlp.forward(own_x, mine, y, kept)
                    mlp.backward_input(own_dy, mine, dx, kept)
                    dw1, dw2 = zeros(len(parts) * INPUT), zeros(len(own) * INPUT)
                    mlp.backward_weight(own_x, own_dy, (dw1, None, dw2, None), kept)
                    assert any(dw1) == (len(own) > 0)
                    return y, dx

        found = {
            ranks: [array.array("f", sum((list(part[i]) for part in parts), [])) for i in (0, 1)]
            for ranks in (1, 2, 4)
            for parts in [self.ranks(ranks, body)]
        }
        self.assertTrue(any(found[1][0]) and any(found[1][1]))
        self.assertEqual(found[1], found[2])
        self.assertEqual(found[1], found[4])

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
