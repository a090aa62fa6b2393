"""A schedule of the caller's trains a model along two axes."""

import array
import gc
import unittest

from support import TestCase, trireme
from test_pipeline_trainer import SHAPES, Chain
from test_trainer import HIDDEN, INPUTS, RATE, STEPS, first_weights, sample, train_alone

LEAVES = 4
#: Elements before each stage, and of all.
PLACES = (0, HIDDEN * INPUTS + HIDDEN, HIDDEN * INPUTS + 2 * HIDDEN + 1)


def own_schedule(micro_batches):
    """The actions of an order, given as lists of one's own."""
    made = trireme.PipelineSchedule("zb-h1", 2, micro_batches)
    lists = [made.actions(0), made.actions(1)]
    return trireme.PipelineSchedule.from_actions(lists, micro_batches, made.placement)


class OnAxesTest(TestCase):
    def train(self, group, data, chain):
        """The stage, losses before and after a load, and the parameters after each."""
        with trireme.Parallel(
            group, pipeline=2, data=data, schedule=own_schedule(LEAVES // data)
        ) as parallel:
            (stage,) = parallel.stages()
            with trireme.Model(parallel, "zero1", leaves=LEAVES) as model:
                for name, extents in SHAPES[2 * stage : 2 * stage + 2]:
                    model.add_parameter(name, extents, "f64")
                model.seal()
                begin, end = PLACES[stage : stage + 2]
                model.set_parameters(array.array("d", first_weights()[begin:end]))
                with trireme.Optimizer(model, "sgd", learning_rate=RATE) as optimizer:
                    with parallel.schedule() as schedule:
                        trainer = trireme.Trainer(
                            optimizer,
                            chain.layers(stage, stage + 1, HIDDEN),
                            pipeline=trireme.TrainerPipeline(
                                parallel.communicator("pipeline"),
                                schedule,
                                parallel.partition([trireme.LayerCosts(1)] * 2).cuts,
                            ),
                        )
                    gc.collect()  # the trainer holds what it needs
                    with trainer:
                        losses = [trainer.step(sample).loss]
                        saved = optimizer.save()
                        losses += [trainer.step(sample).loss for _ in range(STEPS - 1)]
                        after = model.get_parameters().tolist()
                        optimizer.load(saved)
                        again = [trainer.step(sample).loss for _ in range(STEPS - 1)]
                        return stage, losses, again, after, model.get_parameters().tolist()

    def test_own_schedules_train_as_plain_loops_do(self):
        expected_losses, expected = train_alone(LEAVES)
        same = []
        for data in (1, 2):
            found = self.ranks(2 * data, lambda group: self.train(group, data, Chain()))
            for stage, losses, again, after, after_again in found:
                self.assertEqual(losses[1:], again)
                self.assertEqual(after, after_again)
                for one, other in zip(losses, expected_losses):
                    self.assertAlmostEqual(one, other, 12)
                wanted = expected[PLACES[stage] : PLACES[stage + 1]]
                self.assertEqual(len(after), len(wanted))
                for one, other in zip(after, wanted):
                    self.assertAlmostEqual(one, other, 12)
                same.append((stage, losses, after))
        # The same bits with 1 and with 2 copies of the model.
        self.assertEqual([each for each in same if each[0] == 0], [same[0]] * 3)

    def test_an_exception_fails_the_step_of_all_ranks(self):
        def body(group):
            def trouble(call):
                if group.rank == 0 and call.phase == "backward_weight":
                    raise ArithmeticError("of rank 0")

            try:
                self.train(group, 2, Chain(trouble))
            except (ArithmeticError, trireme.CallbackError) as error:
                return type(error)

        found = self.ranks(4, body)
        self.assertEqual(found, [ArithmeticError] + [trireme.CallbackError] * 3)

    def test_a_schedule_that_cannot_run_is_refused(self):
        def body(group):
            broken = trireme.PipelineSchedule.parse("0B0,0F0\n1F0,1B0\n")
            with self.assertRaises(trireme.InvalidStateError) as caught:
                trireme.Parallel(group, pipeline=2, schedule=broken)
            self.assertIn("comes before 0F0", str(caught.exception))

        self.ranks(2, body)


if __name__ == "__main__":
    unittest.main()
