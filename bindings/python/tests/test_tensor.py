"""Tensor objects and regions: shares, passes of every kind, refusals."""

import array
import unittest

from support import TestCase, needs_numpy, numpy, run_ranks, trireme

ROWS, COLUMNS = 5, 7
KINDS = ("copy", "reduce", "gather", "gather_sum", "scatter", "reduce_scatter", "exchange")


def whole(salt):
    """An array that all ranks know, of whole numbers, so that sums are exact in any order."""
    return array.array("f", ((i * 31 + salt * 17) % 23 - 11 for i in range(ROWS * COLUMNS)))


def part(tensor, values, form):
    """A rank's rows or columns of an array, or the array."""
    rows = tensor.range(ROWS) if form == "rows" else range(ROWS)
    columns = tensor.range(COLUMNS) if form == "columns" else range(COLUMNS)
    return array.array("f", (values[row * COLUMNS + column] for row in rows for column in columns))


def forms(kind, dimension):
    """The forms of the array before and after; a sum takes summands on its way."""
    other = {"rows": "columns", "columns": "rows"}.get(dimension)
    return {
        "copy": ("whole", "summands"),
        "reduce": ("summands", "whole"),
        "gather": (dimension, "whole"),
        "gather_sum": (dimension, "summands"),
        "scatter": ("whole", dimension),
        "reduce_scatter": ("summands", dimension),
        "exchange": (dimension, other),
    }[kind]


