"""Models and optimizers, against plain Python arithmetic."""

import array
import gc
import math
import threading
import unittest
import weakref

from support import WORLD_SIZES, TestCase, needs_numpy, numpy, run_ranks, trireme

STRATEGIES = ("data_parallel", "zero1", "zero2", "zero3", "hybrid_shard")
SHAPES = {
    "layer1.weight": (3, 5),
    "layer1.bias": (5,),
    "layer2.weight": (5, 2),
    "layer2.bias": (2,),
}
ELEMENTS = sum(math.prod(shape) for shape in SHAPES.values())


def build(group, strategy, share="auto", **options):
    """Two layers, a unit each. Hybrid shards are pairs where ranks can be paired, else all."""
    pairs = 2 if group.world_size % 2 == 0 else group.world_size
    ranks = pairs if strategy == "hybrid_shard" else 0
    options.setdefault("shards", trireme.Shards(ranks=ranks, share=share))
    model = trireme.Model(group, strategy, **options)
    for name, shape in SHAPES.items():
        model.add_parameter(name, shape, unit=name.split(".")[0])
    model.seal()
    return model


def start_values():
    return array.array("f", [0.5 * (i % 7) - 1 for i in range(ELEMENTS)])


def gradient_of(rank, element):
    return float((rank + 1) * (element % 5) - rank)  # small whole numbers: every sum is exact


def gradients_of(rank):
    return array.array("f", [gradient_of(rank, i) for i in range(ELEMENTS)])


def pieces(flat):
    """(name, its part of a flat vector) in the order added."""
    first = 0
    for name, shape in SHAPES.items():
        count = math.prod(shape)
        yield name, flat[first : first + count]
        first += count


