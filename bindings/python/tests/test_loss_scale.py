"""Dynamic loss scale: steps that overflow are skipped by all ranks."""

import array
import math
import unittest

from support import TestCase, trireme


def sealed(group):
    model = trireme.Model(group, "zero2")
    model.add_parameter("a", [2])
    model.add_parameter("b", [1])
    model.seal()
    return model


class LossScaleTest(TestCase):
    def test_a_step_that_overflows_is_skipped_by_all_ranks(self):
        def body(group):
            model = sealed(group)
            optimizer = trireme.Optimizer(
                model,
                "sgd",
                learning_rate=1.0,
                loss_scale=trireme.LossScale(initial_scale=4, minimum_scale=2, growth_interval=2),
            )
            seen = []
            for step in range(5):
                scale = optimizer.loss_scale
                bad = step in (1, 2) and group.rank == 1
                last = math.inf if bad else scale
                model.accumulate_flat(array.array("f", [scale, 2 * scale, last]))
                message = ""
                try:
                    optimizer.step()
                except trireme.InvalidStateError as error:
                    message = str(error)
                info = optimizer.loss_scale_info()
                said = '("b"), as rank 1 handed it in' in message
                seen.append((scale, info.skipped, info.at_floor, said, info.parameter, info.rank))
            return seen, optimizer.loss_scale_info(), model.get_parameters().tolist()

        good = (False, False, False, None, None)
        seen = [
            (4.0, *good),
            (4.0, True, False, False, 1, 1),
            (2.0, True, True, True, 1, 1),
            (2.0, *good),
            (2.0, *good),
        ]
        end = trireme.LossScaleInfo(4.0, False, False, 0, 0, 2, None, None)
        expected = seen, end, [-3.0, -6.0, -3.0]
        self.assertEqual(list(self.ranks(2, body)), [expected, expected])

    def test_what_does_not_fit_is_refused(self):
        with trireme.Communicator(0, 1, "local://loss-scale-refused") as group:
            model = sealed(group)
            for wrong in (
                {"initial_scale": 3},
                {"growth_factor": 1.5},
                {"backoff_factor": 2},
                {"initial_scale": 4, "minimum_scale": 8},
                {"initial_scale": 0},
                {"growth_interval": -1},
            ):
                with self.assertRaisesRegex(trireme.InvalidArgumentError, list(wrong)[-1]):
                    trireme.Optimizer(model, "sgd", loss_scale=trireme.LossScale(**wrong))
            with trireme.Optimizer(model, "sgd") as optimizer:
                self.assertEqual(optimizer.loss_scale, 1.0)
                with self.assertRaises(trireme.InvalidStateError):
                    optimizer.loss_scale_info()


if __name__ == "__main__":
    unittest.main()
