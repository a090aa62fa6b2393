"""Newcomers hand in other shapes, other dtypes, tensors and lists; the messages tell what to do."""

import array
import contextlib
import unittest

from support import TestCase, needs_numpy, numpy, trireme

try:
    import torch
except ImportError:
    torch = None

needs_torch = unittest.skipIf(torch is None or numpy is None, "PyTorch or numpy is not installed")


def zeros(*shape):
    """f32, C-contiguous, without numpy."""
    count = 1
    for extent in shape:
        count *= extent
    return memoryview(bytearray(4 * count)).cast("B").cast("f", shape)


class NewcomerTest(TestCase):
    def model(self, strategy="data_parallel", *parameters, **options):
        """Of a: 4 x 3 in unit u, or of the parameters named."""
        model = trireme.Model(self.alone(), strategy, **options)
        for name, shape, dtype in parameters or [("a", (4, 3), "f32")]:
            model.add_parameter(name, shape, dtype, unit="u" if name == "a" else None)
        model.seal()
        return model

    @contextlib.contextmanager
    def refused(self, *parts, kind=(ValueError, TypeError)):
        with self.assertRaises(kind) as caught:
            yield
        for part in parts:
            self.assertIn(part, str(caught.exception))

    # ---- shapes ----------------------------------------------------------------------------

    def test_a_gradient_of_another_shape_is_refused(self):
        model = self.model()
        model.begin_backward()
        for shape in ((3, 4), (2, 6), (12, 1), (1, 12), (4, 3, 1), (2, 2, 3)):
            with self.refused("the gradient has the shape", str(list(shape)), "[4, 3]"):
                model.gradient_ready("a", zeros(*shape))
        with self.refused("11"):
            model.gradient_ready("a", zeros(11))
        model.gradient_ready("a", zeros(4, 3))
        model.end_backward()
        model.discard_gradients()
        model.begin_backward()
        model.gradient_ready("a", zeros(12))  # one dimension
        model.end_backward()

    def test_flat_vectors_of_another_shape_are_refused(self):
        model = self.model()
        for call in (
            model.set_parameters,
            model.get_parameters,
            model.accumulate_flat,
        ):
            with self.refused("[3, 4]", "[4, 3]"):
                call(zeros(3, 4))
        model.set_parameters(zeros(4, 3))
        self.assertEqual(model.get_parameters(zeros(4, 3)).shape, (4, 3))
        model.accumulate_flat(zeros(12))
        model.discard_gradients()
        two = self.model("zero3", ("a", (4, 3), "f32"), ("b", (3,), "f32"))
        for call in (two.set_parameters, two.get_parameters, two.accumulate_flat):
            with self.refused("[5, 3]", "[15]"):
                call(zeros(5, 3))
        two.set_parameters(zeros(15))

    def test_a_scalar_takes_one_element_of_any_dimensions_below_two(self):
        model = self.model("zero1", ("s", (), "f32"), ("v", 3, "f32"))
        model.begin_backward()
        with self.refused("[1, 1]", "[]"):
            model.gradient_ready("s", zeros(1, 1))
        model.gradient_ready("s", zeros(1))
        model.gradient_ready("v", zeros(3))
        model.end_backward()

    def test_a_range_of_another_shape_is_refused(self):
        model = self.model("zero3", ("a", (4, 3), "f32"), ("h", (2, 2), "bf16"))
        optimizer = trireme.Optimizer(model, "adam")
        for index, piece in enumerate(optimizer.ranges()):
            letter = "H" if piece.dtype == "bf16" else "f"
            size = 2 if piece.dtype == "bf16" else 4

            def data(*shape):
                raw = memoryview(bytearray(size * piece.count)).cast("B")
                return raw.cast(letter, shape)

            wrong = (3, 4) if piece.count == 12 else (1, 4)
            with self.refused(str(list(wrong)), f"range {index}"):
                optimizer.write_range(index, data(*wrong))
            optimizer.write_range(index, data(*piece.shape))
            optimizer.write_range(index, data(piece.count))

    def test_a_trainers_gradient_of_another_shape_is_refused(self):
        model = self.model()
        optimizer = trireme.Optimizer(model, "sgd")
        handed = []

        def backward(call):
            call.set_gradient(0, handed[0])

        def forward(call):
            call.loss = 0

        trainer = trireme.Trainer(
            optimizer, [trireme.Layer("l", forward, backward, parameters=["a"])]
        )
        for shape, right in (((3, 4), False), ((2, 6), False), ((4, 3), True), ((12,), True)):
            handed[:] = [zeros(*shape)]
            if right:
                trainer.step()
            else:
                with self.refused(str(list(shape)), "[4, 3]"):
                    trainer.step()
        self.assertEqual(optimizer.step_count, 2)

    def test_a_result_of_another_shape_is_refused(self):
        group = self.alone()
        for call in (
            lambda data, out: group.all_reduce(data, out),
            lambda data, out: group.reduce(data, 0, out),
        ):
            with self.refused("[4, 3]", "[3, 4]"):
                call(zeros(4, 3), zeros(3, 4))
            call(zeros(4, 3), zeros(4, 3))
            call(zeros(4, 3), zeros(12))
            call(zeros(12), zeros(3, 4))

    # ---- dtypes ----------------------------------------------------------------------------

    def test_names_in_any_case(self):
        for name in ("adamw", "AdamW", "ADAMW", "adam_w"):
            self.assertEqual(trireme.optimizer_name(name), "adamw")
        for name in ("match_adamw", "MatchAdamW"):
            model = self.model()
            trireme.Optimizer(model, trireme.Muon(rate_adjustment=name))
        for name in ("FullShard", "NoShard", "ShardGradOp", "full-shard", "ZERO3"):
            trireme.strategy_name(name)
        self.assertEqual(trireme.strategy_name("NoShard"), "data_parallel")
        self.assertEqual(trireme.strategy_name("ShardGradOp"), "zero2")
        self.assertEqual(trireme.strategy_name("FullShard"), "zero3")
        self.assertEqual(trireme.strategy_name("HybridShard"), "hybrid_shard")
        data = array.array("f", [1])
        self.alone().all_reduce(data, reduction="MAX")
        with self.refused("'adamq'", "is 'adam"):
            trireme.optimizer_name("adamq")

    def test_dtypes_by_the_names_of_others(self):
        for name, short in (
            ("float32", "f32"),
            ("Float64", "f64"),
            ("half", "f16"),
            ("bfloat16", "bf16"),
            ("BF16", "bf16"),
            ("int8", "i8"),
            ("uint64", "u64"),
            (float, "f64"),
            (int, "i64"),
            (bool, "bool"),
        ):
            self.assertEqual(trireme.dtype_name(name), short)
        for name in ("float", "f33", object, None, 1.5, "", [1]):
            with self.refused(kind=(ValueError, TypeError)):
                trireme.dtype_name(name)

    @needs_numpy
    def test_dtypes_of_numpy(self):
        for (
            dtype
        ) in "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split():
            short = dtype.replace("uint", "u").replace("int", "i").replace("float", "f")
            for given in (numpy.dtype(dtype), getattr(numpy, dtype), dtype):
                self.assertEqual(trireme.dtype_name(given), short, given)
        self.assertEqual(trireme.dtype_name(numpy.bool_), "bool")
        self.assertEqual(trireme.dtype_name(numpy.int64(11)), "f32")  # a number stays one
        for other in (
            numpy.dtype(">f4"),
            numpy.dtype("complex64"),
            numpy.dtype("O"),
            numpy.dtype("U3"),
        ):
            with self.refused():
                trireme.dtype_name(other)
        model = self.model("zero2", ("a", (2,), numpy.float32), ("b", (2,), numpy.dtype("f8")))
        self.assertEqual(model.unit_info("b").dtype, "f64")
        group = self.alone()
        bits = numpy.array([0x3F80], numpy.uint16)  # 1 as bf16
        group.all_reduce(bits, dtype="bfloat16")
        group.all_reduce(numpy.ones(2, numpy.float32), wire_dtype=numpy.float16)

    @needs_torch
    def test_dtypes_and_tensors_of_torch(self):
        for dtype, short in (
            (torch.float32, "f32"),
            (torch.float, "f32"),
            (torch.float64, "f64"),
            (torch.bfloat16, "bf16"),
            (torch.half, "f16"),
            (torch.int64, "i64"),
            (torch.uint8, "u8"),
            (torch.bool, "bool"),
        ):
            self.assertEqual(trireme.dtype_name(dtype), short)
        with self.refused():
            trireme.dtype_name(torch.complex64)
        model = self.model("zero3", ("a", torch.Size([4, 3]), torch.float32))
        weight = torch.ones(4, 3, requires_grad=True)
        with self.refused("not Tensor", ".detach().numpy()"):
            model.set_parameters(weight)
        model.set_parameters(weight.detach().numpy())
        narrow = self.model("zero1", ("a", (2,), torch.bfloat16))
        bits = torch.tensor([1.0, -2.0], dtype=torch.bfloat16).view(torch.int16).numpy()
        narrow.set_parameters(bits, dtype=torch.bfloat16)
        self.assertEqual(narrow.get_parameters().tolist(), [0x3F80, 0xC000])
        with self.refused("not contiguous"):
            model.set_parameters(torch.ones(3, 4).t().numpy())

    # ---- memory ----------------------------------------------------------------------------

    def test_what_is_no_memory_is_told_how(self):
        model = self.model()
        for data in ([0.0] * 12, (0.0,) * 12, 1.0):
            with self.refused("numpy.array(..., dtype=numpy.float32)"):
                model.set_parameters(data)
        with self.refused("read-only", "pass a copy"):
            self.alone().all_reduce(bytes(4))
        with self.refused("not contiguous"):
            model.set_parameters(memoryview(bytearray(4 * 24)).cast("f")[::2])

    @needs_numpy
    def test_elements_of_another_dtype_are_told_how(self):
        hint = ".astype(numpy.float32)"
        model = self.model("zero3", ("a", (4, 3), "f32"), ("b", (3,), "f32"))
        wide = numpy.ones(15)
        with self.refused("f64", hint):
            model.set_parameters(wide)
        with self.refused("f64", hint):
            model.get_parameters(wide)
        with self.refused("f64", hint):
            model.accumulate_flat(wide)
        model.begin_backward()
        with self.refused("f64", hint):
            model.gradient_ready("a", numpy.ones((4, 3)))
        with self.refused("i64", hint):
            model.gradient_ready("a", numpy.ones((4, 3), int))
        with self.refused(hint):
            model.gradient_ready("a", numpy.ones((4, 3), ">f4"))
        with self.assertRaises(ValueError) as caught:
            model.gradient_ready("a", numpy.ones(11, numpy.float32))
        self.assertNotIn("astype", str(caught.exception))
        for name, count in (("a", 12), ("b", 3)):
            model.gradient_ready(name, numpy.ones(count, numpy.float32))
        model.end_backward()
        narrow = self.model("zero1", ("a", (2,), "f16"))
        with self.refused(hint):
            narrow.accumulate_flat(numpy.ones(2))
        narrow.accumulate_flat(numpy.ones(2, numpy.float32))

    @needs_numpy
    def test_views_that_are_not_contiguous_or_not_writable_are_refused(self):
        model = self.model()
        model.begin_backward()
        with self.refused("not contiguous", "ascontiguousarray"):
            model.gradient_ready("a", numpy.ones((3, 4), numpy.float32).T)
        with self.refused("not contiguous"):
            model.gradient_ready("a", numpy.ones((4, 6), numpy.float32)[:, ::2])
        fixed = numpy.ones((4, 3), numpy.float32)
        fixed.flags.writeable = False
        model.gradient_ready("a", fixed)  # is only read
        model.end_backward()
        model.discard_gradients()
        with self.refused("read-only"):
            model.get_parameters(fixed)
        self.assertEqual(fixed.sum(), 12)

    # ---- units -----------------------------------------------------------------------------

    def test_a_parameter_that_is_not_gathered_is_told_how(self):
        own = trireme.Shards(share="never")
        model = self.model("zero3", ("a", (4, 3), "f32"), ("b", (3,), "f32"), shards=own)
        for which in ("a", 0):
            with self.refused("with model.gathered('u')", kind=trireme.InvalidStateError):
                model.parameter(which)
        with model.gathered("u"):
            self.assertEqual(model.parameter("a").shape, (4, 3))
        with self.refused("no unit 'a'", "this parameter is in unit 'u'"):
            model.gather_unit("a")
        with self.refused("no parameter 'aa'", "is 'a' meant"):
            model.parameter("aa")
        with self.refused("no unit 'nowhere'"):
            model.gather_unit("nowhere")

    def test_a_range_that_a_gathered_copy_would_hide_is_refused(self):
        def body(group):
            own = trireme.Shards(share="never")
            model = trireme.Model(group, "zero3", keep_gathered=True, shards=own)
            model.add_parameter("a", 8)
            model.seal()
            optimizer = trireme.Optimizer(model, "sgd")

            def write(value):
                for index, piece in enumerate(optimizer.ranges()):
                    optimizer.write_range(index, array.array("f", [value] * piece.count))
                group.barrier()

            def gathered():
                with model.gathered("a"):
                    return model.parameter("a").tolist()

            write(1)
            self.assertEqual(gathered(), [1] * 8)
            with self.refused("was gathered since", kind=trireme.InvalidStateError):
                write(2)
            self.assertEqual(gathered(), [1] * 8)
            model.set_parameters(array.array("f", [3] * 8))
            write(4)
            self.assertEqual(gathered(), [4] * 8)

        self.ranks(2, body)


if __name__ == "__main__":
    unittest.main()
