"""Learning rates that follow a schedule."""

import array
import math
import unittest

from support import TestCase, trireme


def sealed(group, last=0):
    model = trireme.Model(group, "zero2")
    model.add_parameter("pair", [2])
    model.add_parameter("last", [1], parameter_group=last)
    model.seal()
    return model


def step(model, optimizer):
    model.accumulate_flat(array.array("f", [1.0, 2.0, 4.0]))
    optimizer.step()


def by_factors(*factors):
    return [trireme.ParameterGroup(rate_factor=factor) for factor in factors]


class FactorTest(TestCase):
    def test_factors_are_those_of_the_formulas(self):
        plan = trireme.Schedule("cosine", total_steps=10, warm_up_steps=2, end_factor=0.2)
        for at in range(13):
            part = min(1.0, max(0.0, (at - 2) / 8))
            expected = 0.2 + 0.8 * (1 + math.cos(math.pi * part)) / 2
            self.assertAlmostEqual(plan.factor(at), (0.5, 1.0)[at] if at < 2 else expected, 14)
        plan = trireme.Schedule("linear", total_steps=8, warm_up_steps=4, from_zero=True)
        self.assertEqual([plan.factor(at) for at in (0, 1, 4, 6, 8)], [0.0, 0.25, 1.0, 0.5, 0.0])
        plan = trireme.Schedule("constant", warm_up_steps=4, warm_up_factor=0.5)
        self.assertEqual([plan.factor(at) for at in (0, 2, 4, 99)], [0.5, 0.75, 1.0, 1.0])
        plan = trireme.Schedule(
            "one_cycle",
            total_steps=9,
            pct_start=5 / 9,
            div_factor=2,
            final_div_factor=4,
            linear_annealing=True,
        )
        self.assertEqual([plan.factor(at) for at in (0, 4, 8, 9)], [0.5, 1.0, 0.125, 0.125])
        self.assertEqual(trireme.Schedule(lambda at: 2 * at).factor(3), 6.0)

    def test_what_a_function_raises_comes_out(self):
        def fails(at):
            raise KeyError(at)

        with self.assertRaisesRegex(KeyError, "7"):
            trireme.Schedule(fails).factor(7)
        with self.assertRaisesRegex(trireme.CallbackError, "answered -1 for step 7"):
            trireme.Schedule(lambda at: -1).factor(7)
        with self.assertRaises(TypeError):
            trireme.Schedule(lambda at: None).factor(7)

    def test_options_that_mean_nothing_are_refused(self):
        for options in (
            {"kind": "cosine", "total_steps": 0},
            {"kind": "constant", "from_zero": True},
            {"kind": "linear", "total_steps": 3, "warm_up_steps": 4},
            {"kind": "linear", "total_steps": 3, "end_factor": -1.0},
            {"kind": "one_cycle", "total_steps": 3, "pct_start": 2.0},
        ):
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Schedule(**options).factor(0)
        for options in ({"total_steps": 3, "div_factor": 0}, {"total_steps": -1}):
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.OneCycleSchedule(**options)
        for kind in ("sawtooth", "user", 9):
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Schedule(kind)
        for make in (
            lambda: trireme.Schedule("constant", total_steps=3),
            lambda: trireme.Schedule("cosine"),
            lambda: trireme.Schedule(lambda at: 1.0, total_steps=3),
            lambda: trireme.Schedule(None),
            lambda: trireme.LinearSchedule("3"),
        ):
            with self.assertRaises(TypeError):
                make()

    def test_a_class_of_a_kind_and_its_short_form_are_the_same(self):
        for short, kind, options in (
            ("constant", trireme.ConstantSchedule, {"warm_up_steps": 3, "warm_up_factor": 0.5}),
            ("Linear", trireme.LinearSchedule, {"total_steps": 8, "end_factor": 0.5}),
            ("cosine", trireme.CosineSchedule, {"total_steps": 8, "from_zero": False}),
            ("one_cycle", trireme.OneCycleSchedule, {"total_steps": 8, "linear_annealing": True}),
        ):
            long = kind(**options)
            plan = trireme.Schedule(short, **options)
            self.assertEqual(plan.options, long)
            self.assertEqual(trireme.Schedule(long).options, long)
            self.assertEqual(
                [plan.factor(at) for at in range(9)], [long.factor(at) for at in range(9)]
            )
        self.assertEqual(repr(trireme.CosineSchedule(9)), "CosineSchedule(total_steps=9)")


