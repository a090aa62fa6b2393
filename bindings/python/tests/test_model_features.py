"""Features of models: hybrid shards, groups, uneven inputs, unused gradients, hooks."""

import array
import gc
import math
import unittest
import weakref

from support import WORLD_SIZES, TestCase, needs_numpy, numpy, run_ranks, trireme
from test_model import (
    ELEMENTS,
    SHAPES,
    STRATEGIES,
    build,
    gradient_of,
    gradients_of,
    pieces,
    start_values,
)

NAMES = tuple(SHAPES)
APART = trireme.Units(minimum_bytes=1)


def hand_in(model, rank, names=NAMES):
    """One backward pass by hooks, with the gradients of some parameters."""
    with model.backward():
        for name, piece in reversed(list(pieces(gradients_of(rank)))):
            if name in names:
                model.gradient_ready(name, piece)


class HybridShardTest(TestCase):
    def test_parameters_are_held_by_shard_and_state_by_all(self):
        for world_size, shard_ranks in ((4, 2), (4, 4), (4, 1), (8, 2)):

            def body(group):
                model = build(group, "hybrid_shard", shards=shard_ranks)
                with trireme.Optimizer(model, "adam"):
                    return model.memory()

            results = self.ranks(world_size, body)
            for rank, memory in enumerate(results):
                part = rank % shard_ranks
                held = ELEMENTS // shard_ranks + (part < ELEMENTS % shard_ranks)
                self.assertEqual(memory.planned_parameters, 4 * held)
                self.assertEqual(memory.allocated_parameters, 4 * held)
            # Two states of 4 bytes an element, each element's on one rank.
            state = sum(memory.allocated_optimizer_state for memory in results)
            self.assertEqual(state, 2 * 4 * ELEMENTS)

    def test_shard_ranks_that_do_not_fit_are_refused(self):
        def body(group):
            for strategy, shard_ranks in (
                ("hybrid_shard", 2),
                ("hybrid_shard", 6),
                ("hybrid_shard", -1),
                ("zero3", 3),
            ):
                with self.assertRaises(trireme.InvalidArgumentError):
                    trireme.Model(group, strategy, shards=shard_ranks)
            group.barrier()

        self.ranks(3, body)

    def test_shard_ranks_0_takes_the_ranks_of_the_host(self):
        def body(group):
            each = [build(group, "hybrid_shard", shards=ranks) for ranks in (0, 4)]
            return [model.memory().planned_parameters for model in each]

        for without, named in self.ranks(4, body):
            self.assertEqual(without, named)

    def test_ranks_that_name_two_sizes_of_shards_are_told(self):
        def body(group):
            build(group, "hybrid_shard", shards=(2, 4)[group.rank % 2])

        for outcome in run_ranks(4, body):
            self.assertIsInstance(outcome, trireme.MismatchError)
            self.assertIn("options.shards.ranks", outcome.message)


