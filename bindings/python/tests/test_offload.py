"""Optimizer state in a file trains to the same bits, and can be read and written."""

import array
import os
import tempfile
import unittest

from support import TestCase, numpy, trireme

ELEMENTS = 5000


def train(group, strategy, steps=3, **options):
    model = trireme.Model(group, strategy, units=trireme.Units(minimum_bytes=1))
    model.add_parameter("a", (ELEMENTS,))
    model.seal()
    model.set_parameters(array.array("f", [i % 7 - 3 for i in range(ELEMENTS)]))
    optimizer = trireme.Optimizer(model, "adam", **options)
    for step in range(steps):
        gradient = [(3 * i + step + group.rank) % 11 - 4.5 for i in range(ELEMENTS)]
        model.accumulate_flat(array.array("f", gradient))
        optimizer.step()
    return model, optimizer


class OffloadTest(TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name

    def wrong(self):
        """Options that no directory helps."""
        yield ""
        yield trireme.Offload(self.path, ratio=1.5)
        yield trireme.Offload(self.path, ratio=-0.5)
        yield trireme.Offload(self.path, buffer_bytes=100)

    def test_the_bits_are_the_same(self):
        def body(group):
            model, optimizer = train(group, "zero1")
            half = trireme.Offload(self.path, ratio=0.5, buffer_bytes=32768)
            offloaded, other = train(group, "zero1", offload=half)
            info = other.offload_info
            saved = other.save()
            self.assertEqual(optimizer.save(), saved)
            other.load(saved)
            return (
                model.get_parameters().tobytes() == offloaded.get_parameters().tobytes(),
                info,
            )

        for same, info in self.ranks(2, body):
            self.assertTrue(same)
            self.assertEqual(info.path, self.path)
            self.assertEqual(info.direct, info.why_not_direct == "")
            self.assertEqual(info.io_uring, info.why_not_io_uring == "")
            self.assertGreater(info.file_bytes, 0)
            self.assertGreater(info.resident_bytes, 0)
            self.assertEqual(info.written_bytes, 3 * info.file_bytes)
            self.assertEqual((info.failed_writes, info.failed_errno), (0, 0))
        self.assertEqual(os.listdir(self.path), [])

    def test_parameters_in_a_file_have_the_same_bits(self):
        def body(group):
            ways = []
            half = trireme.Offload(self.path, ratio=0.5, buffer_bytes=32768)
            apart = trireme.Units(minimum_bytes=1)
            for options in ({"shards": trireme.Shards(share="never")}, {"offload": half}):
                model = trireme.Model(group, "zero3", units=apart, **options)
                for name in ("a", "b", "c"):
                    model.add_parameter(name, (ELEMENTS,))
                model.seal()
                start = [i % 7 - 3 for i in range(3 * ELEMENTS)]
                model.set_parameters(array.array("f", start))
                optimizer = trireme.Optimizer(model, "adam")
                gradient = [(3 * i + group.rank) % 11 - 4.5 for i in range(3 * ELEMENTS)]
                for _step in range(2):
                    model.accumulate_flat(array.array("f", gradient))
                    optimizer.step()
                saved = optimizer.save()
                with model.gathered("b"):
                    bits = model.parameter("b").tobytes()
                index = [found.kind for found in optimizer.ranges()].index("parameter")
                length = len(optimizer.ranges()[index].data)
                values = optimizer.read_range(index)
                optimizer.write_range(index, values)
                ways.append((saved, bits, values.tobytes(), optimizer.save()))
            memory = model.memory()
            self.assertEqual(memory.planned_parameters, memory.allocated_parameters)
            self.assertEqual(length, 0)
            self.assertEqual(ways[0], ways[1])
            return model.offload_info, memory.planned_parameters

        for info, parameters in self.ranks(2, body):
            self.assertEqual(info.path, self.path)
            self.assertGreater(info.file_bytes, 0)
            self.assertEqual(info.resident_bytes, parameters)
            self.assertGreater(info.written_bytes, info.file_bytes)
            self.assertEqual((info.failed_writes, info.failed_errno), (0, 0))
        self.assertEqual(os.listdir(self.path), [])

    def test_parameters_that_cannot_be_in_a_file_are_refused(self):
        def body(group):
            for wrong in self.wrong():
                with self.assertRaisesRegex(trireme.InvalidArgumentError, r"options\.offload\."):
                    trireme.Model(group, "zero3", offload=wrong)
            for strategy in ("data_parallel", "zero1", "zero2"):
                with self.assertRaisesRegex(trireme.UnsupportedError, "whole parameters"):
                    trireme.Model(group, strategy, offload=self.path)
            model = trireme.Model(group, "zero3", offload="/nowhere/at/all")
            model.add_parameter("a", (3,))
            with self.assertRaisesRegex(trireme.TriremeError, "/nowhere/at/all"):
                model.seal()
            model = trireme.Model(group, "zero3")
            model.add_parameter("a", (3,))
            model.seal()
            with self.assertRaisesRegex(trireme.InvalidStateError, "offload"):
                model.offload_info

        self.ranks(1, body)

    def test_ranges_are_read_and_written(self):
        def body(group):
            _model, optimizer = train(group, "zero2", offload=self.path)
            for index, found in enumerate(optimizer.ranges()):
                values = optimizer.read_range(index)
                self.assertEqual(len(values), found.count)
                if found.kind == "parameter":
                    self.assertEqual(values.tobytes(), found.data.tobytes())
                    continue
                self.assertEqual(len(found.data), 0)
                changed = array.array("f", [2 * value + 1 for value in values])
                optimizer.write_range(index, changed)
                self.assertEqual(optimizer.read_range(index).tobytes(), changed.tobytes())
                for wrong, words in (
                    (array.array("f", [1]), "1 elements of f32, .* 2500 of f32"),
                    (array.array("d", [1] * 1250), "1250 elements of f64, .* 2500 of f32"),
                    (array.array("i", [1] * 2500), "2500 elements of i32, .* 2500 of f32"),
                    (bytes(10000), "10000 elements of u8, .* 2500 of f32"),
                ):
                    with self.assertRaisesRegex(trireme.InvalidArgumentError, words):
                        optimizer.write_range(index, wrong)
                self.assertEqual(optimizer.read_range(index).tobytes(), changed.tobytes())
            with self.assertRaises(trireme.InvalidArgumentError):
                optimizer.read_range(99)

        self.ranks(2, body)

    def test_narrow_ranges_are_written_as_their_bits(self):
        def body(group):
            for dtype in ("f16", "bf16"):
                model = trireme.Model(group, "data_parallel")
                model.add_parameter("a", (6,), dtype)
                model.seal()
                optimizer = trireme.Optimizer(model, "adam")
                bits = array.array("H", [0x3C00, 0x4000, 0, 0x3C00, 0x4000, 0])
                optimizer.write_range(0, bits)
                self.assertEqual(optimizer.read_range(0).tobytes(), bits.tobytes())
                wrong = [array.array("h", bits), array.array("f", [0] * 3), bytes(12), bits[1:]]
                if numpy is not None and dtype == "bf16":
                    wrong.append(numpy.zeros(6, "float16"))
                elif numpy is not None:
                    optimizer.write_range(0, numpy.zeros(6, "float16"))
                    self.assertEqual(optimizer.read_range(0).tobytes(), bytes(12))
                for data in wrong:
                    with self.assertRaisesRegex(trireme.InvalidArgumentError, f"6 of {dtype}"):
                        optimizer.write_range(0, data)

        self.ranks(1, body)

    def test_what_cannot_be_is_refused(self):
        def body(group):
            for wrong in self.wrong():
                with self.assertRaisesRegex(trireme.InvalidArgumentError, r"options\.offload\."):
                    train(group, "zero1", 0, offload=wrong)
            with self.assertRaisesRegex(trireme.TriremeError, "/nowhere/at/all"):
                train(group, "zero1", 0, offload="/nowhere/at/all")
            _model, optimizer = train(group, "zero1", 0)
            with self.assertRaisesRegex(trireme.InvalidStateError, "offload"):
                optimizer.offload_info

        self.ranks(1, body)


if __name__ == "__main__":
    unittest.main()
