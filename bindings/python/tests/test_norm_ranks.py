"""Clipping by the norm of several models that step together."""

import array
import math
import unittest

from support import TestCase, trireme


class NormRanksTest(TestCase):
    def test_two_models_clip_by_one_norm(self):
        def body(group):
            alone = group.split(group.rank, 0)
            model = trireme.Model(alone, "zero1")
            model.add_parameter("part", [1])
            model.add_parameter("common", [1], replicas=2)
            model.seal()
            optimizer = trireme.Optimizer(
                model, "sgd", learning_rate=1.0, clipping=1.5, norm_ranks=group
            )
            model.accumulate_flat(array.array("f", [(1.0, 2.0)[group.rank], 2.0]))
            optimizer.step()
            return optimizer.gradient_norm, model.get_parameters().tolist()

        results = self.ranks(2, body)  # 1 + 4 + 4
        self.assertEqual(list(results), [(3.0, [-0.5, -1.0]), (3.0, [-1.0, -1.0])])

    def test_models_without_a_norm_skip_a_step_together(self):
        def body(all_ranks):
            with all_ranks.split(all_ranks.rank) as own:  # two models, each on one rank
                model = trireme.Model(own, "zero1")
                model.add_parameter("part", [1])
                model.seal()
                optimizer = trireme.Optimizer(
                    model, "sgd", learning_rate=1.0, loss_scale=4.0, norm_ranks=all_ranks
                )
                for gradient in (4.0, math.inf if all_ranks.rank == 1 else 2.0):
                    model.accumulate_flat(array.array("f", [gradient]))
                    optimizer.step()
                return optimizer.loss_scale, model.get_parameters().tolist()

        self.assertEqual(list(self.ranks(2, body)), [(2.0, [-1.0])] * 2)

    def pair(self, group, **options):
        made = []
        for name in ("common", "expert"):
            model = trireme.Model(group, "zero1")
            model.add_parameter(name, [1])
            model.seal()
            made.append(trireme.Optimizer(model, "sgd", learning_rate=1.0, **options))
        return made

    def test_two_optimizers_of_a_rank_step_with_one_norm(self):
        def body(group):
            optimizers = self.pair(group, clipping=2.5, loss_scale=2.0)
            for last in (8.0, math.inf):
                for optimizer, gradient in zip(optimizers, (6.0, last)):
                    optimizer.model.accumulate_flat(array.array("f", [gradient]))
                trireme.Optimizer.step_together(optimizers)
            return [
                (each.gradient_norm, each.model.get_parameters()[0], each.loss_scale_info().skipped)
                for each in optimizers
            ]

        # 3 * 3 + 4 * 4; then both skip
        self.assertEqual(list(self.ranks(2, body)), [[(5.0, -1.5, True), (5.0, -2.0, True)]] * 2)

    def test_a_rule_that_raises_ends_the_step_of_both(self):
        def refuse(_):
            raise KeyError("mine")

        with trireme.Communicator(0, 1, "local://together-raises") as group:
            first = self.pair(group, clipping=1.0)[0]
            model = trireme.Model(group, "zero1")
            model.add_parameter("own", [1])
            model.seal()
            own = trireme.Optimizer(model, refuse, clipping=1.0)
            for each in (first, own):
                each.model.accumulate_flat(array.array("f", [1.0]))
            with self.assertRaises(KeyError):
                trireme.Optimizer.step_together([first, own])
            with self.assertRaises(trireme.CallbackError):
                first.step()

    def test_optimizers_that_do_not_fit_are_refused(self):
        with trireme.Communicator(0, 1, "local://together-refused") as group:
            first, second = self.pair(group, clipping=1.0)
            other = self.pair(group, clipping=2.0)[0]
            for wrong in ([], [first, first], [first, other]):
                with self.assertRaises(trireme.InvalidArgumentError):
                    trireme.Optimizer.step_together(wrong)
            with self.assertRaises(TypeError):
                trireme.Optimizer.step_together([first, None])
            second.close()
            with self.assertRaises(trireme.InvalidHandleError):
                trireme.Optimizer.step_together([first, second])

    def test_what_does_not_fit_is_refused(self):
        with trireme.Communicator(0, 1, "local://norm-ranks-refused") as group:
            model = trireme.Model(group, "zero1")
            model.add_parameter("two", [1], replicas=2)
            model.seal()
            for options in ({}, {"clipping": 1.0}):
                with self.assertRaises(trireme.InvalidArgumentError):
                    trireme.Optimizer(model, "sgd", norm_ranks=group, **options)
            closed = trireme.Communicator(0, 1, "local://norm-ranks-closed")
            closed.close()
            with self.assertRaises(trireme.InvalidHandleError):
                trireme.Optimizer(model, "sgd", norm_ranks=closed, clipping=1.0)


if __name__ == "__main__":
    unittest.main()
