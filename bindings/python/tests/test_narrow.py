"""Parameters of 16 bits: bits go in and out, gradients and state are f32."""

import array
import struct
import unittest

from support import TestCase, needs_numpy, numpy, trireme

STRATEGIES = ("data_parallel", "zero1", "zero2", "zero3")
ELEMENTS = 7


def bits(dtype, values):
    """16-bit integers of numbers that the dtype has exactly."""
    if dtype == "f16":
        return array.array("H", struct.pack(f"={len(values)}e", *values))
    return array.array("H", [struct.unpack("=I", struct.pack("=f", v))[0] >> 16 for v in values])


def build(group, strategy, dtype):
    model = trireme.Model(group, strategy, gradients="sum", shards=trireme.Shards(share="never"))
    model.add_parameter("weight", [ELEMENTS], dtype)
    model.seal()
    return model


class NarrowTest(TestCase):
    def test_masters_keep_what_rounding_would_lose(self):
        def body(group):
            model = build(group, "zero2", "bf16")
            start = bits("bf16", [1.0] * ELEMENTS)
            model.set_parameters(start if group.rank == 0 else None, dtype="bf16")
            # A sixteenth of the distance between 1 and the number before it, from two ranks.
            rate = 0.5 / 4096
            results = []
            for masters in (False, True):
                with trireme.Optimizer(
                    model, "sgd", learning_rate=rate, master_weights=masters
                ) as optimizer:
                    for _ in range(16):
                        model.accumulate_flat(array.array("f", [1.0] * ELEMENTS))
                        optimizer.step()
                    found = [r for r in optimizer.ranges() if r.kind == "optimizer"]
                    self.assertEqual([r.dtype for r in found], ["f32"] * len(found))
                    self.assertEqual(len(found) > 0, masters)
                    del found
                results.append(list(model.get_parameters(dtype="bf16")))
            return results

        expected = [
            list(bits("bf16", [1.0] * ELEMENTS)),
            list(bits("bf16", [1 - 1 / 256] * ELEMENTS)),
        ]
        self.assertEqual(list(self.ranks(2, body)), [expected, expected])
        with trireme.Communicator(0, 1, "local://narrow-masters") as group:
            model = build(group, "zero2", "f32")
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Optimizer(model, "sgd", master_weights=True)

    def test_rounding_by_chance_is_right_on_average(self):
        def body(group):
            model = build(group, "zero2", "bf16")
            start = bits("bf16", [1.0] * ELEMENTS)
            model.set_parameters(start if group.rank == 0 else None, dtype="bf16")
            options = {"learning_rate": 0.5 / 256, "stochastic_rounding": True}
            for seed in (1, 2):
                with trireme.Optimizer(model, "sgd", rounding_seed=seed, **options) as optimizer:
                    model.accumulate_flat(array.array("f", [0.25] * ELEMENTS))
                    optimizer.step()
            return list(model.get_parameters(dtype="bf16"))

        # A quarter of the distance to the next number, twice: each element has gone none, one or
        # two of them, and not all the same.
        results = self.ranks(2, body)
        self.assertEqual(results[0], results[1])
        self.assertLessEqual(set(results[0]), set(bits("bf16", [1.0, 1 - 1 / 256, 1 - 2 / 256])))
        self.assertGreater(len(set(results[0])), 1)
        with trireme.Communicator(0, 1, "local://narrow-chance") as group:
            model = build(group, "zero2", "f16")
            with self.assertRaises(trireme.UnsupportedError):
                trireme.Optimizer(model, "sgd", stochastic_rounding=True)

    def test_gradients_of_either_type_train(self):
        for dtype in ("f16", "bf16"):
            for strategy in STRATEGIES:

                def body(group):
                    model = build(group, strategy, dtype)
                    start = bits(dtype, [1.0] * ELEMENTS)
                    model.set_parameters(start if group.rank == 0 else None, dtype=dtype)
                    optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.25)
                    model.accumulate_flat(array.array("f", range(ELEMENTS)))
                    optimizer.step()
                    model.accumulate_flat(bits(dtype, [float(group.rank)] * ELEMENTS), dtype=dtype)
                    optimizer.step()
                    with model.backward():
                        model.gradient_ready(0, array.array("f", [1.0] * ELEMENTS))
                    optimizer.step()
                    with model.backward():
                        ones = bits(dtype, [1.0] * ELEMENTS)
                        model.gradient_ready("weight", ones, dtype=dtype)
                    optimizer.step()
                    with model.gathered("weight"):
                        view = model.parameter("weight")
                        self.assertEqual((view.format, view.shape), ("H", (ELEMENTS,)))
                        seen = view.tolist()
                    out = array.array("H", bytes(2 * ELEMENTS))
                    model.get_parameters(out, dtype=dtype)
                    self.assertEqual(out, model.get_parameters())
                    self.assertEqual(out.tolist(), seen)
                    return out

                for values in self.ranks(2, body):
                    wanted = [1 - 0.25 * (2 * i + 1 + 2 + 2) for i in range(ELEMENTS)]
                    self.assertEqual(values, bits(dtype, wanted))

    @needs_numpy
    def test_numpy_has_f16_itself(self):
        def body(group):
            model = build(group, "zero3", "f16")
            model.set_parameters(numpy.full(ELEMENTS, 2, numpy.float16))
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.5)
            model.accumulate_flat(numpy.ones(ELEMENTS, numpy.float16))
            optimizer.step()
            out = model.get_parameters(numpy.empty(ELEMENTS, numpy.float16))
            with model.gathered(0):
                same = numpy.asarray(model.parameter(0)).view(numpy.float16)
                numpy.testing.assert_array_equal(same, out)
            return out

        for out in self.ranks(3, body):
            numpy.testing.assert_array_equal(out, numpy.full(ELEMENTS, 0.5, numpy.float16))

    def test_rule_hook_and_state_see_f32(self):
        def body(group):
            seen = []
            buckets = trireme.Buckets(hook=lambda bucket: seen.append(bucket.dtype))
            model = trireme.Model(group, "zero2", buckets=buckets)
            model.add_parameter("weight", [ELEMENTS], "bf16")
            model.seal()

            def rule(update):
                seen.append((update.dtype, update.gradient_dtype, update.parameters.format))
                formats = [update.gradients.format, *(state.format for state in update.states)]
                self.assertEqual(formats, ["f", "f"])
                update.states[0][0] += update.gradients[0]
                update.parameters[0] = 0x3F80

            optimizer = trireme.Optimizer(model, trireme.UserRule(rule, state_count=1))
            model.accumulate_flat(array.array("f", [2.0] * ELEMENTS))
            optimizer.step()
            self.assertEqual(set(seen), {"f32", ("bf16", "f32", "H")})
            for found in optimizer.ranges():
                self.assertEqual(found.dtype, "bf16" if found.kind == "parameter" else "f32")
                first = 0x3F80 if found.kind == "parameter" else 2.0
                self.assertEqual(found.data[0], first)

        self.ranks(2, body)

    def test_other_types_are_refused(self):
        with trireme.Communicator(0, 1, "local://narrow-refused") as group:
            model = build(group, "zero1", "bf16")
            values = array.array("H", bytes(2 * ELEMENTS))
            wide = array.array("f", bytes(4 * ELEMENTS))
            for call in (
                lambda: model.set_parameters(wide),
                lambda: model.set_parameters(values),  # 16-bit integers are no numbers of bf16
                lambda: model.set_parameters(values, dtype="f16"),
                lambda: model.get_parameters(wide),
                lambda: model.get_parameters(values),
                lambda: model.accumulate_flat(values),
                lambda: model.accumulate_flat(array.array("d", bytes(8 * ELEMENTS))),
                lambda: model.accumulate_flat(values, dtype="f16"),
                lambda: model.accumulate_flat(values, dtype="bf17"),
            ):
                with self.assertRaises(trireme.InvalidArgumentError):
                    call()
            with self.assertRaises(TypeError):
                model.accumulate_flat(wide, dtype="bf16")
            model.begin_backward()
            with self.assertRaises(trireme.InvalidArgumentError):
                model.gradient_ready(0, values)
            with self.assertRaises(trireme.UnsupportedError):
                trireme.Model(group, "zero1").add_parameter("tiny", [1], "f8e5m2")


if __name__ == "__main__":
    unittest.main()
