"""Training through PipelineParallelModel against plain loops of one process."""

import array
import math
import unittest

from support import TestCase, trireme
from test_pipeline_trainer import Chain, SHAPES
from test_trainer import HIDDEN, INPUTS, STEPS, RATE, first_weights, sample, train_alone

FACTORS = {"half": 0.5, "double": 2.0}
PARAMETERS = {name: {"shape": shape, "dtype": "f64"} for name, shape in SHAPES}
PARAMETERS |= {name: {"shape": 1, "dtype": "f64", "frozen": True} for name in FACTORS}
PLACES = {
    "w1": 0,
    "b1": HIDDEN * INPUTS,
    "w2": HIDDEN * INPUTS + HIDDEN,
    "b2": HIDDEN * INPUTS + 2 * HIDDEN,
}
#: Names of other libraries, and what they are here.
NAMES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved",
    "LoopedBFS": "looped-bfs",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
    "ZB-V": "zbv",
}


def count_of(name):
    shape = PARAMETERS[name]["shape"]
    return shape if isinstance(shape, int) else math.prod(shape)


class Deep(Chain):
    """The two layers of a chain with two frozen ones between, which halve and double numbers."""

    def scaled(self, name):
        def forward(call):
            for i in range(HIDDEN):
                call.output[i] = call.input[i] * call.parameters[0][0]

        def backward(call):
            for i in range(HIDDEN):
                call.input_gradient[i] = call.output_gradient[i] * call.parameters[0][0]

        return trireme.Layer(name, forward, backward, parameters=[name], output=HIDDEN, dtype="f64")

    def all_layers(self):
        first, last = self.layers(0, 2, HIDDEN)
        return [first, *map(self.scaled, FACTORS), last]