class GroupsTest(TestCase):
    def test_small_units_are_one_group_unless_told_otherwise(self):
        def body(group):
            joined = build(group, "zero3")
            apart = build(group, "zero3", units=APART)
            self.assertEqual([joined.info().unit_groups, apart.info().unit_groups], [1, 2])
            self.assertEqual([joined.unit_info(u).unit_group for u in (0, 1)], [0, 0])
            self.assertEqual([apart.unit_info(u).unit_group for u in (0, 1)], [0, 1])
            return joined.unit_info(0).shard_count + joined.unit_info(1).shard_count

        for rank, count in enumerate(self.ranks(3, body)):
            self.assertEqual(count, ELEMENTS // 3 + (rank < ELEMENTS % 3))

    def test_persistent_units_are_there_without_a_gather(self):
        def body(group):
            model = build(
                group,
                "zero3",
                units=trireme.Units(minimum_bytes=1, persistent_bytes=49),
                share="never",
            )
            model.set_parameters(start_values())
            with self.assertRaises(trireme.InvalidStateError):
                model.parameter("layer1.bias")  # a unit of 80 bytes
            values = model.parameter("layer2.bias").tolist()  # one of 48
            for unit in ("layer1", "layer2", "layer2", "layer1"):
                with model.gathered(unit):
                    pass
            return values, model.statistics().gathers

        for values, gathers in self.ranks(2, body):
            self.assertEqual(values, start_values()[-2:].tolist())
            self.assertIn(gathers, (1, 2))  # the last unit forward may stay for backward

    def test_the_first_bucket_may_be_small(self):
        def body(group):
            plain = build(group, "zero2", units=APART)
            early = build(group, "zero2", units=APART, buckets=trireme.Buckets(first_bytes=1))
            return plain.info().buckets, early.info().buckets

        for buckets in self.ranks(2, body):
            self.assertEqual(buckets, (1, 2))

    def test_sizes_out_of_range_are_refused(self):
        for make, name in (
            (trireme.Units, "minimum_bytes"),
            (trireme.Units, "persistent_bytes"),
            (trireme.Units, "prefetch_bytes"),
            (trireme.Buckets, "bytes"),
            (trireme.Buckets, "first_bytes"),
        ):
            for value in (-1, 1 << 64):
                with self.assertRaisesRegex(trireme.InvalidArgumentError, rf"\.{name} {value} is"):
                    make(**{name: value})


class StatisticsTest(TestCase):
    def test_they_count_what_was_done(self):
        def body(group):
            model = trireme.Model(
                group,
                "zero3",
                units=APART,
                buckets=trireme.Buckets(bytes=1),
                shards=trireme.Shards(share="never"),
            )
            for number in range(4):
                model.add_parameter(f"layer{number}", [6])
            model.seal()
            optimizer = trireme.Optimizer(model, "sgd")
            zero = model.statistics()
            seen = []
            gradients = array.array("f", range(24))
            for _ in range(3):
                for unit in (0, 1, 2, 3, 3, 2, 1, 0):
                    with model.gathered(unit):
                        pass
                model.accumulate_flat(gradients, no_sync=True)
                model.accumulate_flat(gradients)
                optimizer.step()
                seen.append(model.statistics())
            return zero, seen, model.info()

        for zero, seen, info in self.ranks(2, body):
            self.assertEqual(zero[:5], (0, 0, 0, 0, 0))
            self.assertEqual([s.steps for s in seen], [1, 2, 3])
            counts = [2 * info.buckets * step for step in (1, 2, 3)]
            self.assertEqual([s.reductions for s in seen], counts)
            self.assertGreater(seen[1].prefetched, seen[0].prefetched)
            for statistics in seen:
                self.assertLessEqual(statistics.prefetched, statistics.gathers)
                self.assertLessEqual(statistics.peak_unit_groups, info.unit_groups)
                self.assertGreater(statistics.exposed_ns, 0)

    def test_a_model_on_the_host_has_no_stream(self):
        model = trireme.Model(self.alone(), "zero1")
        for stream in (None, 0, 7):
            with self.assertRaisesRegex(trireme.InvalidStateError, "works on the host"):
                model.set_stream(stream)
        with self.assertRaisesRegex(TypeError, "no number and no stream"):
            model.set_stream("default")
        model.close()
        with self.assertRaisesRegex(trireme.InvalidHandleError, "the model is closed"):
            model.set_stream()

    def test_a_model_that_is_not_sealed_or_closed_has_none(self):
        model = trireme.Model(self.alone(), "zero3")
        for call in (model.statistics, model.check_replicas):
            with self.assertRaises(trireme.InvalidStateError):
                call()
        model.close()
        for call in (model.statistics, model.check_replicas):
            with self.assertRaisesRegex(trireme.InvalidHandleError, "the model is closed"):
                call()


class ReplicasTest(TestCase):
    def test_the_rank_that_differs_is_named_on_all(self):
        for strategy in ("data_parallel", "zero1", "zero2"):

            def body(group):
                model = build(group, strategy)
                model.set_parameters(start_values())
                model.check_replicas()
                if group.rank == 1:
                    model.parameter("layer2.weight")[3, 1] += 0.5
                with self.assertRaises(trireme.MismatchError) as caught:
                    model.check_replicas()
                model.set_parameters(start_values())
                model.check_replicas()
                return caught.exception.message, caught.exception.blamed

            for message, blamed in self.ranks(3, body):
                self.assertIn("layer2.weight", message)
                self.assertEqual(blamed, (1,))

    def test_hybrid_shards_are_compared_with_their_replicas(self):
        def body(group):
            model = build(group, "hybrid_shard", shards=2)
            model.set_parameters(start_values())
            model.check_replicas()
            model.gather_unit(0)
            with self.assertRaises(trireme.InvalidStateError):
                model.check_replicas()
            model.release_unit(0)
            group.barrier()

        self.ranks(4, body)

    def test_a_step_may_compare_them(self):
        def body(group):
            model = build(group, "data_parallel")
            model.set_parameters(start_values())
            optimizer = trireme.Optimizer(model, "sgd", check_every=2)
            if group.rank == 2:
                model.parameter("layer1.bias")[0] = 77
            model.accumulate_flat(gradients_of(group.rank))
            optimizer.step()
            model.accumulate_flat(gradients_of(group.rank))
            with self.assertRaises(trireme.MismatchError) as caught:
                optimizer.step()
            return caught.exception.message, caught.exception.blamed

        for message, blamed in self.ranks(3, body):
            self.assertIn("layer1.bias", message)
            self.assertEqual(blamed, (2,))

    def test_they_are_not_compared_within_a_step(self):
        model = build(self.alone(), "zero1")
        model.begin_backward()
        with self.assertRaises(trireme.InvalidStateError):
            model.check_replicas()
        with self.assertRaises(trireme.InvalidArgumentError):
            trireme.Optimizer(build(self.alone(), "zero1"), "sgd", check_every=-1)


class UnusedTest(TestCase):
    def trained(self, unused, names_of):
        """One step of SGD with weight decay; names_of(rank) have a gradient. By name."""

        def body(group):
            model = build(group, "zero2", gradients="sum", unused=unused)
            model.set_parameters(start_values())
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.5, weight_decay=0.25)
            hand_in(model, group.rank, names_of(group.rank))
            optimizer.step()
            return {name: list(piece) for name, piece in pieces(model.get_parameters().tolist())}

        return self.ranks(3, body)

    def wanted(self, name, users):
        """The values of a parameter after a step, if these ranks brought gradients for it."""
        gradients = [dict(pieces(gradients_of(rank)))[name] for rank in users]
        start = dict(pieces(start_values()))[name]
        return [
            value - 0.5 * (sum(g[i] for g in gradients) + 0.25 * value)
            for i, value in enumerate(start)
        ]

    def test_they_count_as_zero_or_are_skipped(self):
        def names_of(rank):
            # No rank has a gradient of the first bias, and only rank 1 of the second.
            return [n for n in NAMES if n != "layer1.bias" and (n != "layer2.bias" or rank == 1)]

        for unused in ("zero", "skip"):
            for result in self.trained(unused, names_of):
                for name in NAMES:
                    users = (1,) if name == "layer2.bias" else (0, 1, 2)
                    if name != "layer1.bias":
                        self.assertEqual(result[name], self.wanted(name, users))
                    elif unused == "zero":
                        self.assertEqual(result[name], self.wanted(name, ()))
                    else:
                        self.assertEqual(result[name], list(dict(pieces(start_values()))[name]))

    def test_they_are_an_error_unless_told_otherwise(self):
        model = build(self.alone(), "zero2")
        with self.assertRaisesRegex(trireme.InvalidStateError, "layer1.weight"):
            hand_in(model, 0, NAMES[1:])
        with self.assertRaises(trireme.InvalidArgumentError):
            build(self.alone(), "zero2", unused="ignore")
        with self.assertRaises(trireme.InvalidArgumentError):
            build(self.alone(), "zero2", unused=3)

    def test_ranks_that_differ_about_them_are_told(self):
        for outcome in run_ranks(
            2, lambda group: build(group, "zero2", unused=("zero", "skip")[group.rank])
        ):
            self.assertIsInstance(outcome, trireme.MismatchError)
            self.assertIn("unused", outcome.message)