class ModelTest(TestCase):
    def test_a_flat_step_of_sgd_subtracts_the_averaged_gradient(self):
        for strategy in STRATEGIES:
            for world_size in WORLD_SIZES:

                def body(group):
                    model = build(group, strategy)
                    model.set_parameters(start_values() if group.rank == 0 else None)
                    optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.25)
                    model.accumulate_flat(gradients_of(group.rank))
                    optimizer.step()
                    return model.get_parameters().tolist()

                sums = [
                    sum(gradient_of(rank, i) for rank in range(world_size)) for i in range(ELEMENTS)
                ]
                for result in self.ranks(world_size, body):
                    for have, start, total in zip(result, start_values(), sums):
                        self.assertAlmostEqual(have, start - 0.25 * total / world_size, places=4)

    def test_hooks_give_the_same_bits_as_the_flat_way(self):
        def body(group, strategy, hooks):
            model = build(group, strategy, gradients="sum")
            model.set_parameters(start_values(), root=0)
            optimizer = trireme.Optimizer(model, "adamw", learning_rate=0.01, weight_decay=0.1)
            for _ in range(3):
                if not hooks:
                    model.accumulate_flat(gradients_of(group.rank))
                else:
                    for unit in ("layer1", "layer2", "layer2", "layer1"):
                        with model.gathered(unit):
                            pass
                    with model.backward():
                        for name, piece in reversed(list(pieces(gradients_of(group.rank)))):
                            model.gradient_ready(name, piece)
                optimizer.step()
            return model.get_parameters().tobytes()

        want = None
        for strategy in STRATEGIES:
            for hooks in (False, True):
                for result in self.ranks(3, lambda group: body(group, strategy, hooks)):
                    want = want or result
                    self.assertEqual(result, want)

    def test_a_reproducible_model_has_the_same_bits_for_every_world_size_and_strategy(self):
        leaves = 5
        values = [
            array.array("f", [math.sin(1.0 + leaf * 31 + i) for i in range(ELEMENTS)])
            for leaf in range(leaves)
        ]

        def body(group, strategy):
            model = build(group, strategy, leaves=leaves)
            model.set_parameters(start_values())
            optimizer = trireme.Optimizer(model, "adam", learning_rate=0.1, clipping=0.5)
            seen = []
            for _ in range(2):
                for micro_batch in range(model.info().micro_batches):
                    leaf = model.leaf(micro_batch)
                    if leaf is not None:
                        seen.append(leaf)
                        model.accumulate_flat(values[leaf])
                optimizer.step()
            return model.get_parameters().tobytes(), optimizer.gradient_norm, seen

        want = None
        for world_size in (1, 2, 3, 4, 8):
            for strategy in STRATEGIES:
                results = self.ranks(world_size, lambda group: body(group, strategy))
                want = want or results[0][:2]
                for result in results:
                    self.assertEqual(result[:2], want, (world_size, strategy))
                leaves_seen = sorted(leaf for result in results for leaf in result[2])
                self.assertEqual(leaves_seen, sorted([*range(leaves)] * 2))

    def test_parameters_are_views_of_the_librarys_memory_in_their_shape(self):
        def body(group):
            model = build(group, "zero3")
            model.set_parameters(start_values())
            shapes, values = {}, {}
            for unit in ("layer1", "layer2"):
                with model.gathered(unit) as same:
                    self.assertIs(same, model)
                    for name in SHAPES:
                        if name.startswith(unit):
                            view = model.parameter(name)
                            self.assertEqual(view.format, "f")
                            shapes[name] = view.shape
                            values[name] = view.cast("B").cast("f").tolist()
            with self.assertRaises(trireme.InvalidStateError):
                model.parameter(0)
            return shapes, values

        want = {name: piece.tolist() for name, piece in pieces(start_values())}
        for shapes, values in self.ranks(3, body):
            self.assertEqual(shapes, SHAPES)
            self.assertEqual(values, want)

    def test_a_whole_parameter_outlives_the_model_object(self):
        model = build(self.alone(), "data_parallel")
        model.set_parameters(start_values())
        view = model.parameter("layer1.bias")
        model.close()
        del model
        self.assertEqual(view.tolist(), start_values()[15:20].tolist())

    def test_info_says_what_the_model_looks_like(self):
        def body(group):
            model = build(group, "fsdp", leaves=5, units=trireme.Units(minimum_bytes=1))
            return model.info(), model.unit_info("layer2"), model.unit_info(0)

        for rank, (info, second, first) in enumerate(self.ranks(3, body)):
            self.assertEqual(info.strategy, "zero3")
            self.assertEqual((info.rank, info.world_size), (rank, 3))
            self.assertEqual((info.leaves, info.micro_batches), (5, 2))
            self.assertEqual((info.parameters, info.units, info.elements), (4, 2, ELEMENTS))
            self.assertGreaterEqual(info.buckets, 1)
            self.assertEqual((info.unit_groups, first.unit_group, second.unit_group), (2, 0, 1))
            self.assertEqual((second.dtype, second.elements, second.flat_first), ("f32", 12, 20))
            self.assertEqual((second.shard_first, second.shard_count), (4 * rank, 4))
            counts = (7, 7, 6)  # 20 elements over 3 ranks
            self.assertEqual(
                (first.shard_first, first.shard_count), (sum(counts[:rank]), counts[rank])
            )

    def test_planned_memory_is_allocated_memory(self):
        for strategy in STRATEGIES:

            def body(group):
                model = build(group, strategy)
                optimizer = trireme.Optimizer(model, "adam")
                memory = model.memory()
                for unit in (0, 1, 1, 0):  # forward and backward
                    with model.gathered(unit):
                        pass
                model.accumulate_flat(gradients_of(group.rank))
                optimizer.step()
                return memory, model.memory()

            for memory, after in self.ranks(2, body):
                part = 4 * ELEMENTS // 2
                whole = 4 * ELEMENTS
                sharded = strategy in ("zero3", "hybrid_shard")
                self.assertEqual(memory.planned_parameters, part if sharded else whole)
                self.assertEqual(
                    memory.planned_optimizer_state,
                    2 * (whole if strategy == "data_parallel" else part),
                )
                for kind in ("parameters", "gradients", "optimizer_state"):
                    self.assertEqual(
                        getattr(memory, f"planned_{kind}"), getattr(memory, f"allocated_{kind}")
                    )
                self.assertEqual(after.sent_step_bytes, after.planned_step_bytes)

    def test_micro_batches_without_synchronisation_add_up(self):
        def body(group):
            model = build(group, "zero2")
            model.set_parameters(start_values())
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=1)
            model.accumulate_flat(gradients_of(group.rank), no_sync=True)
            with model.backward(no_sync=True):
                for name, piece in pieces(gradients_of(group.rank)):
                    model.gradient_ready(name, piece)
            with self.assertRaises(trireme.InvalidStateError):
                optimizer.step()
            model.accumulate_flat(gradients_of(group.rank))
            optimizer.step()
            return model.get_parameters().tolist()

        for result in self.ranks(2, body):
            for i, (have, start) in enumerate(zip(result, start_values())):
                want = start - 3 * (gradient_of(0, i) + gradient_of(1, i)) / 2
                self.assertAlmostEqual(have, want, places=4)

    def test_gradients_are_written_where_they_are_exchanged(self):
        def body(group, strategy):
            model = build(group, strategy, gradients="sum")
            model.set_parameters(start_values())
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=1)
            has_views = strategy == "data_parallel"
            for no_sync in (True, False):
                with model.backward(no_sync=no_sync):
                    for name, piece in pieces(gradients_of(group.rank)):
                        place = model.gradient(name)
                        self.assertEqual(place is not None, has_views)
                        if place is None:
                            model.gradient_ready(name, piece)
                            continue
                        view, adds = place
                        self.assertEqual(adds, not no_sync)
                        self.assertEqual(view.shape, model.parameter(name).shape)
                        with self.assertRaises(trireme.InvalidArgumentError):
                            model.gradient_ready(name, view.cast("B").cast("f")[1:])
                        flat = view.cast("B").cast("f")
                        for i, value in enumerate(piece):
                            flat[i] = flat[i] + value if adds else value
                        model.gradient_ready(name, view)
                        with self.assertRaisesRegex(trireme.InvalidStateError, "handed in before"):
                            model.gradient(name)
            optimizer.step()
            return model.get_parameters().tolist()

        for strategy in ("data_parallel", "zero2", "zero3"):
            for result in self.ranks(2, lambda group: body(group, strategy)):
                for i, (have, start) in enumerate(zip(result, start_values())):
                    want = start - 2 * (gradient_of(0, i) + gradient_of(1, i))
                    self.assertAlmostEqual(have, want, places=4)

    def test_a_view_is_asked_for_in_each_backward_pass(self):
        model = build(self.alone(), "zero1")
        with self.assertRaisesRegex(trireme.InvalidStateError, "no backward pass"):
            model.gradient(0)
        optimizer = trireme.Optimizer(model, "sgd", learning_rate=1)
        views = {}
        with model.backward():
            with self.assertRaisesRegex(trireme.InvalidArgumentError, "no parameter 'nobody'"):
                model.gradient("nobody")
            for name, piece in pieces(gradients_of(0)):
                views[name], _ = model.gradient(name)
                model.gradient_ready(name, piece)  # other memory is as good
        optimizer.step()
        model.begin_backward()
        for name, view in views.items():
            with self.assertRaisesRegex(trireme.InvalidStateError, "not asked for"):
                model.gradient_ready(name, view)
        model.discard_gradients()

    def test_discarded_gradients_are_forgotten(self):
        def body(group):
            model = build(group, "zero1", gradients="sum")
            model.set_parameters(start_values())
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=1)
            model.accumulate_flat(array.array("f", [1e6] * ELEMENTS))
            model.discard_gradients()
            with self.assertRaises(trireme.InvalidStateError):
                optimizer.step()
            model.accumulate_flat(array.array("f", [1] * ELEMENTS))
            optimizer.step()
            return model.get_parameters().tolist()

        for result in self.ranks(2, body):
            self.assertEqual(result, [value - 2 for value in start_values()])

    def test_frozen_parameters_stay_and_tied_ones_are_one(self):
        def body(group):
            model = trireme.Model(group, "zero3", gradients="sum")
            self.assertEqual(model.add_parameter("embedding", [4], unit="first"), 0)
            self.assertEqual(model.add_parameter("scale", [], unit="first", frozen=True), 1)
            self.assertEqual(model.add_parameter("head", [4], tied_to="embedding"), 2)
            model.seal()
            model.set_parameters(array.array("f", [0, 1, 2, 3, 9]))
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=1)
            ones = array.array("f", [1] * 4)
            with self.assertRaises(trireme.InvalidArgumentError):
                with model.backward():
                    model.gradient_ready("scale", array.array("f", [1]))
            model.gradient_ready("head", ones)
            model.gradient_ready("embedding", ones)
            model.end_backward()
            optimizer.step()
            with model.gathered("first"):
                head = model.parameter("head").tolist()
                scale = model.parameter("scale")
                self.assertEqual((scale.shape, scale[()]), ((), 9))
            return model.get_parameters().tolist(), head

        for values, head in self.ranks(2, body):
            self.assertEqual(values, [-4, -3, -2, -1, 9])
            self.assertEqual(head, [-4, -3, -2, -1])

    def test_models_of_f64(self):
        def body(group):
            model = trireme.Model(group, "zero2", gradients="sum")
            model.add_parameter("weight", [3], "f64")
            model.seal()
            model.set_parameters(array.array("d", [1 / 3] * 3))
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.5)
            model.accumulate_flat(array.array("d", [1, 2, 3]))
            optimizer.step()
            return model.get_parameters()

        for result in self.ranks(2, body):
            self.assertEqual(result, array.array("d", [1 / 3 - g for g in (1, 2, 3)]))

    @needs_numpy
    def test_numpy_arrays_go_in_and_out(self):
        def body(group):
            model = build(group, "zero3")
            model.set_parameters(numpy.arange(ELEMENTS, dtype=numpy.float32))
            with model.gathered("layer1"):
                weight = numpy.asarray(model.parameter("layer1.weight"))
                self.assertEqual((weight.shape, weight.dtype), ((3, 5), numpy.float32))
                total = float(weight.sum())
            out = numpy.zeros(ELEMENTS, numpy.float32)
            self.assertIs(model.get_parameters(out), out)
            return total, out.tolist()

        for total, out in self.ranks(2, body):
            self.assertEqual(total, sum(range(15)))
            self.assertEqual(out, list(range(ELEMENTS)))

    def test_what_ranks_register_differently_is_named(self):
        def body(group):
            model = trireme.Model(group, "zero3")
            model.add_parameter("same", [2])
            model.add_parameter("weight", [3 + group.rank])
            with self.assertRaises(trireme.MismatchError) as caught:
                model.seal()
            group.barrier()  # the group lives on
            return caught.exception.message

        for message in self.ranks(2, body):
            self.assertIn("weight", message)
            self.assertIn("3", message)
            self.assertIn("4", message)

    def test_ranks_that_name_two_strategies_are_told(self):
        def body(group):
            model = trireme.Model(group, STRATEGIES[group.rank])
            model.add_parameter("weight", [3])
            model.seal()

        for outcome in run_ranks(2, body):
            self.assertIsInstance(outcome, trireme.MismatchError)
            self.assertIn("zero1", outcome.message)

    def test_wrong_calls_are_refused(self):
        group = self.alone()
        invalid, state = trireme.InvalidArgumentError, trireme.InvalidStateError
        for options in (
            {"strategy": 9},
            {"strategy": "zero9"},
            {"strategy": "zero3", "leaves": -1},
            {"strategy": "zero3", "gradients": "median"},
            {"strategy": "zero3", "gradients": 7},
            {"strategy": "zero3", "leaves": 65537},
        ):
            with self.assertRaises(invalid):
                trireme.Model(group, **options)
        model = trireme.Model(group, "zero3")
        with self.assertRaises(state):
            model.info()
        model.add_parameter("weight", [2])
        for call in (
            lambda: model.add_parameter("weight", [2]),
            lambda: model.add_parameter("", [2]),
            lambda: model.add_parameter("x" * 256, [2]),
            lambda: model.add_parameter("a", [-1]),
            lambda: model.add_parameter("a", [1 << 33, 1 << 33]),
            lambda: model.add_parameter("a", [1] * 17),
            lambda: model.add_parameter("a", [2], tied_to="nobody"),
            lambda: model.add_parameter("a", [2], dtype="float33"),
        ):
            with self.assertRaises(invalid):
                call()
        with self.assertRaises(trireme.UnsupportedError):
            model.add_parameter("a", [2], dtype="i32")
        model.seal()
        for call in (
            lambda: model.seal(),
            lambda: model.add_parameter("late", [2]),
            lambda: model.end_backward(),
            lambda: model.gradient_ready(0, array.array("f", [1, 2])),
            lambda: model.release_unit(0),
            lambda: model.leaf(0),
        ):
            with self.assertRaises(state):
                call()
        for call in (
            lambda: model.gather_unit(1),
            lambda: model.gather_unit("nobody"),
            lambda: model.parameter("nobody"),
            lambda: model.parameter(-1),
            lambda: model.unit_info(5),
            lambda: model.set_parameters(array.array("f", [1])),
            lambda: model.set_parameters(array.array("d", [1, 2])),
            lambda: model.set_parameters(array.array("f", [1, 2]), root=3),
            lambda: model.get_parameters(array.array("f", [1])),
            lambda: model.accumulate_flat(array.array("f", [1, 2, 3])),
        ):
            with self.assertRaises(invalid):
                call()
        with self.assertRaisesRegex(TypeError, "read-only"):
            model.get_parameters(bytes(8))
        with self.assertRaisesRegex(TypeError, "not list"):
            model.accumulate_flat([1.0, 2.0])

    def test_a_backward_pass_with_a_missing_gradient_names_it(self):
        model = build(self.alone(), "zero1")
        with self.assertRaisesRegex(trireme.InvalidStateError, "layer1.bias"):
            with model.backward():
                for name, piece in pieces(gradients_of(0)):
                    if name != "layer1.bias":
                        model.gradient_ready(name, piece)

    def test_closed_models_and_optimizers_are_refused(self):
        model = build(self.alone(), "zero1")
        optimizer = trireme.Optimizer(model, "sgd")
        optimizer.close()
        optimizer.close()
        self.assertTrue(optimizer.closed)
        for call in (
            optimizer.step,
            lambda: optimizer.learning_rate,
            lambda: optimizer.step_count,
            lambda: optimizer.gradient_norm,
            lambda: setattr(optimizer, "learning_rate", 1.0),
        ):
            with self.assertRaisesRegex(trireme.InvalidHandleError, "the optimizer is closed"):
                call()
        trireme.Optimizer(model, "adam").close()  # the model may have another
        model.close()
        model.close()
        self.assertTrue(model.closed)
        for call in (
            model.info,
            model.memory,
            model.seal,
            model.discard_gradients,
            lambda: model.parameter(0),
            lambda: model.gradient(0),
            lambda: model.accumulate_flat(gradients_of(0)),
            lambda: trireme.Optimizer(model, "sgd"),
        ):
            with self.assertRaisesRegex(trireme.InvalidHandleError, "the model is closed"):
                call()


