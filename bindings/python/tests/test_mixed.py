"""A model of several types: its parameters by name, and as bytes."""

import array
import unittest

from support import TestCase, trireme

STRATEGIES = ("data_parallel", "zero1", "zero2", "zero3", "hybrid_shard")


def build(group, strategy):
    shards = 2 if strategy == "hybrid_shard" else None
    model = trireme.Model(group, strategy, units=trireme.Units(minimum_bytes=1), shards=shards)
    model.add_parameter("narrow", [5], dtype="bf16")
    model.add_parameter("wide", [3], dtype="f64")
    model.add_parameter("single", [2, 3], dtype="f32")
    model.add_parameter("scalar", [], dtype="f32", frozen=True)
    model.add_parameter("again", [2, 3], dtype="f32", tied_to="single")
    model.seal()
    return model


def values_of(root):
    return {
        "narrow": array.array("H", [root + i for i in range(5)]),
        "wide": array.array("d", [0.1 * i + root for i in range(3)]),
        "single": array.array("f", [i - root for i in range(6)]),
        "scalar": array.array("f", [7.5 + root]),
    }


class MixedTest(TestCase):
    def test_parameters_go_to_all_ranks_by_name(self):
        def body(group, strategy):
            model = build(group, strategy)
            for root in range(group.world_size):
                model.broadcast_parameters(values_of(root) if group.rank == root else None, root)
            seen = model.gather_parameters()
            shapes = {name: (view.format, view.shape) for name, view in seen.items()}
            return shapes, {name: view.tobytes() for name, view in seen.items()}

        for world_size in (1, 2, 4):
            expected = {name: v.tobytes() for name, v in values_of(world_size - 1).items()}
            for strategy in STRATEGIES:
                if strategy == "hybrid_shard" and world_size == 1:
                    continue
                for shapes, seen in self.ranks(world_size, lambda g, s=strategy: body(g, s)):
                    self.assertEqual(seen, expected)
                    self.assertEqual(shapes["single"], ("f", (2, 3)))
                    self.assertEqual(shapes["narrow"], ("H", (5,)))
                    self.assertEqual(shapes["scalar"], ("f", ()))

    def test_what_does_not_fit_is_refused(self):
        model = build(self.alone(), "zero1")
        good = values_of(0)
        for change, words in (
            ({"wide": array.array("f", [1, 2, 3])}, "'wide' is f64, and the value f32"),
            ({"single": array.array("f", [1])}, "'single' has 24 bytes, and the value 4"),
            ({"other": array.array("f", [1])}, "no parameter 'other' of its own"),
            ({"again": array.array("f", [0] * 6)}, "no parameter 'again' of its own"),
        ):
            with self.assertRaises((ValueError, trireme.TriremeError)) as caught:
                model.broadcast_parameters({**good, **change})
            self.assertIn(words, str(caught.exception))
        del good["wide"]
        with self.assertRaisesRegex(ValueError, "no value for parameter 'wide'"):
            model.broadcast_parameters(good)
        with self.assertRaises(trireme.InvalidArgumentError):
            model.broadcast_parameters(values_of(0), 1)


if __name__ == "__main__":
    unittest.main()