class UnevenTest(TestCase):
    def test_ranks_that_run_out_of_data_join(self):
        batches = (3, 1, 2)
        for strategy in STRATEGIES:

            def body(group):
                model = build(group, strategy, uneven=True, units=APART)
                model.set_parameters(start_values())
                optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.5)
                for _ in range(batches[group.rank]):
                    for unit in (0, 1, 1, 0):
                        with model.gathered(unit):
                            pass
                    model.accumulate_flat(gradients_of(group.rank))
                    optimizer.step()
                followed = optimizer.join()
                return followed, optimizer.step_count, model.get_parameters().tolist()

            want = list(start_values())
            for step in range(3):
                there = [rank for rank in range(3) if batches[rank] > step]
                for i in range(ELEMENTS):
                    want[i] -= 0.5 * sum(gradient_of(rank, i) for rank in there) / len(there)
            for rank, (followed, steps, values) in enumerate(self.ranks(3, body)):
                self.assertEqual((followed, steps), (3 - batches[rank], 3))
                for have, value in zip(values, want):
                    self.assertAlmostEqual(have, value, places=4)

    def test_absent_ranks_do_not_count(self):
        for flat in (True, False):

            def body(group):
                model = build(group, "zero3", uneven=True)
                model.set_parameters(start_values())
                optimizer = trireme.Optimizer(model, "sgd", learning_rate=1)
                absent = group.rank == 1
                if flat:
                    gradients = None if absent else gradients_of(group.rank)
                    model.accumulate_flat(gradients, absent=absent)
                elif absent:
                    with model.backward(absent=True):
                        with self.assertRaises(trireme.InvalidStateError):
                            model.gradient_ready("layer2.bias", array.array("f", [1, 2]))
                else:
                    hand_in(model, group.rank)
                optimizer.step()
                self.assertEqual(optimizer.join(), 0)
                return model.get_parameters().tolist()

            for values in self.ranks(3, body):
                for i, (have, start) in enumerate(zip(values, start_values())):
                    want = start - (gradient_of(0, i) + gradient_of(2, i)) / 2
                    self.assertAlmostEqual(have, want, places=4)

    def test_a_model_that_is_not_uneven_knows_neither(self):
        model = build(self.alone(), "zero1")
        optimizer = trireme.Optimizer(model, "sgd")
        with self.assertRaises(trireme.UnsupportedError):
            model.begin_backward(absent=True)
        with self.assertRaises(trireme.UnsupportedError):
            model.accumulate_flat(absent=True)
        with self.assertRaises(trireme.InvalidStateError):
            optimizer.join()
        with self.assertRaisesRegex(TypeError, "NoneType"):
            model.accumulate_flat()
        optimizer.close()
        with self.assertRaisesRegex(trireme.InvalidHandleError, "the optimizer is closed"):
            optimizer.join()

    def test_nobody_joins_within_a_step(self):
        model = build(self.alone(), "zero1", uneven=True)
        optimizer = trireme.Optimizer(model, "sgd")
        model.accumulate_flat(gradients_of(0))
        with self.assertRaises(trireme.InvalidStateError):
            optimizer.join()
        optimizer.step()
        self.assertEqual(optimizer.join(), 0)