class OptimizerTest(TestCase):
    def test_the_learning_rate_can_be_changed_and_0_is_0(self):
        model = build(self.alone(), "zero1")
        model.set_parameters(start_values())
        with trireme.Optimizer(model, "sgd") as optimizer:
            self.assertEqual(optimizer.learning_rate, 0.001)
        with trireme.Optimizer(model, "sgd", learning_rate=0) as optimizer:
            self.assertEqual(optimizer.learning_rate, 0)
            model.accumulate_flat(gradients_of(0))
            optimizer.step()
            self.assertEqual(model.get_parameters(), start_values())
            optimizer.learning_rate = 0.5
            self.assertEqual(optimizer.learning_rate, 0.5)
            model.accumulate_flat(gradients_of(0))
            optimizer.step()
            self.assertEqual(optimizer.step_count, 2)
            want = [start - 0.5 * gradient_of(0, i) for i, start in enumerate(start_values())]
            self.assertEqual(model.get_parameters().tolist(), want)
            for rate in (-1.0, float("nan"), float("inf")):
                with self.assertRaises(trireme.InvalidArgumentError):
                    optimizer.learning_rate = rate

    def test_sgd_with_momentum_and_nesterov(self):
        for nesterov in (False, True):
            model = trireme.Model(self.alone(), "zero3")
            model.add_parameter("weight", [1])
            model.seal()
            optimizer = trireme.Optimizer(
                model, trireme.SGD(momentum=0.5, nesterov=nesterov), learning_rate=0.5
            )
            weight = velocity = 0.0
            for step in range(4):
                model.accumulate_flat(array.array("f", [step + 1]))
                optimizer.step()
                velocity = step + 1 if step == 0 else 0.5 * velocity + step + 1
                weight -= 0.5 * (step + 1 + 0.5 * velocity if nesterov else velocity)
            self.assertEqual(model.get_parameters()[0], weight)

    def test_rmsprop_is_centered_if_asked_for(self):
        for centered in (False, True):
            model = trireme.Model(self.alone(), "zero3")
            model.add_parameter("weight", [1], "f64")
            model.seal()
            optimizer = trireme.Optimizer(
                model,
                trireme.RMSprop(alpha=0.5, epsilon=0.25, centered=centered),
                learning_rate=0.5,
            )
            weight = square = mean = 0.0
            for gradient in (2.0, -1.0, 3.0):
                model.accumulate_flat(array.array("d", [gradient]))
                optimizer.step()
                square = 0.5 * square + 0.5 * gradient**2
                mean = 0.5 * mean + 0.5 * gradient if centered else 0.0
                weight -= 0.5 * gradient / (math.sqrt(square - mean * mean) + 0.25)
            self.assertAlmostEqual(model.get_parameters()[0], weight, places=12)

    def test_the_gradient_norm_is_the_one_before_clipping(self):
        def body(group):
            model = trireme.Model(group, "zero3", gradients="sum")
            model.add_parameter("a", [2])
            model.seal()
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=1, clipping=1)
            with self.assertRaises(trireme.InvalidStateError):
                optimizer.gradient_norm
            model.accumulate_flat(array.array("f", [1.5, 2]))
            optimizer.step()
            return optimizer.gradient_norm, model.get_parameters().tolist()

        for norm, values in self.ranks(2, body):
            self.assertEqual(norm, 5)
            for have, want in zip(values, (-0.6, -0.8)):
                self.assertAlmostEqual(have, want, places=5)

    def test_bad_options_are_refused(self):
        model = build(self.alone(), "zero1")
        for rule, options in (
            ("adadelta", {}),
            (99, {}),
            ("user", {}),
            ("sgd", {"learning_rate": -1}),
            ("sgd", {"learning_rate": float("nan")}),
            ("sgd", {"weight_decay": -1}),
            (trireme.SGD(momentum=1), {}),
            (trireme.SGD(nesterov=True), {}),
            (trireme.Adam(beta2=1.5), {}),
            (trireme.LARS(max_trust=-1), {}),
            (trireme.Adafactor(beta2_decay=0.5), {}),
            (trireme.Adafactor(max_update_rms=-1), {}),
            (trireme.UserRule(lambda update: None, state_count=9), {}),
        ):
            with self.assertRaises(trireme.InvalidArgumentError, msg=(rule, options)):
                trireme.Optimizer(model, rule, **options)
        with self.assertRaises(trireme.InvalidStateError):
            unsealed = trireme.Model(self.alone(), "zero1")
            unsealed.add_parameter("a", [1])
            trireme.Optimizer(unsealed, "sgd")
        with trireme.Optimizer(model, "sgd"):
            with self.assertRaises(trireme.InvalidStateError):
                trireme.Optimizer(model, "sgd")

    def test_ranks_that_name_two_rules_are_told_and_go_on(self):
        def body(group):
            model = build(group, "zero2")
            with self.assertRaises(trireme.MismatchError):
                trireme.Optimizer(model, ("sgd", "adam")[group.rank])
            trireme.Optimizer(model, "sgd").close()

        self.ranks(2, body)

    def test_ranks_that_set_two_learning_rates_are_told(self):
        def body(group):
            model = build(group, "zero2")
            optimizer = trireme.Optimizer(model, "sgd")
            optimizer.learning_rate = 0.5 + group.rank
            model.accumulate_flat(gradients_of(group.rank))
            optimizer.step()

        for outcome in run_ranks(2, body):
            self.assertIsInstance(outcome, trireme.MismatchError)


