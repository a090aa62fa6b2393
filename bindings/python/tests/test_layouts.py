"""Where shards lie and when they move: limits of memory, orders, strides, kept units, rows."""

import array
import re
import unittest

from support import TestCase, run_ranks, trireme
from test_model import (
    ELEMENTS,
    STRATEGIES,
    build,
    gradient_of,
    gradients_of,
    pieces,
    start_values,
)


APART = trireme.Units(minimum_bytes=1)


def train(group, model, steps=2, forward=False):
    """SGD by hooks, in the order of registration or the reverse of it."""
    model.set_parameters(start_values())
    optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.25)
    named = list(pieces(gradients_of(group.rank)))
    for _ in range(steps):
        with model.backward():
            for name, piece in named if forward else reversed(named):
                model.gradient_ready(name, piece)
        optimizer.step()
    return model.get_parameters().tolist()


def expected(world_size, steps=2):
    sums = [sum(gradient_of(rank, i) for rank in range(world_size)) for i in range(ELEMENTS)]
    return [v - steps * 0.25 * s / world_size for v, s in zip(start_values(), sums)]


class MemoryLimitTest(TestCase):
    def test_the_limit_is_what_a_rank_holds_and_the_text_tells_it(self):
        for strategy in STRATEGIES:

            def body(group):
                options = {"units": APART, "share": "never"}
                memory = build(group, strategy, **options).memory()
                needs = [
                    memory.planned_parameters + memory.planned_gradients + memory.planned_working
                ]
                with self.assertRaises(trireme.OutOfMemoryError) as caught:
                    build(group, strategy, memory_limit_bytes=1, **options)
                text = str(caught.exception)
                self.assertIn("memory_limit_bytes is 1 bytes", text)
                said = int(re.search(r"rank 0 needs (\d+) bytes", text).group(1))
                self.assertGreaterEqual(said, max(needs))
                model = build(group, strategy, memory_limit_bytes=said, **options)
                with self.assertRaisesRegex(trireme.OutOfMemoryError, "optimizer state"):
                    trireme.Optimizer(model, "adam")
                trireme.Optimizer(model, "sgd").close()
                with self.assertRaises(trireme.OutOfMemoryError):
                    build(group, strategy, memory_limit_bytes=said - 1, **options)
                self.assertIn("no optimizer state, as planned_rule is not set", text)
                options["planned_rule"] = "AdamW"
                with self.assertRaisesRegex(
                    trireme.OutOfMemoryError, "optimizer state .* of adamw"
                ):
                    build(group, strategy, memory_limit_bytes=said, **options)
                group.barrier()
                return text

            texts = self.ranks(2, body)
            self.assertEqual(texts[0], texts[1])

    def test_a_rule_that_cannot_be_planned_is_refused(self):
        def body(group):
            for rule, words in (
                ("user", "a rule of the caller"),
                ("adam", "without options.memory_limit_bytes"),
            ):
                limit = 0 if rule == "adam" else 1 << 20
                with self.assertRaisesRegex(trireme.InvalidArgumentError, words):
                    build(group, "zero1", memory_limit_bytes=limit, planned_rule=rule)
            with self.assertRaisesRegex(trireme.InvalidArgumentError, "planned_rule"):
                build(group, "zero1", memory_limit_bytes=1, planned_rule="adamm")
            group.barrier()

        self.ranks(2, body)

    def test_limits_that_differ_are_a_mismatch(self):
        def body(group):
            build(group, "zero2", memory_limit_bytes=1 + group.rank)

        for outcome in run_ranks(3, body):
            self.assertIsInstance(outcome, trireme.MismatchError)
            self.assertIn("memory_limit_bytes", outcome.message)


class OrderTest(TestCase):
    def test_buckets_follow_the_gradients_unless_the_order_is_fixed(self):
        for strategy in STRATEGIES:
            for fixed in (False, True):

                def body(group):
                    model = build(
                        group,
                        strategy,
                        units=APART,
                        buckets=trireme.Buckets(bytes=1),
                        share="never",
                        fixed_order=fixed,
                    )
                    return train(group, model, forward=True), model.statistics().moved_buckets

                for values, moved in self.ranks(3, body):
                    self.assertEqual(moved, 0 if fixed else 2)
                    for have, want in zip(values, expected(3)):
                        self.assertAlmostEqual(have, want, places=4)


