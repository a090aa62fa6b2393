"""Training with a pipeline, over layers of the caller."""

import array
import gc
import math
import tempfile
import unittest

from support import TestCase, trireme
from test_trainer import HIDDEN, INPUTS, RATE, STEPS, first_weights, sample, train_alone


class Chain:
    """The network of test_trainer as two layers. The first one has backward in halves."""

    def __init__(self, trouble=lambda call: None):
        self.trouble = trouble
        self.calls = []

    def note(self, call):
        self.calls.append((call.phase, call.number, call.stage, call.micro_batch))
        self.trouble(call)

    def hidden_forward(self, call):
        self.note(call)
        x, _ = call.batch(call.leaf)
        w, b = call.parameters
        for i in range(HIDDEN):
            call.output[i] = math.tanh(sum(w[i, j] * x[j] for j in range(INPUTS)) + b[i])

    def hidden_backward(self, call):
        self.note(call)
        assert call.gradients == () and len(call.input_gradient) == 0

    def hidden_weight(self, call):
        self.note(call)
        x, _ = call.batch(call.leaf)
        w, b = call.gradients
        for i in range(HIDDEN):
            b[i] = call.output_gradient[i] * (1 - call.output[i] * call.output[i])
            for j in range(INPUTS):
                w[i, j] = b[i] * x[j]

    def last_forward(self, call):
        self.note(call)
        w, b = call.parameters
        assert call.input.shape == (HIDDEN,) and call.input.format == "d"
        _, target = call.batch(call.leaf)
        delta = sum(w[i] * call.input[i] for i in range(HIDDEN)) + b[0] - target
        call.saved.cast("d")[0] = delta
        call.loss = delta * delta / 2

    def last_backward(self, call):
        self.note(call)
        delta = call.saved.cast("d")[0] * call.loss_scale
        w, _ = call.parameters
        call.gradients[1][0] = delta
        for i in range(HIDDEN):
            call.gradients[0][i] = delta * call.input[i]
            call.input_gradient[i] = delta * w[i]

    def layers(self, first, end, shape):
        both = [
            trireme.Layer(
                "hidden",
                self.hidden_forward,
                self.hidden_backward,
                backward_weight=self.hidden_weight,
                parameters=["w1", "b1"],
                output=HIDDEN,
                dtype="f64",
            ),
            trireme.Layer(
                "last",
                self.last_forward,
                self.last_backward,
                parameters=["w2", "b2"],
                saved_bytes=8,
                dtype="f64",
                input=shape,
            ),
        ]
        return both[first:end]


SHAPES = (("w1", [HIDDEN, INPUTS]), ("b1", [HIDDEN]), ("w2", [HIDDEN]), ("b2", [1]))


