"""A training goes on in another layout: ranges and counters of one, written to the other."""

import array
import dataclasses
import json
import math
import unittest

from support import TestCase, trireme

SHAPES = {"a": (3, 2), "b": (5,)}
ELEMENTS = 11
BEFORE, STEPS = 3, 6
FACTORS = (1.0, 0.5)


def gradient(step, i):
    return float((3 * i + 5 * step) % 11) - 4.5


def plain_adamw(steps):
    """Of one process, in f64, which knows nothing of the library."""
    out = []
    for i in range(ELEMENTS):
        p, m, v, t = float(i % 7 - 3), 0.0, 0.0, 0
        for step in range(steps):
            if i >= 6 and step == 1:
                continue  # "b" has no gradient there
            t += 1
            rate = (0.1 if step < 1 else 0.05) * FACTORS[0 if i < 6 else 1]
            g = gradient(step, i)
            p -= rate * 0.1 * p
            m = 0.9 * m + 0.1 * g
            v = 0.999 * v + 0.001 * g * g
            p -= rate / (1 - 0.9**t) * m / (math.sqrt(v / (1 - 0.999**t)) + 1e-8)
        out.append(p)
    return out


def build(group, strategy):
    model = trireme.Model(
        group,
        strategy,
        unused="skip",
        units=trireme.Units(minimum_bytes=1),
        shards=2 if strategy == "hybrid_shard" else None,
    )
    for number, (name, shape) in enumerate(SHAPES.items()):
        model.add_parameter(name, shape, parameter_group=number)
    model.seal()
    optimizer = trireme.Optimizer(
        model,
        "adamw",
        learning_rate=0.1,
        weight_decay=0.1,
        groups=[trireme.ParameterGroup(rate_factor=factor) for factor in FACTORS],
    )
    return model, optimizer


def train(model, optimizer, steps):
    for step in steps:
        with model.backward():
            for name, first, end in (("b", 6, 11), ("a", 0, 6)):
                if name == "a" or step != 1:
                    values = [gradient(step, i) for i in range(first, end)]
                    model.gradient_ready(name, array.array("f", values))
        if step == 1:
            optimizer.learning_rate = 0.05
        optimizer.step()


def key_of(piece):
    return piece.kind, piece.vector, piece.name


def saved(test, world_size, strategy):
    """All state by name, whole, and what the optimizer counts, as JSON."""
    state = {}

    def body(group):
        model, optimizer = build(group, strategy)
        model.set_parameters(array.array("f", [i % 7 - 3 for i in range(ELEMENTS)]))
        train(model, optimizer, range(BEFORE))
        for index, piece in enumerate(optimizer.ranges()):
            state[(*key_of(piece), piece.first)] = list(optimizer.read_range(index))
        return json.dumps(dataclasses.asdict(optimizer.counters))

    counters = list(test.ranks(world_size, body))
    whole = {}
    for *key, first in sorted(state):
        whole.setdefault(tuple(key), []).extend(state[(*key, first)])
    return whole, counters[-1]


class RestoreTest(TestCase):
    def test_a_training_goes_on_in_another_layout(self):
        layouts = (
            (4, "zero3"),
            (2, "zero2"),
            (3, "data_parallel"),
            (4, "hybrid_shard"),
            (1, "zero1"),
        )
        expected = plain_adamw(STEPS)
        for source in layouts:
            state, counters = saved(self, *source)

            def go_on(group, strategy, state=state, counters=counters):
                model, optimizer = build(group, strategy)
                for index, piece in enumerate(optimizer.ranges()):
                    whole = state[key_of(piece)]
                    part = whole[piece.first : piece.first + piece.count]
                    optimizer.write_range(index, array.array("f", part))
                optimizer.restore(trireme.OptimizerCounters(**json.loads(counters)))
                self.assertEqual(optimizer.step_count, BEFORE)
                self.assertEqual(optimizer.learning_rate, 0.05)
                self.assertEqual(json.dumps(dataclasses.asdict(optimizer.counters)), counters)
                train(model, optimizer, range(BEFORE, STEPS))
                return model.get_parameters().tolist(), optimizer.counters

            for world_size, strategy in layouts:
                for values, counted in self.ranks(
                    world_size, lambda group, to=strategy: go_on(group, to)
                ):
                    for value, right in zip(values, expected):
                        self.assertAlmostEqual(value, right, delta=2e-6)
                    self.assertEqual(counted.steps, STEPS)
                    self.assertEqual(counted.parameter_steps, (STEPS, STEPS - 1))
                    self.assertEqual(counted.group_rate_factors, FACTORS)

    def test_what_cannot_be_restored_is_refused(self):
        with trireme.Communicator(0, 1, "local://restore-refused") as group:
            model, optimizer = build(group, "zero1")
            good = optimizer.counters
            self.assertEqual(good.steps, 0)
            for change, words in (
                ({"version": 2}, "counters.version is 2"),
                ({"loss_scale": 4.0}, "without options.loss_scale"),
                ({"learning_rate": math.nan}, "learning_rate"),
                ({"parameter_steps": ()}, "counters.parameter_count is 0"),
                ({"parameter_steps": (1, 0)}, 'parameter 0 ("a") is 1, but there were 0 steps'),
                ({"group_rate_factors": (1.0,)}, "counters.group_count is 1"),
                ({"steps": -1}, "steps"),
            ):
                with self.assertRaises(trireme.InvalidArgumentError) as caught:
                    optimizer.restore(dataclasses.replace(good, **change))
                self.assertIn(words, str(caught.exception))
            optimizer.restore(good)
            optimizer.close()
            with self.assertRaises(trireme.InvalidHandleError):
                optimizer.restore(good)
            model.close()

    def test_other_counters_on_a_rank_are_a_mismatch(self):
        def body(group):
            _model, optimizer = build(group, "data_parallel")
            counters = dataclasses.replace(optimizer.counters, steps=4 + group.rank)
            with self.assertRaises(trireme.MismatchError) as caught:
                optimizer.restore(counters)
            group.barrier()  # the group lives on
            return str(caught.exception), optimizer.step_count

        for message, steps in self.ranks(2, body):
            self.assertIn("the number of steps is 4 on rank 0 and 5 on rank 1", message)
            self.assertEqual(steps, 0)


if __name__ == "__main__":
    unittest.main()