class ClipTest(TestCase):
    def test_values_are_clipped_on_both_sides(self):
        def body(group):
            model = build(group, "zero3", gradients="sum")
            clipping = trireme.Clipping(max_value=1.5)
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=1, clipping=clipping)
            model.accumulate_flat(array.array("f", [i - 10 for i in range(ELEMENTS)]))
            optimizer.step()
            return model.get_parameters().tolist()

        want = [-max(-1.5, min(1.5, 2.0 * (i - 10))) for i in range(ELEMENTS)]
        for values in self.ranks(2, body):
            self.assertEqual(values, want)

    def test_a_bad_limit_is_refused(self):
        model = build(self.alone(), "zero1")
        for limit in (-1.0, math.nan, math.inf):
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Optimizer(model, "sgd", clipping=trireme.Clipping(max_value=limit))


class OneSweepTest(TestCase):
    def test_the_bits_are_those_of_separate_passes(self):
        def body(group):
            found = []
            for one_sweep in (False, True):
                model = build(group, "zero1")
                optimizer = trireme.Optimizer(model, "adamw", one_sweep=one_sweep)
                for step in range(3):
                    model.accumulate_flat(gradients_of(group.rank + step))
                    optimizer.step()
                found.append(model.get_parameters().tobytes())
            return found

        for separate, swept in self.ranks(3, body):
            self.assertEqual(separate, swept)

    def test_what_it_does_not_go_with_is_refused(self):
        model = build(self.alone(), "zero2")
        with self.assertRaisesRegex(trireme.UnsupportedError, "other than zero1"):
            trireme.Optimizer(model, "sgd", one_sweep=True)
        model = build(self.alone(), "zero1")
        with self.assertRaisesRegex(trireme.UnsupportedError, "clipping"):
            trireme.Optimizer(model, "sgd", one_sweep=True, clipping=1)


class Mine(Exception):
    pass


