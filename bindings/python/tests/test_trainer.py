"""Whole training steps over layers of the caller."""

import array
import contextlib
import gc
import math
import os
import pathlib
import tempfile
import unittest

from support import TestCase, trireme

INPUTS, HIDDEN, STEPS, RATE = 3, 4, 5, 0.25


def sample(number):
    x = [math.sin(number * 3 + i) for i in range(INPUTS)]
    return x, math.cos(number) * 0.5


def first_weights():
    return [math.sin(i * 1.7) for i in range(HIDDEN * INPUTS + HIDDEN + HIDDEN + 1)]


def train_alone(leaves, steps=STEPS):
    """Losses and parameters by plain loops over the whole batch."""
    p, losses = first_weights(), []
    b1, w2, b2 = HIDDEN * INPUTS, HIDDEN * INPUTS + HIDDEN, HIDDEN * INPUTS + 2 * HIDDEN
    for _ in range(steps):
        gradient, loss = [0.0] * len(p), 0.0
        for leaf in range(leaves):
            x, target = sample(leaf)
            h = [
                math.tanh(sum(p[i * INPUTS + j] * x[j] for j in range(INPUTS)) + p[b1 + i])
                for i in range(HIDDEN)
            ]
            delta = sum(p[w2 + i] * h[i] for i in range(HIDDEN)) + p[b2] - target
            loss += delta * delta / 2
            gradient[b2] += delta
            for i in range(HIDDEN):
                gradient[w2 + i] += delta * h[i]
                before = delta * p[w2 + i] * (1 - h[i] * h[i])
                gradient[b1 + i] += before
                for j in range(INPUTS):
                    gradient[i * INPUTS + j] += before * x[j]
        losses.append(loss / leaves)
        p = [value - RATE * g / leaves for value, g in zip(p, gradient)]
    return losses, p


class Network:
    """The same as layers. `trouble` is called first in each."""

    def __init__(self, trouble=lambda call: None):
        self.trouble = trouble
        self.phases = []

    def hidden_forward(self, call):
        self.trouble(call)
        self.phases.append(call.phase)
        x, _ = call.batch(call.leaf)
        w, b = call.parameters
        for i in range(HIDDEN):
            call.output[i] = math.tanh(sum(w[i, j] * x[j] for j in range(INPUTS)) + b[i])

    def hidden_backward(self, call):
        self.trouble(call)
        x, _ = call.batch(call.leaf)
        w, b = call.gradients
        for i in range(HIDDEN):
            b[i] = call.output_gradient[i] * (1 - call.output[i] * call.output[i])
            for j in range(INPUTS):
                w[i, j] = b[i] * x[j]

    def last_forward(self, call):
        self.trouble(call)
        w, b = call.parameters
        _, target = call.batch(call.leaf)
        delta = sum(w[i] * call.input[i] for i in range(HIDDEN)) + b[0] - target
        call.saved.cast("d")[0] = delta
        if call.phase != "recompute":
            call.loss = delta * delta / 2

    def last_backward(self, call):
        self.trouble(call)
        delta = call.saved.cast("d")[0] * call.loss_scale
        w, _ = call.parameters
        own = array.array("d", [delta * value for value in call.input])
        call.set_gradient(0, own)
        call.gradients[1][0] = delta
        for i in range(HIDDEN):
            call.input_gradient[i] = delta * w[i]

    def layers(self):
        return [
            trireme.Layer(
                "hidden",
                self.hidden_forward,
                self.hidden_backward,
                parameters=["w1", "b1"],
                output=HIDDEN,
                dtype="f64",
            ),
            trireme.Layer(
                "last", self.last_forward, self.last_backward, parameters=[2, "b2"], saved_bytes=8
            ),
        ]


