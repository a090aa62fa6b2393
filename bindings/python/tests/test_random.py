"""Random numbers that an element's place decides."""

import array
import math
import re
import unittest

from support import TestCase, trireme

try:
    import numpy
except ImportError:
    numpy = None

# Of the published vectors of Philox 4x32-10: the words of counter 0 with key 0.
WORDS = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


def floats(count, value=0.0, letter="f"):
    return array.array(letter, [value] * count)


class UniformTest(TestCase):
    def test_values_are_the_published_ones(self):
        values = floats(4)
        trireme.random_uniform(values)
        self.assertEqual(list(values), [(word >> 8) * 2.0**-24 for word in WORDS])
        wide = floats(4, letter="d")
        trireme.random_uniform(wide)
        self.assertEqual([int(one * 2**32) for one in wide], list(WORDS))
        bits = array.array("H", [0] * 4)
        trireme.random_uniform(bits, dtype="bf16")
        kept = [array.array("f", [(word >> 24) * 2.0**-8]) for word in WORDS]
        self.assertEqual(
            list(bits), [int.from_bytes(one.tobytes(), "little") >> 16 for one in kept]
        )

    def test_parts_are_parts_of_the_whole(self):
        whole = floats(5 * 13)
        trireme.random_uniform(whole, seed=1 << 63, draw=9, columns=13)
        for world in (1, 2, 3, 4, 5, 8):
            for rank in range(world):
                first, end = rank * 13 // world, (rank + 1) * 13 // world
                part = floats(3 * (end - first))
                trireme.random_uniform(
                    part,
                    seed=1 << 63,
                    draw=9,
                    first_row=2,
                    first_column=first,
                    columns=end - first,
                    all_columns=13,
                )
                expected = [whole[row * 13 + at] for row in (2, 3, 4) for at in range(first, end)]
                self.assertEqual(list(part), expected)

    def test_seed_and_draw_make_other_numbers(self):
        found = set()
        for seed, draw in ((0, 0), (1, 0), (0, 1), (1 << 32, 0), (0, 1 << 32)):
            values = floats(3)
            trireme.random_uniform(values, seed=seed, draw=draw)
            found.add(tuple(values))
        self.assertEqual(len(found), 5)

    @unittest.skipIf(numpy is None, "numpy is not installed")
    def test_an_array_tells_its_rows_and_columns(self):
        whole = numpy.zeros((2, 3, 10), numpy.float64)
        trireme.random_uniform(whole, seed=4)
        right = numpy.zeros((2, 3, 4), numpy.float64)
        trireme.random_uniform(right, seed=4, first_column=6, all_columns=10)
        numpy.testing.assert_array_equal(right, whole[:, :, 6:])
        single = numpy.zeros((), numpy.float16)
        trireme.random_uniform(single)
        self.assertEqual(float(single), (WORDS[0] >> 21) * 2.0**-11)
        trireme.random_uniform(numpy.zeros((3, 0), numpy.float32), first_column=1, all_columns=1)

    def test_bad_input_is_refused(self):
        values = floats(6, 7.0)
        refused = (
            ({"columns": 4}, "no whole rows of 4 columns"),
            ({"columns": 0}, "columns is 0"),
            ({"columns": 1 << 64}, "out of range"),
            ({"columns": -1}, "out of range"),
            ({"first_column": 1}, "beyond all_columns, 6"),
            ({"all_columns": 5}, "beyond all_columns, 5"),
            ({"columns": 1, "first_row": (1 << 64) - 3}, "does not fit into 64 bits"),
            ({"seed": -1}, "seed"),
            ({"draw": 1 << 64}, "draw"),
        )
        for options, words in refused:
            with self.assertRaisesRegex(trireme.InvalidArgumentError, words):
                trireme.random_uniform(values, **options)
        with self.assertRaises(trireme.UnsupportedError):
            trireme.random_uniform(array.array("i", [0] * 6))
        with self.assertRaises(TypeError):
            trireme.random_uniform(bytes(24), dtype="f32")
        self.assertEqual(list(values), [7.0] * 6)
        trireme.random_uniform(array.array("f"))

    def test_rows_of_bytes_hold_whole_elements(self):
        for shape in ((2, 6), (8, 1), (2, 2, 2), (4, 3, 1)):
            memory = bytearray(b"7" * math.prod(shape))
            view = memoryview(memory).cast("B", shape)
            words = f"no whole rows of memory of the shape {re.escape(str(shape))}"
            with self.assertRaisesRegex(ValueError, words):
                trireme.random_uniform(view, dtype="f32")
            with self.assertRaisesRegex(ValueError, words):
                trireme.random_dropout(view, 0.5, dtype="f32")
            self.assertEqual(memory, b"7" * math.prod(shape))
        # Two rows of three elements each are the left half of rows of six.
        whole, memory = floats(12), bytearray(24)
        trireme.random_uniform(whole, columns=6, seed=8)
        left = memoryview(memory).cast("B", (2, 12))
        trireme.random_uniform(left, seed=8, all_columns=6, dtype="f32")
        self.assertEqual(memory, (whole[:3] + whole[6:9]).tobytes())


class DropoutTest(TestCase):
    def test_the_kept_grow_and_backward_keeps_the_same(self):
        forward, gradient, out = floats(1000, 3.0), floats(1000, 1.0, "d"), floats(1000, 9.0, "d")
        trireme.random_dropout(forward, 0.25, seed=5, draw=6)
        trireme.random_dropout(gradient, 0.25, out=out, seed=5, draw=6)
        self.assertEqual(list(gradient), [1.0] * 1000)
        self.assertEqual(set(forward), {0.0, 4.0})
        self.assertEqual([one == 0 for one in forward], [one == 0 for one in out])
        self.assertEqual(set(out), {0.0, 1 / 0.75})
        self.assertTrue(150 < list(forward).count(0.0) < 350)
        parts = [floats(500, 3.0), floats(500, 3.0)]
        for rank in (0, 1):
            trireme.random_dropout(
                parts[rank], 0.25, seed=5, draw=6, first_column=500 * rank, all_columns=1000
            )
        self.assertEqual(list(forward), [*parts[0], *parts[1]])

    def test_bad_input_is_refused(self):
        values = floats(6, 7.0)
        for rate in (1, -0.1, 2, math.nan, math.inf):
            with self.assertRaisesRegex(trireme.InvalidArgumentError, "rate"):
                trireme.random_dropout(values, rate)
        for out in (floats(5), floats(6, letter="d")):
            with self.assertRaisesRegex(trireme.InvalidArgumentError, "out has"):
                trireme.random_dropout(values, 0.5, out=out)
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "overlap"):
            trireme.random_dropout(memoryview(values)[:5], 0.5, out=memoryview(values)[1:])
        with self.assertRaises(TypeError):
            trireme.random_dropout(values, None)
        with self.assertRaises(TypeError):
            trireme.random_dropout([1.0], 0.5)
        self.assertEqual(list(values), [7.0] * 6)


if __name__ == "__main__":
    unittest.main()