class HookTest(TestCase):
    def test_a_hook_changes_gradients_before_and_after(self):
        for strategy in STRATEGIES:
            for world_size in WORLD_SIZES:

                def body(group):
                    seen = []

                    def hook(bucket):
                        position = 0
                        for part in bucket.parts:
                            self.assertEqual(part.position, position)
                            self.assertGreater(part.count, 0)
                            position += part.count
                            for i in range(part.first, part.first + part.count):
                                seen.append(
                                    (bucket.moment, bucket.backward_pass, part.parameter, i)
                                )
                        self.assertEqual(len(bucket.data), position)
                        self.assertEqual(bucket.dtype, "f32")
                        for i, value in enumerate(bucket.data):
                            bucket.data[i] = 2 * value if bucket.moment == "before" else value + 1

                    model = build(
                        group,
                        strategy,
                        gradients="sum",
                        buckets=trireme.Buckets(bytes=1, hook=hook),
                    )
                    model.set_parameters(start_values())
                    optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.5)
                    model.accumulate_flat(gradients_of(group.rank))
                    optimizer.step()
                    return model.get_parameters().tolist(), seen

                every = [
                    (number, i)
                    for number, shape in enumerate(SHAPES.values())
                    for i in range(math.prod(shape))
                ]
                results = self.ranks(world_size, body)
                for values, seen in results:
                    before = sorted(entry[2:] for entry in seen if entry[:2] == ("before", 0))
                    self.assertEqual(before, every)
                    for i, (have, start) in enumerate(zip(values, start_values())):
                        total = sum(gradient_of(rank, i) for rank in range(world_size))
                        self.assertEqual(have, start - 0.5 * (2 * total + 1))
                after = [e[2:] for _, seen in results for e in seen if e[0] == "after"]
                copies = world_size if strategy == "data_parallel" else 1
                self.assertEqual(sorted(after), sorted(every * copies))

    def test_what_a_hook_raises_comes_out_of_step_and_the_others_hear_of_it(self):
        for moment in ("before", "after"):
            for strategy in STRATEGIES:

                def body(group):
                    def hook(bucket):
                        if group.rank == 1 and bucket.moment == moment:
                            raise Mine("in the hook")

                    model = build(group, strategy, buckets=trireme.Buckets(hook=hook))
                    optimizer = trireme.Optimizer(model, "sgd")
                    model.accumulate_flat(gradients_of(group.rank))
                    with self.assertRaises((Mine, trireme.CallbackError)) as caught:
                        optimizer.step()
                    with self.assertRaises(trireme.TriremeError):  # the model has failed
                        model.accumulate_flat(gradients_of(group.rank))
                        optimizer.step()
                    return type(caught.exception), str(caught.exception)

                first, second, third = self.ranks(3, body)
                self.assertEqual(second, (Mine, "in the hook"))
                for kind, message in (first, third):
                    self.assertIs(kind, trireme.CallbackError)
                    self.assertIn("rank 1", message)

    def test_what_a_hook_raised_goes_with_the_gradients(self):
        bad = [True]

        def hook(bucket):
            if bad[0]:
                raise Mine

        model = build(self.alone(), "zero2", buckets=trireme.Buckets(hook=hook))
        optimizer = trireme.Optimizer(model, "sgd", learning_rate=1)
        model.accumulate_flat(gradients_of(0))
        model.discard_gradients()
        bad[0] = False
        model.accumulate_flat(gradients_of(0))
        optimizer.step()
        want = [-gradient_of(0, i) for i in range(ELEMENTS)]
        self.assertEqual(model.get_parameters().tolist(), want)

    def test_a_hook_runs_as_long_as_there_is_an_optimizer_and_then_goes(self):
        calls = []

        def hook(bucket):
            calls.append(bucket.moment)

        there = weakref.ref(hook)
        model = build(self.alone(), "zero3", buckets=trireme.Buckets(hook=hook))
        optimizer = trireme.Optimizer(model, "sgd")
        del hook
        model.accumulate_flat(gradients_of(0))
        model.close()
        optimizer.step()
        self.assertEqual(calls, ["before", "after"])
        self.assertIsNotNone(there())
        optimizer.close()
        del model, optimizer
        gc.collect()
        self.assertIsNone(there())

    def test_ranks_with_and_without_a_hook_are_told(self):
        def body(group):
            hook = None if group.rank else lambda bucket: None
            build(group, "zero2", buckets=trireme.Buckets(hook=hook))

        for outcome in run_ranks(2, body):
            self.assertIsInstance(outcome, trireme.MismatchError)
            self.assertIn("options.buckets.hook", outcome.message)

    def test_what_cannot_be_called_is_refused(self):
        with self.assertRaisesRegex(TypeError, "Buckets.hook must be a function, not 'hook'"):
            trireme.Buckets(hook="hook")

    @needs_numpy
    def test_a_hook_with_numpy(self):
        def body(group):
            def hook(bucket):
                data = numpy.asarray(bucket.data)
                if bucket.moment == "before":
                    data *= 3
                else:
                    data += 1

            model = build(group, "zero3", gradients="sum", buckets=trireme.Buckets(hook=hook))
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=1)
            model.accumulate_flat(gradients_of(group.rank))
            optimizer.step()
            return model.get_parameters().tolist()

        for values in self.ranks(2, body):
            for i, value in enumerate(values):
                self.assertEqual(value, -(3 * (gradient_of(0, i) + gradient_of(1, i)) + 1))


if __name__ == "__main__":
    unittest.main()