class ScheduledTest(TestCase):
    def test_training_follows_a_schedule(self):
        for plan in (
            trireme.Schedule("linear", total_steps=4),
            trireme.LinearSchedule(4),
            trireme.Schedule(lambda at: 1 - at / 4),
            lambda at: 1 - at / 4,
        ):

            def body(group):
                model = sealed(group, last=1)
                optimizer = trireme.Optimizer(
                    model, "sgd", learning_rate=0.5, groups=by_factors(1, 2)
                )
                optimizer.set_schedule(plan)
                for at in range(3):
                    self.assertEqual(optimizer.step_rate, 0.5 * (1 - at / 4))
                    self.assertEqual(optimizer.learning_rate, 0.5)
                    step(model, optimizer)
                optimizer.set_group_rate_factor(1, 0)
                optimizer.set_schedule(None)
                self.assertEqual(optimizer.step_rate, 0.5)
                step(model, optimizer)
                return model.get_parameters().tolist()

            # Rates 0.5, 0.375, 0.25 and 0.5.
            expected = [-1.625, -3.25, -9.0]
            self.assertEqual(list(self.ranks(2, body)), [expected, expected])

    def test_a_training_that_is_loaded_goes_on_in_the_middle(self):
        plan = trireme.Schedule("cosine", total_steps=6)

        def body(group):
            model = sealed(group)
            with trireme.Optimizer(model, "sgd", learning_rate=0.5) as optimizer:
                optimizer.set_schedule(plan)
                for _ in range(2):
                    step(model, optimizer)
                state = optimizer.save()
                rate = optimizer.step_rate
                step(model, optimizer)
                expected = model.get_parameters().tolist()
            with trireme.Optimizer(model, "sgd") as optimizer:
                optimizer.set_schedule(plan)
                optimizer.load(state)
                self.assertEqual(optimizer.step_rate, rate)
                step(model, optimizer)
                self.assertEqual(model.get_parameters().tolist(), expected)
            return rate

        rates = list(self.ranks(3, body))
        self.assertEqual(rates, [0.5 * plan.factor(2)] * 3)

    def test_a_function_that_raises_may_be_asked_again(self):
        def body(group):
            model = sealed(group)
            optimizer = trireme.Optimizer(model, "sgd", learning_rate=1.0)
            broken = group.rank == 0

            def factor(at):
                if broken:
                    raise KeyError(at)
                with self.assertRaises(trireme.InvalidStateError):
                    optimizer.step_rate
                return 0.5

            optimizer.set_schedule(trireme.Schedule(factor))
            model.accumulate_flat(array.array("f", [1.0, 2.0, 4.0]))
            if broken:
                for _ in range(2):
                    with self.assertRaisesRegex(KeyError, "0"):
                        optimizer.step()
                with self.assertRaisesRegex(KeyError, "0"):
                    optimizer.step_rate
                broken = False
            optimizer.step()
            return model.get_parameters().tolist()

        expected = [-0.5, -1.0, -2.0]
        self.assertEqual(list(self.ranks(2, body)), [expected, expected])

    def test_ranks_with_other_factors_are_a_mismatch(self):
        def body(group):
            model = sealed(group)
            optimizer = trireme.Optimizer(model, "sgd")
            optimizer.set_schedule(trireme.Schedule(lambda at: group.rank + 1))
            model.accumulate_flat(array.array("f", [1.0, 2.0, 4.0]))
            with self.assertRaisesRegex(trireme.MismatchError, "learning rate"):
                optimizer.step()
            return True

        self.assertEqual(list(self.ranks(2, body)), [True, True])

    def test_wrong_calls_are_refused(self):
        with trireme.Communicator(0, 1, "local://schedule-refused") as group:
            model = sealed(group, last=1)
            optimizer = trireme.Optimizer(model, "sgd", groups=by_factors(1, 2))
            for number, factor in ((2, 1.0), (0, -1.0), (0, math.nan)):
                with self.assertRaises(trireme.InvalidArgumentError):
                    optimizer.set_group_rate_factor(number, factor)
            optimizer.set_schedule(trireme.Schedule("linear", total_steps=2))
            with self.assertRaises(trireme.InvalidArgumentError):
                optimizer.set_schedule(trireme.Schedule("linear", total_steps=0))
            step(model, optimizer)
            self.assertEqual(optimizer.step_rate, 0.0005)
            optimizer.close()
            for call in (
                lambda: optimizer.set_schedule(None),
                lambda: optimizer.step_rate,
                lambda: optimizer.set_group_rate_factor(0, 1.0),
            ):
                with self.assertRaises(trireme.InvalidHandleError):
                    call()


if __name__ == "__main__":
    unittest.main()
