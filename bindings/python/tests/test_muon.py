"""The rule that makes matrices orthogonal, beside a scalar recursion."""

import array
import math
import unittest

from support import TestCase, trireme


def sealed(group):
    model = trireme.Model(group, "zero2")
    model.add_parameter("matrix", [2, 1], dtype="f64")
    model.add_parameter("embedding", [1, 2], dtype="f64", parameter_group=1)
    model.seal()
    return model


def length_after(steps):
    """Of a vector of length 1, which is all that happens to it."""
    length = 1.0
    for _ in range(steps):
        length *= 3.4445 - 4.7750 * length**2 + 2.0315 * length**4
    return length


class MuonTest(TestCase):
    def test_a_matrix_goes_along_its_direction_and_other_groups_as_adamw(self):
        for options, steps, factor in (
            ({}, 5, math.sqrt(2)),
            ({"nesterov": True, "orthogonal_steps": 3}, 3, math.sqrt(2)),
            ({"rate_adjustment": "match_adamw"}, 5, 0.2 * math.sqrt(2)),
        ):

            def body(group, options=options):
                model = sealed(group)
                optimizer = trireme.Optimizer(
                    model,
                    trireme.Muon(**options),
                    learning_rate=0.5,
                    groups=[
                        trireme.ParameterGroup(),
                        trireme.ParameterGroup(elementwise=True, rate_factor=0.5),
                    ],
                )
                model.accumulate_flat(array.array("d", [3.0, 4.0, 7.0, -5.0]))
                optimizer.step()
                return model.get_parameters().tolist()

            far = 0.5 * factor * length_after(steps)
            expected = [-0.6 * far, -0.8 * far, -0.25, 0.25]
            for values in self.ranks(2, body):
                for have, want in zip(values, expected):
                    self.assertAlmostEqual(have, want, places=7, msg=options)

    def test_bad_options_are_refused(self):
        with trireme.Communicator(0, 1, "local://muon-refused") as group:
            model = sealed(group)
            for options in (
                {"orthogonal_steps": 100},
                {"orthogonal_steps": -1},
                {"orthogonal_steps": 0},
                {"rate_adjustment": "adamw"},
                {"rate_adjustment": 7},
                {"momentum": 1.0},
            ):
                with self.assertRaises(trireme.InvalidArgumentError, msg=options):
                    trireme.Optimizer(model, trireme.Muon(**options))
            flat = trireme.ParameterGroup(elementwise=True)
            for rule, groups in (("muon", [flat]), ("adamw", [flat, flat])):
                with self.assertRaises(trireme.InvalidArgumentError, msg=rule):
                    trireme.Optimizer(model, rule, groups=groups)
            with self.assertRaises(trireme.UnsupportedError):
                trireme.Optimizer(model, "muon", one_sweep=True)


if __name__ == "__main__":
    unittest.main()