class PipelineTrainerTest(TestCase):
    def train(self, group, order, chain, leaves=4, shape=HIDDEN, **options):
        """Losses, and the parameters of this rank, with their place among those of all."""
        ranks = group.world_size
        cuts = [[0, 2], [0, 1, 2], [0, 1, 1, 2]][ranks - 1]  # the second of three has no layers
        first, end = cuts[group.rank], cuts[group.rank + 1]
        alone = group.split(group.rank)
        places = [0, HIDDEN * INPUTS, HIDDEN * INPUTS + HIDDEN, HIDDEN * INPUTS + 2 * HIDDEN]
        begin = places[2 * first]
        finish = begin + sum(math.prod(shape) for _, shape in SHAPES[2 * first : 2 * end])
        with alone, trireme.Model(alone, "zero2", leaves=leaves) as model:
            for name, extents in SHAPES[2 * first : 2 * end]:
                model.add_parameter(name, extents, "f64")
            model.seal()
            model.set_parameters(array.array("d", first_weights()[begin:finish]))
            with trireme.Optimizer(model, "sgd", learning_rate=RATE) as optimizer:
                # A text, or the name of an order.
                if "\n" in order:
                    schedule = trireme.PipelineSchedule.parse(order)
                else:
                    schedule = trireme.PipelineSchedule(order, ranks, leaves)
                pipeline = trireme.TrainerPipeline(group, schedule, cuts)
                layers = chain.layers(first, end, shape)
                trainer = trireme.Trainer(optimizer, layers, pipeline=pipeline, **options)
                schedule.close()  # the trainer has a copy
                del pipeline, layers, schedule
                gc.collect()
                with trainer:
                    info = trainer.info()
                    self.assertEqual((info.stages, info.micro_batches), (1, leaves))
                    self.assertEqual(info.split_layers, 1 if first == 0 else 0)
                    chain.info = info
                    losses = [trainer.evaluate(sample)]
                    losses += [trainer.step(sample).loss for _ in range(STEPS)]
                    if "offload" in options:
                        chain.file = trainer.offload_info
                    return losses, begin, model.get_parameters().tolist()

    def test_sizes_vary_with_each_micro_batch(self):
        """y = w x for as many numbers as the leaf says, none in the first one."""

        def scale(call):
            count = call.leaf
            for i in range(count):
                call.output[i] = call.parameters[0][0] * i
            self.assertEqual(call.output_used, 24)
            self.assertEqual((call.input_used, call.input_shape), (0, ()))
            call.output_used = 8 * count
            call.output_shape = (count, 2**64 - 1)
            self.assertRaises(ValueError, setattr, call, "output_shape", range(9))

        def scale_backward(call):
            count = call.leaf
            self.assertEqual(call.output_used, 8 * count)
            self.assertEqual(call.output_shape[:3], (count, 2**64 - 1, 0))
            self.assertRaises(ValueError, setattr, call, "output_used", 0)
            self.assertRaises(ValueError, setattr, call, "output_shape", ())
            self.assertEqual(len(call.output_gradient), count if count < 3 else 3)
            call.gradients[0][0] = sum(i * call.output_gradient[i] for i in range(count))

        def total(call):
            count = call.input_shape[0]
            self.assertEqual((call.leaf, 8 * call.leaf), (count, call.input_used))
            self.assertEqual(len(call.input), count)
            call.loss = sum(call.input)

        def total_backward(call):
            self.assertEqual(len(call.input_gradient), call.leaf)
            for i in range(call.input_shape[0]):
                call.input_gradient[i] = call.loss_scale

        def train(group):
            ranks = group.world_size
            cuts = [0, 2] if ranks == 1 else [0, 1, 2]
            first, end = cuts[group.rank], cuts[group.rank + 1]
            layers = [
                trireme.Layer(
                    "scale", scale, scale_backward, parameters=["w"], output=3, dtype="f64"
                ),
                trireme.Layer("total", total, total_backward, dtype="f64"),
            ]
            alone = group.split(group.rank)
            with alone, trireme.Model(alone, "zero3", leaves=4) as model:
                if first == 0:
                    model.add_parameter("w", 1, "f64")
                model.seal()
                with trireme.Optimizer(model, "sgd", learning_rate=1.0) as optimizer:
                    schedule = trireme.PipelineSchedule("1f1b", ranks, 4)
                    pipeline = trireme.TrainerPipeline(group, schedule, cuts)
                    with (
                        schedule,
                        trireme.Trainer(
                            optimizer, layers[first:end], pipeline=pipeline if ranks > 1 else None
                        ) as trainer,
                    ):
                        return trainer.step().loss, trainer.step().loss

        # Gradients are 0, 0, 1 and 3, so w becomes -1.
        for ranks in (1, 2):
            for losses in self.ranks(ranks, train):
                self.assertEqual(losses, (0.0, -1.0))

    def test_layers_read_outputs_of_earlier_ones(self):
        """a = w x, b = u a, and the loss is the sum of b and 2 a."""

        def first(call):
            for i in range(3):
                call.output[i] = call.parameters[0][0] * (call.leaf + i)
            call.output_shape = (call.leaf,)
            self.assertEqual((call.reads, call.read_shapes, call.read_gradients), ((), (), ()))

        def first_backward(call):
            call.gradients[0][0] = sum((call.leaf + i) * call.output_gradient[i] for i in range(3))

        def second(call):
            for i in range(3):
                call.output[i] = call.parameters[0][0] * call.input[i]

        def second_backward(call):
            call.gradients[0][0] = sum(call.input[i] * call.output_gradient[i] for i in range(3))
            for i in range(3):
                call.input_gradient[i] = call.parameters[0][0] * call.output_gradient[i]

        def total(call):
            (read,) = call.reads
            self.assertEqual((len(read), call.read_shapes[0][:2]), (3, (call.leaf, 0)))
            self.assertEqual(call.read_bytes, (read.nbytes,))
            self.assertEqual(call.read_gradients, ())
            call.loss = sum(call.input) + 2 * sum(read)

        def total_backward(call):
            (gradient,) = call.read_gradients
            for i in range(3):
                call.input_gradient[i] = call.loss_scale
                gradient[i] = 2 * call.loss_scale

        def train(group):
            ranks = group.world_size
            cuts = [[0, 3], [0, 2, 3], [0, 1, 2, 3]][ranks - 1]
            begin, end = cuts[group.rank], cuts[group.rank + 1]
            layers = [
                trireme.Layer("a", first, first_backward, parameters=["w0"], output=3, dtype="f64"),
                trireme.Layer(
                    "b", second, second_backward, parameters=["w1"], output=3, dtype="f64"
                ),
                trireme.Layer("total", total, total_backward, dtype="f64", reads=[0]),
            ]
            alone = group.split(group.rank)
            with alone, trireme.Model(alone, "zero3", leaves=4) as model:
                for number in range(begin, min(end, 2)):
                    model.add_parameter(f"w{number}", 1, "f64")
                model.seal()
                model.set_parameters(array.array("d", [1.0] * (min(end, 2) - begin)))
                with trireme.Optimizer(model, "sgd", learning_rate=0.25) as optimizer:
                    schedule = trireme.PipelineSchedule("1f1b", ranks, 4)
                    pipeline = trireme.TrainerPipeline(group, schedule, cuts)
                    with (
                        schedule,
                        trireme.Trainer(
                            optimizer, layers[begin:end], pipeline=pipeline if ranks > 1 else None
                        ) as trainer,
                    ):
                        return [trainer.step().loss for _ in range(3)]

        w = u = 1.0
        expected = []
        for _ in range(3):
            x = sum(leaf + i for leaf in range(4) for i in range(3)) / 4
            expected.append(w * x * (u + 2))
            w, u = w - 0.25 * x * (u + 2), u - 0.25 * w * x
        for ranks in (1, 2, 3):
            for losses in self.ranks(ranks, train):
                self.assertEqual(losses, expected)

    def test_training_is_that_of_plain_loops(self):
        expected_losses, expected = train_alone(4)
        same = []
        for ranks in (1, 2, 3):
            for order in ("gpipe", "1f1b", "zb-h1"):
                for shape in (HIDDEN, None) if ranks == 2 else (HIDDEN,):
                    chains = [Chain() for _ in range(ranks)]
                    outcomes = self.ranks(
                        ranks, lambda group: self.train(group, order, chains[group.rank], 4, shape)
                    )
                    whole = []
                    for losses, begin, values in outcomes:
                        self.assertEqual(begin, len(whole))
                        whole += values
                        self.assertEqual(losses[0], losses[1])  # evaluated before the first step
                        for one, other in zip(losses[1:], expected_losses):
                            self.assertAlmostEqual(one, other, 12)
                    for one, other in zip(whole, expected):
                        self.assertAlmostEqual(one, other, 12)
                    same.append((outcomes[0][0], whole))
                    self.assertEqual(same[0], same[-1])  # the same bits
                    weights = [c for c in chains[0].calls if c[0] == "backward_weight"]
                    self.assertEqual([c[1:] for c in weights[:4]], [(0, 0, m) for m in range(4)])
                    last = chains[-1].calls[-1]
                    self.assertEqual(last[1:3] if ranks > 1 else (1, 1), (1, max(1, ranks - 1)))

    def test_layers_run_forward_again(self):
        """By R of the schedule, by checkpoint_every, and by a budget, with the same bits."""
        r = (
            "pipeline ranks=2 stages=2 micro_batches=4 placement=0,1\n"
            "0F0 0F1 0F2 0F3 0R0 0B0 0R1 0B1 0R2 0B2 0B3\n"
            "1F0 1F1 1F2 1F3 1R0 1B0 1B1 1B2 1B3\n"
        )
        plain = [Chain(), Chain()]
        expected = self.ranks(2, lambda group: self.train(group, "gpipe", plain[group.rank]))
        least = max(chain.info.least_bytes for chain in plain)
        largest = min(chain.info.largest_bytes for chain in plain)
        self.assertEqual([chain.info.recomputed for chain in plain], [0, 0])
        for order, options, again in (
            (r, {}, (3, 1)),
            ("gpipe", {"checkpoint_every": 1}, (4, 4)),
            ("1f1b", {"checkpoint_every": 1}, (4, 0)),
            ("gpipe", {"activation_budget_bytes": least}, None),
            ("gpipe", {"activation_budget_bytes": 2 * largest + 4096}, (0, 0)),
        ):
            chains = [Chain(), Chain()]
            found = self.ranks(
                2, lambda group: self.train(group, order, chains[group.rank], **options)
            )
            self.assertEqual(found, expected)
            for place, chain in enumerate(chains):
                count = sum(1 for call in chain.calls if call[0] == "recompute")
                if again is not None:
                    self.assertEqual(count, again[place] * STEPS)
                else:
                    self.assertEqual(count > 0, chain.info.recomputed > 0)
                    planned = chain.info.planned_stretch_bytes + chain.info.planned_gradient_bytes
                    self.assertLessEqual(planned, least)
            if again is None:
                self.assertTrue(any(chain.info.recomputed for chain in chains))

    def test_activations_lie_in_a_file(self):
        """With the same bits, in a window as wide as planned."""
        with tempfile.TemporaryDirectory() as path:
            for ranks in (1, 2):
                expected = self.ranks(ranks, lambda group: self.train(group, "gpipe", Chain()))
                chains = [Chain() for _ in range(ranks)]
                found = self.ranks(
                    ranks,
                    lambda group: self.train(group, "gpipe", chains[group.rank], offload=path),
                )
                self.assertEqual(found, expected)
                self.assertEqual([chain.file.path for chain in chains], [path] * ranks)
                for chain in chains:
                    self.assertEqual(chain.info.planned_window_bytes, chain.file.buffer_bytes)
                # The last layer of each micro-batch keeps 8 bytes: a page.
                last = chains[-1].file
                self.assertEqual(last.block_bytes, 4096)
                self.assertGreaterEqual(last.written_bytes, 2 * STEPS * 4096)
                self.assertEqual(last.read_bytes, last.written_bytes)

    def test_an_exception_is_raised_here_and_told_there(self):
        def trouble(call):
            if call.phase == "backward_weight" and call.micro_batch == 2:
                raise ArithmeticError("the third sample")

        def body(group):
            try:
                self.train(group, "1f1b", Chain(trouble))
            except trireme.CallbackError as error:
                return str(error)
            except ArithmeticError as error:
                return error.args[0]

        here, there = self.ranks(2, body)
        self.assertEqual(here, "the third sample")
        for words in ("rank 0 of the pipeline", 'layer 0 ("hidden") of stage 0', "micro-batch 2"):
            self.assertIn(words, there)

    def test_options_are_checked(self):
        def body(group):
            schedule = trireme.PipelineSchedule("1f1b", 2, 4)
            with self.assertRaises(TypeError):
                trireme.TrainerPipeline(group, "1f1b", [0, 1, 2])
            with self.assertRaises(TypeError):
                trireme.TrainerPipeline(None, schedule, [0, 1, 2])
            errors = []
            for shape, options in ((HIDDEN + 1, {}), (HIDDEN, {"activation_budget_bytes": 1})):
                try:
                    self.train(group, "1f1b", Chain(), shape=shape, **options)
                except trireme.TriremeError as error:
                    errors.append(f"{type(error).__name__} {error}")
            return errors

        for errors in self.ranks(2, body):
            self.assertIn("input_bytes 40, but stage 0 puts out 32", errors[0])
            self.assertIn("OutOfMemoryError", errors[1])


if __name__ == "__main__":
    unittest.main()