class PipelineModelTest(TestCase):
    def train(self, group, ranks, schedule, **options):
        config = trireme.PipelineConfig(ranks, 4 // (group.world_size // ranks), schedule)
        layers = Deep().all_layers()
        with trireme.PipelineParallelModel(
            group, config, layers, PARAMETERS, leaves=4, **options
        ) as pipeline:
            model = pipeline.model
            own = [name for layer in pipeline.layers for name in layer.parameters]
            whole = first_weights()
            values = []
            for name in own:
                values += (
                    [FACTORS[name]]
                    if name in FACTORS
                    else whole[PLACES[name] : PLACES[name] + count_of(name)]
                )
            model.set_parameters(array.array("d", values))
            stages = pipeline.all_stages
            with trireme.Optimizer(model, "sgd", learning_rate=RATE) as optimizer:
                with pipeline.trainer(optimizer) as trainer:
                    losses = [trainer.step(sample).loss for _ in range(STEPS)]
            return losses, own, model.get_parameters().tolist(), stages, pipeline.bubble

    def test_training_is_that_of_plain_loops(self):
        expected_losses, expected = train_alone(4)
        same = []
        runs = [(1, 1, "1f1b"), (2, 1, "1f1b")]
        runs += [(2, 2, name) for name in NAMES]
        runs += [(4, 2, "zb-h1")]
        for ranks, along, order in runs:
            outcomes = self.ranks(
                ranks, lambda group: self.train(group, along, order, strategy="zero1")
            )
            whole = [None] * len(expected)
            for losses, names, values, stages, bubble in outcomes:
                for one, other in zip(losses, expected_losses):
                    self.assertAlmostEqual(one, other, 12)
                self.assertEqual([s.number for s in stages], list(range(len(stages))))
                self.assertEqual([k for s in stages for k in s.layers], [0, 1, 2, 3])
                self.assertEqual([s.is_first for s in stages], [True] + [False] * (len(stages) - 1))
                self.assertEqual([s.is_last for s in stages], [False] * (len(stages) - 1) + [True])
                self.assertEqual(bubble > 0, along > 1)
                at = 0
                for name in names:
                    found = values[at : at + count_of(name)]
                    at += len(found)
                    if name in FACTORS:
                        self.assertEqual(found, [FACTORS[name]])
                        continue
                    whole[PLACES[name] : PLACES[name] + len(found)] = found
            for one, other in zip(whole, expected):
                self.assertAlmostEqual(one, other, 12)
            same.append((outcomes[0][0], whole))
            self.assertEqual(same[0], same[-1])  # the same bits

    def test_stages_share_a_parameter(self):
        """y = v (w (leaf + 1)) with v tied to w, which lies on another rank from two ranks on."""

        def first(call):
            call.output[0] = (call.leaf + 1) * call.parameters[0][0]

        def first_backward(call):
            call.gradients[0][0] = (call.leaf + 1) * call.output_gradient[0]

        def last(call):
            call.loss = call.input[0] * call.parameters[0][0]

        def last_backward(call):
            call.input_gradient[0] = call.loss_scale * call.parameters[0][0]
            call.gradients[0][0] = call.loss_scale * call.input[0]

        layers = [
            trireme.Layer("first", first, first_backward, parameters=["w"], output=1, dtype="f64"),
            trireme.Layer("last", last, last_backward, parameters=["v"], dtype="f64"),
        ]
        parameters = {
            "w": {"shape": 1, "dtype": "f64"},
            "v": {"shape": 1, "dtype": "f64", "tied_to": "w"},
        }

        def body(group, ranks):
            config = trireme.PipelineConfig(ranks, 4 // (group.world_size // ranks))
            with trireme.PipelineParallelModel(
                group, config, layers, parameters, leaves=4
            ) as pipeline:
                pipeline.model.set_parameters(array.array("d", [0.5]))
                with trireme.Optimizer(pipeline.model, "sgd", learning_rate=0.01) as optimizer:
                    with pipeline.trainer(optimizer) as trainer:
                        losses = [trainer.step(None).loss for _ in range(STEPS)]
                pipeline.model.check_replicas()
                named = {name: list(v) for name, v in pipeline.model.gather_parameters().items()}
                return losses, named

        weight, losses = 0.5, []
        for _ in range(STEPS):
            losses.append(sum((leaf + 1) * weight * weight for leaf in range(4)) / 4)
            slopes = [(leaf + 1) * weight + (leaf + 1) * weight for leaf in range(4)]
            weight -= 0.01 * (((slopes[0] + slopes[1]) + (slopes[2] + slopes[3])) / 4)
        for ranks, along in ((1, 1), (2, 1), (2, 2), (4, 2)):
            for found, named in self.ranks(ranks, lambda group: body(group, along)):
                self.assertEqual(named, {"w": [weight]})
                for one, other in zip(found, losses):
                    self.assertAlmostEqual(one, other, 12)

    def test_a_tied_parameter_may_have_placements(self):
        """Along a V rank 0 has both of its layers, else each rank has a copy."""

        def body(group, ranks, schedule, other):
            layers = Deep().all_layers()
            layers[0].parameters, layers[3].parameters = ["w"], ["v"]
            whole = {"tensor": "whole"}
            parameters = {
                **PARAMETERS,
                "w": {"shape": 2, "dtype": "f64", "placement": whole},
                "v": {"shape": 2, "dtype": "f64", "placement": other, "tied_to": "w"},
            }
            config = trireme.PipelineConfig(ranks, 4, schedule)
            with trireme.PipelineParallelModel(
                group, config, layers, parameters, tensor=2, leaves=4
            ) as pipeline:
                return pipeline.model.info().parameters

        both = {"tensor": "whole"}
        for schedule in ("zbv", "1f1b"):
            found = self.ranks(4, lambda group: body(group, 2, schedule, both))
            self.assertEqual(found, [2] * 4)
        self.assertEqual(self.ranks(2, lambda group: body(group, 1, "1f1b", both)), [4, 4])
        for ranks, along, schedule in ((2, 1, "1f1b"), (4, 2, "zbv")):
            split = {"tensor": trireme.Split(0, 4, [(0, 2)])}

            def refused(group):
                try:
                    body(group, along, schedule, split)
                except trireme.TriremeError as error:
                    return str(error)

            answers = self.ranks(ranks, refused)
            self.assertIn("are not those of", answers[0])

    def test_names_of_other_libraries(self):
        for name, own in NAMES.items():
            stages = 2 if own in ("interleaved", "zbv") else 1
            with trireme.PipelineSchedule(name, 2, 4, stages_per_rank=stages) as schedule:
                self.assertEqual(schedule.info.order, own)

    def test_what_does_not_fit_together(self):
        def body(group):
            layers = Deep().all_layers()
            config = trireme.PipelineConfig(2, 4)
            for wrong, parameters, problem in (
                (trireme.PipelineConfig(2, 4, "zb-h9"), PARAMETERS, "no order of a pipeline"),
                (trireme.PipelineConfig(0, 4), PARAMETERS, "ranks is 0; a pipeline has 1 or more"),
                (trireme.PipelineConfig(trireme.REST, 4), PARAMETERS, "ranks is -1"),
            ):
                with self.assertRaisesRegex(trireme.InvalidArgumentError, problem):
                    trireme.PipelineParallelModel(group, wrong, layers, parameters)
            twice = Deep().all_layers()
            twice[2].parameters = twice[0].parameters
            for ranks in (1, 2):
                with self.assertRaisesRegex(trireme.InvalidArgumentError, "belongs to two layers"):
                    trireme.PipelineParallelModel(
                        group, trireme.PipelineConfig(ranks, 4), twice, PARAMETERS
                    )
            early = {**PARAMETERS, "w1": {**PARAMETERS["w1"], "tied_to": "w2"}}
            for ranks, order in ((1, "1f1b"), (2, "1f1b"), (2, "zbv")):
                with self.assertRaisesRegex(trireme.InvalidArgumentError, "no earlier parameter"):
                    trireme.PipelineParallelModel(
                        group, trireme.PipelineConfig(ranks, 4, order), layers, early
                    )
            for wrong, parameters, problem in (
                (
                    trireme.PipelineConfig(2, 4, layer_costs=[trireme.LayerCosts(1.0)]),
                    PARAMETERS,
                    "layer_costs has 1 entries for 4 layers",
                ),
            ):
                with self.assertRaisesRegex(trireme.InvalidArgumentError, problem):
                    trireme.PipelineParallelModel(group, wrong, layers, parameters)
            with self.assertRaises(TypeError):
                trireme.PipelineParallelModel(group, 2, layers, PARAMETERS)
            try:
                trireme.PipelineParallelModel(group, config, layers, {})
            except trireme.TriremeError as error:
                return str(error)

        for message in self.ranks(2, body):
            self.assertIn("which is not described", message)

    def test_one_rank_checks_the_name_of_the_schedule(self):
        def body(group):
            for name in ("zb-h9", "", "1f1b\0"):
                for per_rank in (0, 1):
                    config = trireme.PipelineConfig(1, 4, name, stages_per_rank=per_rank)
                    with self.assertRaises(trireme.InvalidArgumentError):
                        trireme.PipelineParallelModel(
                            group, config, Deep().all_layers(), PARAMETERS
                        )
            self.train(group, 1, "Interleaved1F1B")  # a name of two stages on each rank

        self.ranks(1, body)

    def test_micro_batches_of_the_caller_are_kept(self):
        def body(group):
            config = trireme.PipelineConfig(1, 3)
            with trireme.PipelineParallelModel(
                group, config, Deep().all_layers(), PARAMETERS
            ) as pipeline:
                with trireme.Optimizer(pipeline.model, "sgd", learning_rate=RATE) as optimizer:
                    for options, expected in (({}, 3), ({"micro_batches": 2}, 2)):
                        with pipeline.trainer(optimizer, **options) as trainer:
                            self.assertEqual(trainer.info().micro_batches, expected)

        self.ranks(1, body)


if __name__ == "__main__":
    unittest.main()