class UserRuleTest(TestCase):
    def test_a_rule_of_ones_own_sees_each_owned_element_once(self):
        for strategy in STRATEGIES:

            def body(group):
                seen = []

                def rule(update):
                    self.assertEqual(update.dtype, "f32")
                    self.assertTrue(update.gradients.readonly)
                    self.assertEqual(len(update.states), 2)
                    seen.append((update.parameter, update.first, update.count, update.step))
                    count, total = update.states
                    for i in range(update.count):
                        count[i] += 1
                        total[i] += update.gradients[i]
                        update.parameters[i] -= update.learning_rate * total[i] * count[i]

                model = build(group, strategy, gradients="sum")
                model.set_parameters(start_values())
                optimizer = trireme.Optimizer(
                    model, trireme.UserRule(rule, state_count=2), learning_rate=0.5
                )
                for _ in range(2):
                    model.accumulate_flat(gradients_of(group.rank))
                    optimizer.step()
                return model.get_parameters().tolist(), seen

            results = self.ranks(3, body)
            for values, _ in results:
                for i, (have, start) in enumerate(zip(values, start_values())):
                    total = sum(gradient_of(rank, i) for rank in range(3))
                    self.assertEqual(have, start - 0.5 * total - 0.5 * (2 * total) * 2)
            wanted = {
                (number, i)
                for number, shape in enumerate(SHAPES.values())
                for i in range(math.prod(shape))
            }
            owners = {
                (number, i): rank
                for rank, (_, seen) in enumerate(results)
                for number, first, count, step in seen
                if step == 2
                for i in range(first, first + count)
            }
            self.assertEqual(set(owners), wanted)
            pieces_of_all = sum(
                count for _, seen in results for _, _, count, step in seen if step == 1
            )
            copies = 3 if strategy == "data_parallel" else 1
            self.assertEqual(pieces_of_all, copies * ELEMENTS)

    def test_a_rule_that_refers_to_its_own_optimizer_keeps_no_memory_for_ever(self):
        class Training:
            def __init__(self, group):
                self.calls = 0
                self.model = build(group, "zero1")
                self.optimizer = trireme.Optimizer(self.model, trireme.UserRule(self.update))

            def update(self, update):
                self.calls += 1

        training = Training(self.alone())
        gc.collect()  # the rule is held
        training.model.accumulate_flat(gradients_of(0))
        training.optimizer.step()
        self.assertGreater(training.calls, 0)
        memory = weakref.ref(training.model._owner)
        del training
        gc.collect()
        self.assertIsNone(memory())

    def test_what_a_rule_raises_comes_out_of_step_and_the_others_hear_of_it(self):
        class Mine(Exception):
            pass

        def body(group):
            def rule(update):
                if group.rank == 1:
                    raise Mine("in the rule")

            model = build(group, "zero3")
            optimizer = trireme.Optimizer(model, rule)
            model.accumulate_flat(gradients_of(group.rank))
            with self.assertRaises((Mine, trireme.CallbackError)) as caught:
                optimizer.step()
            with self.assertRaises(trireme.TriremeError):  # the model has failed
                model.accumulate_flat(gradients_of(group.rank))
                optimizer.step()
            return type(caught.exception), str(caught.exception)

        first, second, third = self.ranks(3, body)
        self.assertEqual(second, (Mine, "in the rule"))
        for kind, message in (first, third):
            self.assertIs(kind, trireme.CallbackError)
            self.assertIn("rank 1", message)

    @needs_numpy
    def test_a_rule_with_numpy(self):
        def body(group):
            def rule(update):
                parameters = numpy.asarray(update.parameters)
                parameters -= update.learning_rate * numpy.sign(numpy.asarray(update.gradients))

            model = build(group, "zero2", gradients="sum")
            model.set_parameters(start_values())
            optimizer = trireme.Optimizer(model, rule, learning_rate=0.5)
            model.accumulate_flat(array.array("f", [1 if i % 2 else -1 for i in range(ELEMENTS)]))
            optimizer.step()
            return model.get_parameters().tolist()

        for values in self.ranks(2, body):
            want = [v - (0.5 if i % 2 else -0.5) for i, v in enumerate(start_values())]
            self.assertEqual(values, want)

    def test_models_of_two_threads_train_side_by_side(self):
        problems = []

        def work():
            try:
                with self.alone() as group:
                    model = build(group, "zero3")
                    optimizer = trireme.Optimizer(model, lambda update: None)
                    for _ in range(20):
                        model.accumulate_flat(gradients_of(0))
                        optimizer.step()
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(problems, [])


if __name__ == "__main__":
    unittest.main()