class StrideTest(TestCase):
    def test_the_ranks_of_a_copy_are_a_stride_apart(self):
        for share in ("auto", "never"):

            def body(group):
                shards = trireme.Shards(ranks=2, stride=2, share=share)
                model = build(group, "hybrid_shard", shards=shards)
                return train(group, model), model.memory().planned_parameters

            results = self.ranks(4, body)
            for rank, (values, held) in enumerate(results):
                self.assertEqual(held, 4 * (ELEMENTS // 2 + (rank // 2 < ELEMENTS % 2)))
                for have, want in zip(values, expected(4)):
                    self.assertAlmostEqual(have, want, places=4)

    def test_strides_that_cannot_be_are_refused(self):
        def body(group):
            for strategy, ranks, stride in (
                ("zero3", 0, 2),
                ("hybrid_shard", 2, 3),
                ("hybrid_shard", 2, -1),
                ("hybrid_shard", 2, 1 << 32),
            ):
                with self.assertRaises(trireme.InvalidArgumentError):
                    shards = trireme.Shards(ranks=ranks, stride=stride)
                    trireme.Model(group, strategy, shards=shards)
            group.barrier()

        self.ranks(4, body)


class KeptUnitsTest(TestCase):
    def test_they_are_gathered_once_a_step(self):
        def body(group):
            model = build(group, "zero3", units=APART, share="never", keep_gathered=True)
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.25)
            model.set_parameters(start_values())
            gathers = []
            for _ in range(2):
                for unit in (0, 1, 1, 0, 0, 1):
                    with model.gathered(unit):
                        pass
                gathers.append(model.statistics().gathers)
                model.accumulate_flat(gradients_of(group.rank))
                optimizer.step()
            return gathers, model.get_parameters().tolist()

        for gathers, values in self.ranks(3, body):
            self.assertEqual(gathers, [2, 4])
            for have, want in zip(values, expected(3)):
                self.assertAlmostEqual(have, want, places=4)

    def test_only_what_gathers_can_keep(self):
        for strategy in ("data_parallel", "zero1", "zero2"):
            with self.assertRaisesRegex(trireme.InvalidArgumentError, "KEEP_GATHERED"):
                trireme.Model(self.alone(), strategy, keep_gathered=True)


class UpdateInBackwardTest(TestCase):
    def test_no_gradients_are_kept_and_the_numbers_are_the_same(self):
        for strategy in STRATEGIES:

            def body(group):
                outcomes = []
                for update_in_backward in (False, True):
                    model = build(
                        group,
                        strategy,
                        units=APART,
                        buckets=trireme.Buckets(bytes=1),
                        update_in_backward=update_in_backward,
                    )
                    outcomes.append((train(group, model), model.memory()))
                return outcomes

            for (plain, kept), (values, memory) in self.ranks(2, body):
                self.assertEqual(values, plain)
                self.assertGreater(kept.planned_gradients, 0)
                self.assertEqual(memory.planned_gradients, 0)
                self.assertEqual(memory.allocated_working, memory.planned_working)

    def test_what_must_see_all_gradients_first_is_refused(self):
        model = build(self.alone(), "zero2", update_in_backward=True)
        with self.assertRaisesRegex(trireme.InvalidStateError, "no optimizer"):
            model.begin_backward()
        with self.assertRaisesRegex(trireme.UnsupportedError, "a norm of all gradients"):
            trireme.Optimizer(model, "sgd", clipping=1.0)

    def test_what_a_rule_raises_comes_out_of_the_step(self):
        def rule(update):
            raise KeyError("in backward")

        model = build(self.alone(), "zero1", update_in_backward=True)
        model.set_parameters(start_values())
        optimizer = trireme.Optimizer(model, trireme.UserRule(rule))
        model.accumulate_flat(gradients_of(0))
        with self.assertRaisesRegex(KeyError, "in backward"):
            optimizer.step()

    def test_what_a_rule_raises_is_the_cause_if_the_step_cannot_be_discarded(self):
        def rule(update):
            raise KeyError("in backward")

        # Of four buckets two are in flight, so backward updates the first one.
        model = trireme.Model(
            self.alone(),
            "zero1",
            units=APART,
            buckets=trireme.Buckets(bytes=1),
            update_in_backward=True,
        )
        for number in range(4):
            model.add_parameter(f"p{number}", [2])
        model.seal()
        optimizer = trireme.Optimizer(model, trireme.UserRule(rule))
        model.accumulate_flat(array.array("f", [1.0] * 8))
        with self.assertRaisesRegex(trireme.InvalidStateError, "cannot be discarded") as caught:
            model.discard_gradients()
        self.assertEqual(repr(caught.exception.__cause__), "KeyError('in backward')")
        with self.assertRaises(trireme.InvalidStateError) as caught:
            optimizer.step()
        self.assertIsNone(caught.exception.__cause__)

    def test_what_a_schedule_raises_comes_out_of_the_call_that_asks_it(self):
        asked = []

        def factor(step):
            asked.append(step)
            if len(asked) <= len(begins):
                raise KeyError(len(asked))
            return 1.0

        model = build(self.alone(), "zero1", update_in_backward=True)
        optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.5)
        optimizer.set_schedule(trireme.Schedule(factor))
        gradients = gradients_of(0)
        begins = (
            model.begin_backward,
            model.backward().__enter__,
            lambda: model.accumulate_flat(gradients),
        )
        for number, begin in enumerate(begins, 1):
            with self.assertRaisesRegex(KeyError, str(number)):
                begin()
        # The pass has not begun, and nothing is kept: this failure has no cause.
        with self.assertRaises(trireme.InvalidStateError) as caught:
            optimizer.step()
        self.assertIsNone(caught.exception.__cause__)
        model.accumulate_flat(gradients)
        optimizer.step()
        self.assertEqual(model.get_parameters().tolist(), [-0.5 * g for g in gradients])