class TensorTest(TestCase):
    def test_ranks_share_an_extent(self):
        def body(group):
            with trireme.Tensor(group, 8) as tensor:
                assert tensor.blocks == 8
                assert [tensor.range(10, rank)[-1] for rank in range(3)] == [1, 5, 9]
                assert [tensor.block(5, i) for i in range(4)] == [
                    range(0, 0),
                    range(0, 1),
                    range(1, 1),
                    range(1, 2),
                ]
                return tensor.own_blocks, tensor.range(10), tensor.heads(12, 3), tensor.heads(4)

        found = self.ranks(3, body)
        first, second, _ = found
        self.assertEqual([r[0] for r in found], [range(2), range(2, 5), range(5, 8)])
        self.assertEqual([r[1] for r in found], [range(0, 2), range(2, 6), range(6, 10)])
        self.assertEqual(first[2], trireme.Heads(range(0, 3), range(0, 1), True))
        self.assertEqual(second[2], trireme.Heads(range(3, 7), range(0, 2), True))
        self.assertEqual(first[3], trireme.Heads(range(0, 1), range(0, 1), False))

    def test_columns_go_with_their_heads(self):
        def body(group):
            with trireme.Tensor(group, 8) as tensor:
                heads = tensor.heads(12, 3).heads
                values = array.array("f", range(2 * 12 * 4))
                out = array.array("f", [0] * (2 * 4 * len(heads)))
                with tensor.region(
                    "q", "scatter", 2, 48, dimension="columns", column_unit=4
                ) as region:
                    region.forward(values, out)
                first, end = 4 * heads.start, 4 * heads.stop
                assert out == values[first:end] + values[48 + first : 48 + end]
                with tensor.region("r", "gather", 24, 1, dimension="rows", row_unit=2) as region:
                    return len(heads), region.info.input_count

        self.assertEqual(self.ranks(3, body), [(3, 6), (4, 8), (5, 10)])

    def test_every_kind_converts_arrays_and_gradients(self):
        def arrays(tensor, form, salt):
            """The arrays of this rank, and the whole that they are part of."""
            if form != "summands":
                value = whole(salt)
                return [part(tensor, value, form)], value
            summands = [whole(100 * salt + block) for block in range(tensor.blocks)]
            return [summands[block] for block in tensor.own_blocks], list(map(sum, zip(*summands)))

        def check(tensor, kind, dimension):
            before, after = forms(kind, dimension)
            with tensor.region("r", kind, ROWS, COLUMNS, dimension=dimension) as region:
                for backward in (False, True):
                    given, taken = (after, before) if backward else (before, after)
                    parts, value = arrays(tensor, given, 3 + backward)
                    want = part(tensor, value, taken)
                    out = array.array("f", [99] * len(want))
                    run = region.backward if backward else region.forward
                    run(parts if len(parts) > 1 else parts[0], out)
                    assert out == want, (kind, dimension, backward)
                info = region.info
                assert (info.forward_passes, info.backward_passes) == (1, 1)

        def body(group):
            for blocks in (0, 8):
                with trireme.Tensor(group, blocks) as tensor:
                    for kind in KINDS:
                        splits = kind not in ("copy", "reduce")
                        for dimension in ("rows", "columns") if splits else ("none",):
                            check(tensor, kind, dimension)
            return True

        for world_size in (1, 2, 3):
            self.assertEqual(self.ranks(world_size, body), [True] * world_size)

    @needs_numpy
    def test_arrays_of_numpy_tell_their_dtype(self):
        region = trireme.Tensor(self.alone()).region("x", "copy", 2, 3, dtype=numpy.float64)
        given, out = numpy.arange(6.0).reshape(2, 3), numpy.zeros((2, 3))
        region.forward(given, out)
        self.assertTrue((out == given).all())
        with self.assertRaisesRegex(TypeError, "of type f32, the region of f64"):
            region.forward(given.astype(numpy.float32), out)

    def test_ranks_that_differ_all_get_a_mismatch(self):
        def body(group):
            tensor = trireme.Tensor(group)
            region = tensor.region("odd" if group.rank else "even", "reduce", 1, 2)
            region.forward(array.array("f", [1, 2]), array.array("f", [0, 0]))

        for outcome in run_ranks(2, body):
            self.assertIsInstance(outcome, trireme.MismatchError)
            self.assertIn('forward "even"', str(outcome))

    def test_narrow_numbers_are_memory_of_16_bits(self):
        def body(group):
            region = trireme.Tensor(group).region("half", "reduce", 1, 2, dtype="bf16")
            out = array.array("H", [0, 0])
            region.forward(array.array("H", [0x3F80, 0x4000]), out)  # 1 and 2
            return out.tolist()

        self.assertEqual(self.ranks(2, body), [[0x4000, 0x4080]] * 2)

    def test_a_rank_that_does_not_come_is_a_timeout(self):
        def body(group):
            if group.rank:
                return None
            region = trireme.Tensor(group).region("late", "reduce", 1, 1)
            with self.assertRaisesRegex(trireme.TimeoutError, "the deadline is 0.05 s"):
                region.forward(array.array("f", [1]), array.array("f", [1]), timeout=0.05)
            return True

        self.assertEqual(self.ranks(2, body), [True, None])

    def test_wrong_arguments_are_refused(self):
        group = self.alone()
        with self.assertRaises(TypeError):
            trireme.Tensor(None)
        for blocks in (-1, 65537, 1 << 32):
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Tensor(group, blocks)
        tensor = trireme.Tensor(group, 2)
        for call in (
            lambda: tensor.range(4, 1),
            lambda: tensor.range(-1),
            lambda: tensor.block(4, 2),
            lambda: tensor.heads(4, 3),
            lambda: tensor.region("", "copy", 1, 1),
            lambda: tensor.region("x", "copies", 1, 1),
            lambda: tensor.region("x", "copy", 1, 1, dimension="rows"),
            lambda: tensor.region("x", "gather", 1, 1),
            lambda: tensor.region("x", "gather", 1, 1, dimension="rows", parts=2),
            lambda: tensor.region("x", "copy", 1 << 40, 1 << 40),
            lambda: tensor.region("x", "copy", 4, 4, row_unit=2),
            lambda: tensor.region("x", "gather", 4, 4, dimension="rows", column_unit=2),
            lambda: tensor.region("x", "gather", 4, 4, dimension="rows", row_unit=3),
            lambda: tensor.region("x", "gather", 4, 4, dimension="rows", row_unit=-1),
            lambda: tensor.region("a\nb", "copy", 1, 1),
        ):
            with self.assertRaises(trireme.InvalidArgumentError):
                call()
        with self.assertRaises(trireme.UnsupportedError):
            tensor.region("x", "reduce", 1, 1, dtype="bool")
        region = tensor.region("x", "reduce", 1, 2)
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "another region has"):
            tensor.region("x", "reduce", 1, 2)
        good, out = array.array("f", [1, 2]), array.array("f", [7, 7])
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "part_count is 1"):
            region.forward(good, out)
        with self.assertRaisesRegex(trireme.InvalidArgumentError, r"parts\[1\] has 3 elements"):
            region.forward([good, array.array("f", [1, 2, 3])], out)
        with self.assertRaisesRegex(TypeError, r"parts\[0\] has elements of type f64"):
            region.forward([array.array("d", [1, 2]), good], out)
        with self.assertRaises(TypeError):
            region.forward([good, good], b"12345678")
        with self.assertRaisesRegex(trireme.InvalidStateError, "needs as many forward passes"):
            region.backward(good, out)
        self.assertEqual(out.tolist(), [7, 7])
        tensor.close()
        region.forward([good, good], out)
        self.assertEqual(out.tolist(), [2, 4])
        region.close()
        for call in (lambda: region.forward([good, good], out), lambda: tensor.range(4)):
            with self.assertRaises(trireme.InvalidHandleError):
                call()


if __name__ == "__main__":
    unittest.main()
