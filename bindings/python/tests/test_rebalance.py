"""A pipeline that is cut anew between steps."""

import array
import math
import unittest

from support import TestCase, trireme
from test_pipeline_trainer import SHAPES, Chain
from test_trainer import HIDDEN, INPUTS, RATE, first_weights, sample, train_alone

PLACES = (0, HIDDEN * INPUTS, HIDDEN * INPUTS + HIDDEN, HIDDEN * INPUTS + 2 * HIDDEN)


class Layout:
    """The layers of one rank by some cuts, with model and optimizer."""

    def __init__(self, alone, cuts, rank, weights):
        self.first, self.end = cuts[rank], cuts[rank + 1]
        self.cuts = cuts
        self.begin = PLACES[2 * self.first]
        own = SHAPES[2 * self.first : 2 * self.end]
        self.finish = self.begin + sum(math.prod(shape) for _, shape in own)
        self.model = trireme.Model(alone, "zero2", leaves=4)
        for name, extents in own:
            self.model.add_parameter(name, extents, "f64")
        self.model.seal()
        self.model.set_parameters(array.array("d", weights[self.begin : self.finish]))
        self.optimizer = trireme.Optimizer(
            self.model, trireme.SGD(momentum=0.5), learning_rate=RATE
        )

    def trainer(self, group, chain, order="zb-h1"):
        schedule = trireme.PipelineSchedule(order, group.world_size, 4, stages_per_rank=1)
        pipeline = trireme.TrainerPipeline(group, schedule, self.cuts)
        layers = chain.layers(self.first, self.end, HIDDEN)
        return trireme.Trainer(self.optimizer, layers, pipeline=pipeline)

    def close(self):
        self.optimizer.close()
        self.model.close()


class RebalanceTest(TestCase):
    def train(self, group, moves):
        """Losses, and the parameters of this rank with their place among those of all."""
        alone = group.split(group.rank)
        cuts = [0, 1, 2] if group.world_size == 2 else [0, 2]
        layout = Layout(alone, cuts, group.rank, first_weights())
        losses = []
        for step in range(4):
            with layout.trainer(group, Chain()) as trainer:
                losses.append(trainer.step(sample).loss)
                costs = trainer.layer_costs()
                self.assertEqual(len(costs), 2)
                with self.assertRaises(trireme.InvalidStateError):
                    trainer.layer_costs()
            self.assertEqual(
                [(c.parameter_bytes, c.output_bytes, c.kept_bytes) for c in costs],
                [
                    (8 * (HIDDEN * INPUTS + HIDDEN), 8 * HIDDEN, 8 * HIDDEN),
                    (8 * (HIDDEN + 1), 0, 8),
                ],
            )
            self.assertTrue(all(c.forward_seconds > 0 and c.input_seconds > 0 for c in costs))
            self.assertTrue(costs[0].weight_seconds > 0 and costs[1].weight_seconds == 0)
            self.assertEqual(
                costs[0].seconds,
                costs[0].forward_seconds + costs[0].input_seconds + costs[0].weight_seconds,
            )
            if not moves:
                continue
            following = Layout(alone, cuts, group.rank, [9.0] * len(first_weights()))
            with self.assertRaises(trireme.MismatchError):
                following.optimizer.take_over(layout.optimizer, group, cuts=[0, group.rank, 2])
            report = following.optimizer.take_over(
                layout.optimizer, group, cuts=cuts, part=2, buffer_bytes=64, timeout=20
            )
            own = 2 * 8 * (layout.finish - layout.begin)  # with a vector of momentum
            self.assertEqual((report.sent_bytes, report.received_bytes), (0, 0))
            self.assertEqual(report.kept_bytes, own)
            self.assertTrue(report.peak_bytes > report.buffer_bytes >= 128)
            layout.close()
            layout = following
        values = layout.model.get_parameters().tolist()
        layout.close()
        alone.close()
        return losses, layout.begin, values

    def test_a_move_changes_no_bit(self):
        stays = self.ranks(2, lambda group: self.train(group, False))
        self.assertEqual(self.ranks(2, lambda group: self.train(group, True)), stays)
        self.assertAlmostEqual(stays[0][0][0], train_alone(4)[0][0], 12)

    def test_layers_change_their_ranks(self):
        def body(group):
            alone = group.split(group.rank)
            layout = Layout(alone, [0, 1, 2], group.rank, first_weights())
            # Each rank gets the layer of the other one: the ranks of the pipeline change places.
            other = group.split(0, 1 - group.rank)
            with layout.trainer(group, Chain()) as trainer:
                losses = [trainer.step(sample).loss]
            following = Layout(alone, [0, 1, 2], other.rank, [9.0] * len(first_weights()))
            report = following.optimizer.take_over(layout.optimizer, group)
            bytes_of = [8 * 2 * (part.finish - part.begin) for part in (layout, following)]
            self.assertEqual([report.sent_bytes, report.received_bytes], bytes_of)
            layout.close()
            with following.trainer(other, Chain()) as trainer:
                losses += [trainer.step(sample).loss for _ in range(3)]
            following.close()
            for each in (other, alone):
                each.close()
            return losses

        stays = self.ranks(2, lambda group: self.train(group, False)[0])
        self.assertEqual(self.ranks(2, body), stays)

    def test_options_are_checked(self):
        def body(group):
            layout = Layout(group.split(group.rank), [0, 1, 2], group.rank, first_weights())
            with self.assertRaises(TypeError):
                layout.optimizer.take_over(None, group)
            with self.assertRaises(TypeError):
                layout.optimizer.take_over(layout.optimizer, None)
            with self.assertRaises(trireme.InvalidArgumentError):
                layout.optimizer.take_over(layout.optimizer, group, cuts=[-1])
            with self.assertRaises(trireme.InvalidArgumentError) as caught:
                layout.optimizer.take_over(layout.optimizer, group)
            self.assertIn("same optimizer", str(caught.exception))
            layout.close()

        self.ranks(2, body)


if __name__ == "__main__":
    unittest.main()