class ReshardTest(TestCase):
    def test_units_are_gathered_again_by_a_few(self):
        def body(group):
            units = trireme.Units(minimum_bytes=1, reshard_ranks=2)
            model = build(group, "zero3", units=units, share="never")
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=0.25)
            model.set_parameters(start_values())
            gathers = []
            for _ in range(2):
                for unit in (0, 1, 1, 0):
                    with model.gathered(unit):
                        pass
                statistics = model.statistics()
                gathers.append((statistics.gathers, statistics.reshard_gathers))
                model.accumulate_flat(gradients_of(group.rank))
                optimizer.step()
            return gathers, model.get_parameters().tolist()

        for gathers, values in self.ranks(4, body):
            self.assertEqual(gathers, [(4, 2), (8, 4)])
            for have, want in zip(values, expected(4)):
                self.assertAlmostEqual(have, want, places=4)

    def test_numbers_that_cannot_be_are_refused(self):
        for strategy, ranks in (("zero2", 1), ("zero3", 2), ("zero3", -1), ("zero3", 1 << 32)):
            with self.assertRaisesRegex(trireme.InvalidArgumentError, "reshard_ranks"):
                trireme.Model(self.alone(), strategy, units=trireme.Units(reshard_ranks=ranks))


class ReduceDtypeTest(TestCase):
    def test_contributions_are_rounded_once_and_sums_are_not(self):
        def body(group):
            trained = []
            for dtype in (None, "bf16", "f16"):
                model = trireme.Model(group, "zero2", gradients="sum", reduce_dtype=dtype)
                model.add_parameter("weight", [5])
                model.seal()
                optimizer = trireme.Optimizer(model, "sgd", learning_rate=1.0)
                model.set_parameters(array.array("f", [0] * 5))
                one = 1 + 2.0**-9 if group.rank == 0 else 2.0**-9
                model.accumulate_flat(array.array("f", [one] * 5))
                optimizer.step()
                trained.append(model.get_parameters().tolist())
                optimizer.close()
                model.close()
            return trained

        wanted = [-1 - 2.0**-8, -1 - 2.0**-9, -1 - 2.0**-8]
        for trained in self.ranks(2, body):
            self.assertEqual(trained, [[value] * 5 for value in wanted])

    def test_other_types_are_refused(self):
        for dtype in ("f32", "f64", "i8"):
            with self.assertRaisesRegex(trireme.InvalidArgumentError, "reduce_dtype"):
                trireme.Model(self.alone(), "zero1", reduce_dtype=dtype)
        model = trireme.Model(self.alone(), "zero1", reduce_dtype="f16")
        with self.assertRaisesRegex(trireme.UnsupportedError, "f64"):
            model.add_parameter("wide", [2], "f64")


class RowsTest(TestCase):
    def test_shards_begin_and_end_with_rows(self):
        for rows in (True, False):

            def body(group):
                model = trireme.Model(
                    group, "zero3", shards=trireme.Shards(share="never"), whole_rows=rows
                )
                model.add_parameter("weight", [7, 5])
                model.seal()
                unit = model.unit_info(0)
                return unit.shard_first, unit.shard_count

            shards = self.ranks(4, body)
            even = [(0, 9), (9, 9), (18, 9), (27, 8)]
            self.assertEqual(shards, [(0, 10), (10, 10), (20, 5), (25, 10)] if rows else even)

    def test_the_numbers_do_not_change(self):
        for strategy in STRATEGIES:

            def body(group):
                return train(group, build(group, strategy, whole_rows=True))

            for values in self.ranks(4, body):
                for have, want in zip(values, expected(4)):
                    self.assertAlmostEqual(have, want, places=4)


if __name__ == "__main__":
    unittest.main()
