"""Clipping groups of parameters, each by its own norm."""

import array
import math
import unittest

from support import TestCase, trireme


def sealed(group):
    model = trireme.Model(group, "zero1")
    model.add_parameter("pair", [2])
    model.add_parameter("free", [1], parameter_group=1)
    model.add_parameter("last", [1], parameter_group=2)
    model.seal()
    return model


def by_norms(*norms):
    return [trireme.ParameterGroup(max_norm=norm) for norm in norms]


class NormGroupsTest(TestCase):
    def test_each_group_is_clipped_by_its_own_norm(self):
        def body(group):
            model = sealed(group)
            optimizer = trireme.Optimizer(
                model, "sgd", learning_rate=1.0, groups=by_norms(2.5, 0, 3)
            )
            model.accumulate_flat(array.array("f", [3.0, 4.0, 2.0, 6.0]))
            optimizer.step()
            return [optimizer.group_norm(i) for i in range(3)], model.get_parameters().tolist()

        expected = [5.0, 2.0, 6.0], [-1.5, -2.0, -2.0, -3.0]
        self.assertEqual(list(self.ranks(2, body)), [expected, expected])

    def test_a_group_that_is_no_number_leaves_the_others(self):
        with trireme.Communicator(0, 1, "local://norm-groups-inf") as group:
            model = sealed(group)
            optimizer = trireme.Optimizer(
                model, "sgd", learning_rate=1.0, groups=tuple(by_norms(2.5, 0, 3))
            )
            model.accumulate_flat(array.array("f", [3.0, 4.0, 2.0, math.inf]))
            optimizer.step()
            self.assertEqual(optimizer.group_norm(0), 5.0)
            self.assertTrue(math.isnan(optimizer.group_norm(2)))
            self.assertEqual(model.get_parameters().tolist(), [-1.5, -2.0, -2.0, -math.inf])

    def test_each_group_has_its_rate_and_weight_decay(self):
        def body(group):
            model = sealed(group)
            model.set_parameters(array.array("f", [1.0, 1.0, 2.0, 4.0]))
            optimizer = trireme.Optimizer(
                model,
                "sgd",
                learning_rate=0.5,
                weight_decay=1.0,  # of the last group, which has none of its own
                groups=[
                    trireme.ParameterGroup(weight_decay=0),
                    trireme.ParameterGroup(rate_factor=0.5, weight_decay=0.5),
                    trireme.ParameterGroup(rate_factor=0),
                ],
            )
            for rate in (0.5, 0.25):
                optimizer.learning_rate = rate
                model.accumulate_flat(array.array("f", [1.0, 2.0, 1.0, 1.0]))
                optimizer.step()
            return model.get_parameters().tolist()

        free = 2.0
        for rate in (0.25, 0.125):
            free -= rate * (1.0 + 0.5 * free)
        expected = [0.25, -0.5, free, 4.0]
        self.assertEqual(list(self.ranks(2, body)), [expected, expected])

    def test_what_does_not_fit_is_refused(self):
        with trireme.Communicator(0, 1, "local://norm-groups-refused") as group:
            model = sealed(group)
            with self.assertRaisesRegex(trireme.InvalidArgumentError, 'of parameter "last"'):
                trireme.Optimizer(model, "sgd", groups=by_norms(1.0, 1.0))
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Optimizer(model, "sgd", groups=by_norms(1.0, 1.0, -1.0))
            with self.assertRaises(trireme.UnsupportedError):
                trireme.Optimizer(model, "sgd", groups=by_norms(1.0, 1.0, 1.0), clipping=1.0)
            for name, value in (
                ("rate_factor", -1.0),
                ("weight_decay", math.nan),
                ("max_norm", math.inf),
            ):
                groups = [trireme.ParameterGroup(), trireme.ParameterGroup(**{name: value})] * 2
                message = rf"options\.groups\[1\]\.{name}"
                with self.assertRaisesRegex(trireme.InvalidArgumentError, message):
                    trireme.Optimizer(model, "sgd", groups=groups)
            with self.assertRaises(trireme.InvalidArgumentError):
                model.add_parameter("wide", [1], parameter_group=1 << 32)
            optimizer = trireme.Optimizer(model, "sgd", groups=by_norms(1.0, 1.0, 1.0))
            with self.assertRaises(trireme.InvalidStateError):
                optimizer.group_norm(0)
            for number in (3, -1):
                with self.assertRaises(trireme.InvalidArgumentError):
                    optimizer.group_norm(number)
            optimizer.close()
            with self.assertRaises(trireme.InvalidHandleError):
                optimizer.group_norm(0)
            for options in ({}, {"clipping": 1.0}):  # parameters name groups that are not there
                message = 'parameter_group 1 of parameter "free", but options.group_count is 0'
                with self.assertRaisesRegex(trireme.InvalidArgumentError, message):
                    trireme.Optimizer(model, "sgd", **options)
            groups = [trireme.ParameterGroup()] * 3
            plain = trireme.Optimizer(model, "sgd", clipping=1.0, groups=groups)
            with self.assertRaises(trireme.InvalidStateError):
                plain.group_norm(0)


if __name__ == "__main__":
    unittest.main()