@contextlib.contextmanager
def trained(group, strategy="zero3", leaves=0, network=None, rate=RATE, rule="sgd", **options):
    """A trainer of the network with its first weights, and its model."""
    with trireme.Model(group, strategy, leaves=leaves) as model:
        for name, shape in (("w1", [HIDDEN, INPUTS]), ("b1", [HIDDEN]), ("w2", [HIDDEN])):
            model.add_parameter(name, shape, "f64")
        model.add_parameter("b2", (), "f64")
        model.seal()
        model.set_parameters(array.array("d", first_weights()))
        with trireme.Optimizer(model, rule, learning_rate=rate) as optimizer:
            layers = (network or Network()).layers()
            with trireme.Trainer(optimizer, layers, **options) as trainer:
                yield trainer, model, optimizer


class TrainerTest(TestCase):
    def near(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            self.assertAlmostEqual(one, other, 12)

    def test_training_is_that_of_plain_loops(self):
        expected_losses, expected = train_alone(4)
        outcomes = []
        for world_size in (1, 2, 3):
            for strategy in ("data_parallel", "zero1", "zero2", "zero3"):

                def body(group):
                    with trained(group, strategy, leaves=4) as (trainer, model, _):
                        self.near([trainer.evaluate(sample)], expected_losses[:1])
                        losses = []
                        for step in range(STEPS):
                            metrics = trainer.step(sample)
                            losses.append(metrics.loss)
                            self.assertEqual(metrics[:4], (False, False, step + 1, 4))
                            self.assertEqual(
                                (metrics.gradient_norm, metrics.learning_rate), (-1, RATE)
                            )
                        return losses, model.get_parameters().tolist()

                outcomes += self.ranks(world_size, body)
        for losses, parameters in outcomes:
            self.near(losses, expected_losses)
            self.near(parameters, expected)
            self.assertEqual((losses, parameters), outcomes[0])  # the same bits

    def test_a_gradient_that_is_not_written_is_named_or_zero(self):
        def body(group):
            def backward(call):
                call.gradients[0][0] += 1.0

            with trireme.Model(group, "zero2") as model:
                model.add_parameter("w", [3], "f64")
                model.seal()
                model.set_parameters(array.array("d", [5, 5, 5]))
                layer = trireme.Layer("all", lambda call: None, backward, parameters=["w"])
                with trireme.Optimizer(model, "sgd", learning_rate=1.0) as optimizer:
                    words = 'layer 0 \\("all"\\) did not write 1 of its 1 gradient: "w"'
                    with trireme.Trainer(optimizer, [layer]) as trainer:
                        with self.assertRaisesRegex(trireme.CallbackError, words):
                            trainer.step()
                        self.assertEqual(model.get_parameters().tolist(), [5, 5, 5])
                    with trireme.Trainer(optimizer, [layer], zero_gradients=True) as trainer:
                        trainer.step()
                        self.assertEqual(model.get_parameters().tolist(), [4, 5, 5])

        self.ranks(2, body)

    def test_micro_batches_add_up(self):
        def body(group):
            with trained(group, micro_batches=2) as (trainer, model, _):
                losses = [trainer.step(sample).loss for _ in range(STEPS)]
                self.assertEqual(trainer.info().micro_batches, 2)
                return losses, model.get_parameters().tolist()

        expected_losses, expected = train_alone(6)
        for losses, parameters in self.ranks(3, body):
            self.near(losses, expected_losses)
            self.near(parameters, expected)

    def test_checkpoints_give_the_same_bits(self):
        def body(group):
            outcomes = []
            for every in (0, 1):
                network = Network()
                with trained(group, leaves=2, network=network, checkpoint_every=every) as (
                    trainer,
                    model,
                    _,
                ):
                    info = trainer.info()
                    self.assertEqual((info.layers, info.recomputed > 0), (2, every > 0))
                    losses = [trainer.step(sample).loss for _ in range(STEPS)]
                    self.assertEqual("recompute" in network.phases, every > 0)
                    outcomes.append((losses, model.get_parameters().tolist()))
            self.assertEqual(outcomes[0], outcomes[1])
            return outcomes[0]

        one, other = self.ranks(2, body)
        self.assertEqual(one, other)

    def test_activations_in_a_file_give_the_same_bits(self):
        def body(group):
            outcomes = []
            for path in (None, self.path, pathlib.Path(self.path)):
                with trained(group, leaves=2, offload=path) as (trainer, model, _):
                    losses = [trainer.step(sample).loss for _ in range(STEPS)]
                    outcomes.append((losses, model.get_parameters().tolist()))
                    info = trainer.info()
                    if path is None:
                        self.assertEqual(info.planned_window_bytes, 0)
                        with self.assertRaisesRegex(trireme.InvalidStateError, "offload"):
                            _ = trainer.offload_info
                        continue
                    found = trainer.offload_info
                    self.assertEqual(found.path, self.path)
                    self.assertEqual(found.direct, found.why_not_direct == "")
                    self.assertEqual(found.buffer_bytes, info.planned_window_bytes)
                    self.assertGreater(found.block_bytes, 0)
                    self.assertEqual(found.failed_writes, 0)
            self.assertEqual(outcomes[0], outcomes[1])
            self.assertEqual(outcomes[0], outcomes[2])
            for offload, error in (
                ("", trireme.InvalidArgumentError),
                (trireme.Offload(self.path, ratio=0.5), trireme.InvalidArgumentError),
                (trireme.Offload(self.path, buffer_bytes=1), trireme.OutOfMemoryError),
            ):
                with self.assertRaises(error), trained(group, leaves=2, offload=offload):
                    pass

        with tempfile.TemporaryDirectory() as path:
            self.path = os.path.realpath(path)
            self.ranks(2, body)
            self.assertEqual(os.listdir(path), [])

    def test_a_layer_that_raises_fails_on_all_ranks_and_training_goes_on(self):
        expected_losses, expected = train_alone(4)
        for phase in ("forward", "backward"):

            def body(group):
                broken = True

                def trouble(call):
                    if broken and group.rank == 1 and call.phase == phase and call.layer == 0:
                        raise KeyError("no such sample")

                with trained(group, leaves=4, network=Network(trouble)) as (trainer, model, _):
                    losses = []
                    for step in range(STEPS):
                        broken = step in (0, 3)
                        if broken:
                            kind = KeyError if group.rank == 1 else trireme.CallbackError
                            words = "no such sample" if group.rank == 1 else "hidden.*rank 1"
                            for _ in range(2):
                                with self.assertRaisesRegex(kind, words):
                                    trainer.step(sample)
                            broken = False
                        losses.append(trainer.step(sample).loss)
                    return losses, model.get_parameters().tolist()

            for losses, parameters in self.ranks(2, body):
                self.near(losses, expected_losses)
                self.near(parameters, expected)

    def test_what_is_raised_while_the_disk_fails_does_not_come_out_later(self):
        def body(group, where):
            broken = True

            def forward(call):
                if broken and where == "layer" and group.rank == 1 and call.layer == 1:
                    raise KeyError("of the broken step")
                if call.layer == 4:
                    call.loss = 1.0

            def backward(call):
                call.gradients[0][0] = 1.0

            def factor(step):
                if broken and where == "schedule" and group.rank == 1:
                    raise KeyError("of the broken step")
                return 1.0

            with trireme.Model(group, "data_parallel") as model:
                layers = []
                for i in range(5):
                    model.add_parameter(f"p{i}", [1], "f64")
                    output = {"output": 8, "dtype": "f64"} if i < 4 else {}
                    layers.append(
                        trireme.Layer(f"l{i}", forward, backward, parameters=[i], **output)
                    )
                model.seal()
                model.set_parameters(array.array("d", [0] * 5))
                optimizer = trireme.Optimizer(model, "sgd", learning_rate=1.0)
                optimizer.set_schedule(trireme.Schedule(factor))
                options = {"offload": trireme.Offload(self.path, buffer_bytes=8192)}
                with optimizer, trireme.Trainer(optimizer, layers, **options) as trainer:
                    group.barrier()
                    if group.rank == 0:  # whose backward alone reads
                        trireme.set_failpoints("file.read=fail(5)@1+")
                    group.barrier()
                    with self.assertRaisesRegex(
                        trireme.SystemCallError, "cannot be read"
                    ) as caught:
                        trainer.step()
                    self.assertEqual(
                        repr(caught.exception.__cause__),
                        "KeyError('of the broken step')" if group.rank == 1 else "None",
                    )
                    group.barrier()
                    if group.rank == 0:
                        trireme.set_failpoints(None)
                    broken = False
                    group.barrier()
                    self.assertEqual([trainer.step().step for _ in range(2)], [1, 2])
                    self.assertEqual(trainer.evaluate(), 1.0)
                    self.assertEqual(model.get_parameters().tolist(), [-2.0] * 5)

        self.addCleanup(trireme.set_failpoints, None)
        for where in ("layer", "schedule"):
            with tempfile.TemporaryDirectory() as self.path:
                self.ranks(2, lambda group: body(group, where))

    def test_what_a_layer_raises_comes_out_of_evaluate(self):
        def body(group):
            broken = True

            def trouble(call):
                if broken and group.rank == 0 and call.phase == "evaluate":
                    raise KeyError("no such sample")

            with trained(group, leaves=4, network=Network(trouble)) as (trainer, *_):
                kind = KeyError if group.rank == 0 else trireme.CallbackError
                for _ in range(2):
                    with self.assertRaisesRegex(
                        kind, "no such sample" if group.rank == 0 else "hidden.*rank 0"
                    ):
                        trainer.evaluate(sample)
                broken = False
                return [trainer.evaluate(sample), trainer.step(sample).loss]

        expected_losses, _ = train_alone(4, 1)
        for losses in self.ranks(2, body):
            self.near(losses, expected_losses * 2)

    def test_the_name_of_a_layer_is_whole_or_refused(self):
        def layer(name):
            return trireme.Layer(name, lambda call: None, lambda call: None)

        with trained(self.alone()) as (_, _, optimizer):
            with self.assertRaisesRegex(trireme.InvalidArgumentError, r"'a\\x00b' holds a null"):
                trireme.Trainer(optimizer, [layer("a\0b")])

    def test_an_optimizer_that_is_closed_goes_on_in_its_trainer(self):
        def rule(piece):
            for i, gradient in enumerate(piece.gradients):
                piece.parameters[i] -= piece.learning_rate * gradient

        def body(group):
            with trained(group, leaves=4, rule=rule, rate=2 * RATE) as (trainer, model, optimizer):
                optimizer.set_schedule(trireme.Schedule(lambda step: 0.5))
                optimizer.close()
                gc.collect()
                losses = [trainer.step(sample).loss for _ in range(STEPS)]
                with self.assertRaises(trireme.InvalidStateError):
                    trireme.Optimizer(model, rule)
                trainer.close()
                trireme.Optimizer(model, rule).close()
                return losses, model.get_parameters().tolist()

        expected_losses, expected = train_alone(4)
        for losses, parameters in self.ranks(2, body):
            self.near(losses, expected_losses)
            self.near(parameters, expected)

    def test_a_layer_may_close_all_and_the_step_goes_on(self):
        def body(group):
            def rule(piece):
                for i, gradient in enumerate(piece.gradients):
                    piece.parameters[i] -= piece.learning_rate * gradient

            def trouble(call):
                trainer.close()
                optimizer.close()
                gc.collect()

            with trained(group, leaves=4, network=Network(trouble), rule=rule) as (
                trainer,
                model,
                optimizer,
            ):
                loss = trainer.step(sample).loss
                trireme.Optimizer(model, "sgd").close()
                return [loss], model.get_parameters().tolist()

        expected_losses, expected = train_alone(4, 1)
        for losses, parameters in self.ranks(2, body):
            self.near(losses, expected_losses)
            self.near(parameters, expected)

    def test_a_layer_that_calls_the_library_is_refused(self):
        def body(group):
            seen = []

            def trouble(call):
                for refused in (
                    lambda: trainer.step(sample),
                    lambda: trainer.evaluate(sample),
                    trainer.info,
                    optimizer.step,
                    model.get_parameters,
                ):
                    with self.assertRaises(trireme.InvalidStateError):
                        refused()
                seen.append(call.batch is sample)

            with trained(group, leaves=2, network=Network(trouble)) as (trainer, model, optimizer):
                trainer.step(sample)
                return seen, model.get_parameters().tolist()

        _, expected = train_alone(2, 1)
        for seen, parameters in self.ranks(2, body):
            self.assertEqual(seen, [True] * 4)
            self.near(parameters, expected)

    def test_all_ranks_stop_after_the_same_step(self):
        def body(group):
            def after(metrics):
                return group.rank == 1 and metrics.step == 2

            with trained(group, leaves=4, after_step=after) as (trainer, *_):
                while not trainer.step(sample).stop:
                    pass
                first = trainer.step(sample)
                trainer.request_stop()
                return first.step, first.stop

        one, other = self.ranks(2, body)
        self.assertEqual(one, other)
        self.assertTrue(one[1] and one[0] <= 5)

    def test_what_after_step_raises_comes_out_and_stops(self):
        def body(group):
            def after(metrics):
                if group.rank == 0 and metrics.step == 1:
                    raise KeyError("enough")

            with trained(group, leaves=4, after_step=after) as (trainer, model, _):
                if group.rank == 0:
                    with self.assertRaisesRegex(KeyError, "enough"):
                        trainer.step(sample)
                else:
                    trainer.step(sample)
                self.assertTrue(trainer.step(sample).stop)
                return model.get_parameters().tolist()

        for parameters in self.ranks(2, body):
            self.near(parameters, train_alone(4, 2)[1])

    def test_a_schedule_sets_the_rate_of_each_step(self):
        def body(group):
            with trained(group, leaves=2) as (trainer, _, optimizer):
                optimizer.set_schedule(trireme.Schedule("linear", total_steps=4))
                return [trainer.step(sample).learning_rate for _ in range(3)]

        self.assertEqual(list(self.ranks(2, body)), [[RATE, RATE * 0.75, RATE * 0.5]] * 2)

    def test_wrong_calls_are_refused(self):
        with contextlib.ExitStack() as stack:
            group = stack.enter_context(trireme.Communicator(0, 1, "local://trainer-refused"))
            trainer, model, optimizer = stack.enter_context(trained(group))
            layers = Network().layers()
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Trainer(optimizer, [])
            with self.assertRaisesRegex(trireme.InvalidArgumentError, "belongs to no layer|b1|w1"):
                trireme.Trainer(optimizer, layers[1:])
            layers[0].parameters = ("b1", "w1")
            with self.assertRaisesRegex(trireme.InvalidArgumentError, "one after the other"):
                trireme.Trainer(optimizer, layers)
            layers[0].parameters = ("nobody",)
            with self.assertRaisesRegex(trireme.InvalidArgumentError, "nobody"):
                trireme.Trainer(optimizer, layers)

            def trouble(call):
                with self.assertRaises(trireme.InvalidArgumentError):
                    call.set_gradient(9, None)
                if call.layer == 0:
                    with self.assertRaises(trireme.InvalidArgumentError):
                        call.loss = 1.0
                if call.phase == "backward":
                    for wrong in (array.array("f", [0] * 12), array.array("d", [0])):
                        with self.assertRaises(trireme.InvalidArgumentError):
                            call.set_gradient(0, wrong)
                with self.assertRaises(TypeError):
                    call.parameters[0][0] = 1.0  # read-only

            with trireme.Trainer(optimizer, Network(trouble).layers()) as another:
                another.step(sample)

            def forgets(call):
                if call.phase == "backward" and call.layer == 0:
                    call.set_gradient(0, None)

            network = Network()
            hidden = network.hidden_backward
            network.hidden_backward = lambda call: (hidden(call), forgets(call))
            with trireme.Trainer(optimizer, network.layers()) as another:
                with self.assertRaisesRegex(
                    trireme.CallbackError, "left out 1 of its 2 gradients: "
                ):
                    another.step(sample)
            self.assertEqual(trainer.step(sample).step, 2)
            trainer.close()
            for call in (trainer.step, trainer.evaluate, trainer.request_stop, trainer.info):
                with self.assertRaises(trireme.InvalidHandleError):
                    call()


if __name__ == "__main__":
    unittest.main()
