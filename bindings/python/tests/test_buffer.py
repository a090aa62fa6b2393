"""Memory that peers read in place."""

import gc
import unittest

from support import TestCase, needs_numpy, numpy, trireme


class BufferTest(TestCase):
    def test_the_memory_is_zero_aligned_and_of_the_size_asked_for(self):
        with trireme.Buffer(self.alone(), 1000) as buffer:
            self.assertEqual(buffer.nbytes, 1000)
            self.assertEqual(bytes(buffer.memory), bytes(1000))
            self.assertFalse(buffer.memory.readonly)
            self.assertEqual(trireme._native.address_of(buffer.memory) % 4096, 0)

    def test_collectives_work_on_it_and_on_pieces_of_it(self):
        def body(group):
            buffer = trireme.Buffer(group, 400)
            view = buffer.view("f32")
            for i in range(100):
                view[i] = group.rank + i
            group.all_reduce(view[10:20])
            group.all_reduce(buffer, dtype="f32", reduction="max")
            return view.tolist()

        for result in self.ranks(3, body):
            want = [2.0 + i for i in range(100)]
            want[10:20] = [3.0 + 3 * i for i in range(10, 20)]
            self.assertEqual(result, want)

    def test_views_by_dtype(self):
        buffer = trireme.Buffer(self.alone(), 16)
        for name, letter, count in (
            ("u8", "B", 16),
            ("f64", "d", 2),
            ("i32", "i", 4),
            ("bf16", "H", 8),
            ("f8e4m3", "B", 16),
        ):
            view = buffer.view(name)
            self.assertEqual((view.format, len(view)), (letter, count))
        with self.assertRaises(TypeError):
            buffer.view(99)
        with self.assertRaises(trireme.InvalidArgumentError):
            buffer.view("f33")

    def test_an_empty_buffer_has_empty_views(self):
        buffer = trireme.Buffer(self.alone(), 0)
        self.assertEqual((buffer.nbytes, len(buffer.memory), len(buffer.view("f32"))), (0, 0, 0))

    def test_views_outlive_the_buffer_and_the_group(self):
        group = self.alone()
        buffer = trireme.Buffer(group, 1 << 20)
        view = buffer.view("i32")
        buffer.close()
        group.close()
        del buffer, group
        gc.collect()
        view[-1] = 7
        self.assertEqual(view[-1], 7)

    def test_a_closed_buffer_is_refused(self):
        group = self.alone()
        buffer = trireme.Buffer(group, 8)
        buffer.close()
        buffer.close()
        for call in (
            lambda: buffer.memory,
            lambda: buffer.view("f32"),
            lambda: group.all_reduce(buffer),
        ):
            with self.assertRaisesRegex(trireme.InvalidHandleError, "the buffer is closed"):
                call()
        self.assertIn("closed", repr(buffer))

    def test_sizes_that_cannot_be_are_refused(self):
        group = self.alone()
        for size in (-1, 1 << 64):
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Buffer(group, size)
        with self.assertRaises((trireme.OutOfMemoryError, trireme.SystemCallError)):
            trireme.Buffer(group, 1 << 62)

    @needs_numpy
    def test_numpy_works_on_it_without_a_copy(self):
        buffer = trireme.Buffer(self.alone(), 64)
        values = numpy.asarray(buffer.view("f64"))
        values[:] = 1.5
        self.assertEqual(buffer.view("f64").tolist(), [1.5] * 8)
        halves = numpy.frombuffer(buffer.memory, numpy.float16)
        del buffer
        gc.collect()
        self.assertEqual(len(halves), 32)


if __name__ == "__main__":
    unittest.main()
