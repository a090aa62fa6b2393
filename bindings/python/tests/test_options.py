"""Options by keyword: what each does, short forms, and what is said of values that cannot be."""

import array
import copy
import dataclasses
import gc
import inspect
import math
import pathlib
import pickle
import re
import tempfile
import unittest
import weakref

from support import REPOSITORY, TestCase, needs_numpy, numpy, trireme
from trireme._abi import options as generated
from trireme._abi import rule_options, schedule_options
from trireme._fields import Rule

START = [1.0, -2.0, 3.0, 4.0, 0.5, -1.5]
GRADIENTS = ([2.0, -1.0, 0.5, 4.0, 1.0, -3.0], [-1.0, 1.5, 2.0, 0.25, -2.0, 1.0])
RULES = [getattr(trireme, name) for name in rule_options.__all__]
BUILT_IN = [kind for kind in RULES if kind is not trireme.UserRule]
CLASSES = [*RULES, *(getattr(trireme, name) for name in generated.__all__)]
SCHEDULES = [getattr(trireme, name) for name in schedule_options.__all__]

# Another value of each option of each rule, with what it needs beside it.
OTHER = {
    "SGD": {"momentum": {"momentum": 0.5}, "nesterov": {"nesterov": True, "momentum": 0.5}},
    "Adam": {"beta1": {"beta1": 0.5}, "beta2": {"beta2": 0.5}, "epsilon": {"epsilon": 0.5}},
    "AdamW": {"beta1": {"beta1": 0.5}, "beta2": {"beta2": 0.5}, "epsilon": {"epsilon": 0.5}},
    "Adagrad": {"epsilon": {"epsilon": 0.5}},
    "RMSprop": {
        "centered": {"centered": True},
        "momentum": {"momentum": 0.5},
        "alpha": {"alpha": 0.5},
        "epsilon": {"epsilon": 0.5},
    },
    "Lion": {"beta1": {"beta1": 0.9999}, "beta2": {"beta2": 0.01}},
    "LAMB": {
        "beta1": {"beta1": 0.5},
        "beta2": {"beta2": 0.5},
        "epsilon": {"epsilon": 0.5},
        "max_trust": {"max_trust": 0.5},
    },
    "LARS": {
        "momentum": {"momentum": 0.5},
        "epsilon": {"epsilon": 0.5},
        "trust_coefficient": {"trust_coefficient": 0.5},
        "max_trust": {"max_trust": 1e-6},
    },
    "Adafactor": {
        "beta2_decay": {"beta2_decay": -0.1},
        "epsilon": {"epsilon": 100.0},
        "max_update_rms": {"max_update_rms": 0.25},
        "min_parameter_rms": {"min_parameter_rms": 5.0},
    },
    "Muon": {
        "nesterov": {"nesterov": True},
        "orthogonal_steps": {"orthogonal_steps": 1},
        "rate_adjustment": {"rate_adjustment": "match_adamw"},
        "momentum": {"momentum": 0.5},
        "beta1": {"beta1": 0.5},
        "beta2": {"beta2": 0.5},
        "epsilon": {"epsilon": 0.5},
    },
}


def sealed(group, strategy="zero1", **options):
    """A matrix and a vector, which is group 1."""
    model = trireme.Model(group, strategy, **options)
    model.add_parameter("matrix", [2, 2], "f64")
    model.add_parameter("vector", [2], "f64", parameter_group=1)
    model.seal()
    model.set_parameters(array.array("d", START))
    return model


def trained(group, rule, steps=2, model=None, **options):
    """The parameters after some steps."""
    model = model or sealed(group)
    options.setdefault("groups", [trireme.ParameterGroup()] * 2)
    optimizer = trireme.Optimizer(model, rule, **options)
    for step in range(steps):
        model.accumulate_flat(array.array("d", GRADIENTS[step % 2]))
        optimizer.step()
    values = model.get_parameters().tolist()
    optimizer.close()
    return values


class RulesTest(TestCase):
    def test_each_rule_of_the_headers_has_a_class_with_its_kind(self):
        self.assertEqual({kind._kind for kind in RULES}, set(rule_options.RULES.values()))
        self.assertEqual(len(RULES), len(rule_options.RULES))
        text = (REPOSITORY / "include/trireme/rules.h").read_text()
        self.assertEqual(len(re.findall("TRIREME_INIT_KIND", text)), len(RULES))

    def test_each_option_of_each_rule_has_an_effect(self):
        group = self.alone()
        self.assertEqual(set(OTHER), {kind.__name__ for kind in BUILT_IN})
        for kind in BUILT_IN:
            plain = trained(group, kind(), learning_rate=0.25)
            options = OTHER[kind.__name__]
            self.assertEqual(set(options), {field.name for field in dataclasses.fields(kind)})
            for name, values in options.items():
                beside = {other: value for other, value in values.items() if other != name}
                before = trained(group, kind(**beside), learning_rate=0.25) if beside else plain
                after = trained(group, kind(**values), learning_rate=0.25)
                self.assertNotEqual(before, after, f"{kind.__name__}.{name}")

    def test_a_name_in_any_case_is_the_rule_with_its_defaults(self):
        group = self.alone()
        for kind in BUILT_IN:
            name = kind.__name__
            expected = trained(group, kind())
            for short in (name, name.lower(), name.upper(), kind._kind):
                self.assertEqual(trained(group, short), expected, short)

    def test_defaults_are_those_of_the_documentation(self):
        group = self.alone()
        seen = 0
        for kind in BUILT_IN:
            doc = " ".join(inspect.getdoc(kind).split())
            for name, field in kind._fields.items():
                said = re.search(rf" {name}: .*?Default: ([^ ,]+)", doc).group(1).rstrip(".")
                if field.default is not None or "^" in said:
                    continue
                same = kind(**{name: (int if name == "orthogonal_steps" else float)(said)})
                self.assertEqual(trained(group, same), trained(group, kind()), (kind, name))
                seen += 1
        self.assertGreater(seen, 15)
        self.assertIn("Default: 0.9.", inspect.getdoc(trireme.AdamW))

    def test_numbers_of_adamw_reach_the_formula(self):
        b1, b2, eps, rate, decay = 0.75, 0.5, 0.125, 0.25, 0.5
        rule = trireme.AdamW(beta1=b1, beta2=b2, epsilon=eps)
        values = trained(self.alone(), rule, learning_rate=rate, weight_decay=decay)
        for index, parameter in enumerate(START):
            mean = square = 0.0
            for step in (1, 2):
                gradient = GRADIENTS[step - 1][index]
                parameter -= rate * decay * parameter
                mean = b1 * mean + (1 - b1) * gradient
                square = b2 * square + (1 - b2) * gradient**2
                root = math.sqrt(square / (1 - b2**step))
                parameter -= rate * mean / (1 - b1**step) / (root + eps)
            self.assertAlmostEqual(values[index], parameter, places=12)

    def test_state_that_was_saved_goes_on_with_the_same_rule_and_no_other(self):
        group = self.alone()
        rule = trireme.SGD(momentum=0.5, nesterov=True)
        expected = trained(group, rule, steps=4)
        saved = []
        for steps in (range(2), range(2, 4)):
            model = sealed(group)
            groups = [trireme.ParameterGroup()] * 2
            for state in saved:
                with trireme.Optimizer(model, "adam", groups=groups) as wrong:
                    with self.assertRaises(trireme.TriremeError):
                        wrong.load(state)
            optimizer = trireme.Optimizer(model, copy.deepcopy(rule), groups=groups)
            for state in saved:
                optimizer.load(state)
            for step in steps:
                model.accumulate_flat(array.array("d", GRADIENTS[step % 2]))
                optimizer.step()
            saved.append(optimizer.save())
        self.assertEqual(model.get_parameters().tolist(), expected)

    def test_ranks_with_other_numbers_are_told_which(self):
        def body(group):
            model = sealed(group)
            rule = trireme.AdamW(beta1=(0.9, 0.8)[group.rank])
            with self.assertRaisesRegex(trireme.MismatchError, r"options\.rule\.beta1"):
                trireme.Optimizer(model, rule, groups=[trireme.ParameterGroup()] * 2)
            with self.assertRaisesRegex(trireme.MismatchError, r"options\.clipping\.max_norm"):
                clipping = (1.0, 2.0)[group.rank]
                groups = [trireme.ParameterGroup()] * 2
                trireme.Optimizer(model, "adamw", clipping=clipping, groups=groups)
            return trained(group, "adamw", model=model)

        self.assertEqual(*self.ranks(2, body))

    def test_a_function_is_short_for_a_rule_of_ones_own(self):
        def rule(update):
            self.assertEqual(len(update.states), 0)
            for i, gradient in enumerate(update.gradients):
                update.parameters[i] -= gradient

        group = self.alone()
        expected = [p - a - b for p, a, b in zip(START, *GRADIENTS)]
        self.assertEqual(trained(group, rule), expected)
        self.assertEqual(trained(group, trireme.UserRule(rule)), expected)
        self.assertEqual(trireme.UserRule(rule), trireme.UserRule(update=rule))

    def test_one_user_rule_serves_two_optimizers_and_then_goes(self):
        seen = []

        def function(update):
            update.states[0][0] += 1
            seen.append((update.parameter, update.states[0][0]))

        rule = trireme.UserRule(function, state_count=1)
        group = self.alone()
        for _ in range(2):
            trained(group, rule)
        self.assertEqual(seen, [(0, 1.0), (1, 1.0), (0, 2.0), (1, 2.0)] * 2)
        there = weakref.ref(function)
        del function, rule
        gc.collect()
        self.assertIsNone(there())


class DutiesTest(TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name

    def test_clipping(self):
        group = self.alone()
        plain = trained(group, "sgd", 1, learning_rate=1.0)
        norm = math.sqrt(sum(g * g for g in GRADIENTS[0]))
        clipped = trained(group, "sgd", 1, learning_rate=1.0, clipping=norm / 2)
        for value, start, whole in zip(clipped, START, plain):
            self.assertAlmostEqual(value, start + (whole - start) / 2, places=12)
        options = trireme.Clipping(max_norm=norm / 2)
        self.assertEqual(trained(group, "sgd", 1, learning_rate=1.0, clipping=options), clipped)
        options = trireme.Clipping(max_value=1.0)
        limited = trained(group, "sgd", 1, learning_rate=1.0, clipping=options)
        expected = [p - max(-1.0, min(1.0, g)) for p, g in zip(START, GRADIENTS[0])]
        self.assertEqual(limited, expected)
        self.assertEqual(trained(group, "sgd", 1, learning_rate=1.0, clipping=0), plain)

    def test_groups(self):
        group = self.alone()

        def of(vector):
            groups = [trireme.ParameterGroup(), vector]
            return trained(group, "sgd", 1, learning_rate=0.5, weight_decay=0.5, groups=groups)

        plain = of(trireme.ParameterGroup())
        for options, rate, decay in (
            ({}, 0.5, 0.5),
            ({"rate_factor": 0.5}, 0.25, 0.5),
            ({"rate_factor": 0}, 0.0, 0.5),
            ({"weight_decay": 0.25}, 0.5, 0.25),
            ({"weight_decay": 0}, 0.5, 0.0),
        ):
            values = of(trireme.ParameterGroup(**options))
            self.assertEqual(values[:4], plain[:4], options)
            expected = [p - rate * (g + decay * p) for p, g in zip(START[4:], GRADIENTS[0][4:])]
            self.assertEqual(values[4:], expected, options)
        values = of(trireme.ParameterGroup(max_norm=1.0))
        self.assertEqual(values[:4], plain[:4])
        self.assertNotEqual(values[4:], plain[4:])
        flat = [trireme.ParameterGroup(elementwise=True), trireme.ParameterGroup()]
        self.assertNotEqual(trained(group, "muon"), trained(group, "muon", groups=flat))

    def test_loss_scale(self):
        group = self.alone()
        groups = [trireme.ParameterGroup()] * 2
        for given, first in (
            (1024, 1024.0),
            (trireme.LossScale(initial_scale=1024), 1024.0),
            (trireme.LossScale(), 65536.0),
            (None, 1.0),
        ):
            with trireme.Optimizer(sealed(group), "sgd", groups=groups, loss_scale=given) as made:
                self.assertEqual(made.loss_scale, first)

        def scales(bad, **options):
            """The loss scales of 6 steps; some steps overflow."""
            model = sealed(group)
            loss_scale = trireme.LossScale(initial_scale=16, growth_interval=2, **options)
            optimizer = trireme.Optimizer(model, "sgd", groups=groups, loss_scale=loss_scale)
            found = []
            for step in range(6):
                found.append(optimizer.loss_scale)
                gradient = [math.inf if step in bad else 1.0] * 6
                model.accumulate_flat(array.array("d", gradient))
                try:
                    optimizer.step()
                except trireme.InvalidStateError as error:  # at the floor
                    self.assertIn("at its floor, 8,", str(error))
            return found

        self.assertEqual(scales(()), [16, 16, 32, 32, 64, 64])
        self.assertEqual(scales((), growth_factor=4), [16, 16, 64, 64, 256, 256])
        self.assertEqual(scales((0, 1)), [16, 8, 4, 4, 8, 8])
        self.assertEqual(scales((0, 1), backoff_factor=0.25), [16, 4, 1, 1, 2, 2])
        self.assertEqual(scales((0, 1), minimum_scale=8), [16, 8, 8, 8, 16, 16])
        self.assertEqual(scales((0, 1), hysteresis=2), [16, 16, 8, 8, 16, 16])

    def test_offload(self):
        group = self.alone()
        expected = trained(group, "adam")
        groups = [trireme.ParameterGroup()] * 2
        for given in (
            self.path,
            self.path.encode(),
            pathlib.Path(self.path),
            trireme.Offload(self.path),
            trireme.Offload(self.path, ratio=1, buffer_bytes=65536),
        ):
            self.assertEqual(trained(group, "adam", offload=given), expected)
            with trireme.Optimizer(sealed(group), "adam", groups=groups, offload=given) as made:
                self.assertEqual(made.offload_info.path, self.path)
            model = sealed(group, "zero3", offload=given)
            self.assertEqual(trained(group, "adam", model=model), expected)
            self.assertEqual(model.offload_info.path, self.path)
        found = []
        for options in ({}, {"buffer_bytes": 65536}, {"ratio": 0.5}):
            offload = trireme.Offload(self.path, **options)
            with trireme.Model(group, "zero3", offload=offload) as model:
                model.add_parameter("wide", [100000], "f64")
                model.seal()
                found.append(model.offload_info)
        plain, narrow, half = found
        self.assertEqual((plain.resident_bytes, narrow.resident_bytes), (0, 0))
        self.assertGreater(half.resident_bytes, 200000)
        self.assertLessEqual(narrow.buffer_bytes, 65536)
        self.assertGreater(plain.buffer_bytes, 65536)

    def test_buckets(self):
        def buckets(**options):
            group = self.alone()
            model = trireme.Model(group, "zero2", units=trireme.Units(minimum_bytes=1), **options)
            for name in "abc":
                model.add_parameter(name, [16])
            model.seal()
            return model.info().buckets

        self.assertEqual(buckets(), 1)
        self.assertEqual(buckets(buckets=trireme.Buckets()), 1)
        self.assertEqual(buckets(buckets=trireme.Buckets(bytes=1)), 3)
        self.assertEqual(buckets(buckets=trireme.Buckets(bytes=65536, first_bytes=1)), 2)

    def test_a_hook_of_the_buckets_of_two_models(self):
        seen = []
        buckets = trireme.Buckets(hook=lambda bucket: seen.append(bucket.moment))
        group = self.alone()
        for _ in range(2):
            trained(group, "sgd", 1, model=sealed(group, buckets=buckets))
        self.assertEqual(seen, ["before", "after"] * 2)

    def test_units(self):
        def body(group):
            found = []
            for options in (
                {},
                {"minimum_bytes": 1},
                {"minimum_bytes": 1, "persistent_bytes": 100},
                {"minimum_bytes": 1, "prefetch_bytes": 1},
                {"minimum_bytes": 1, "reshard_ranks": 2},
            ):
                units = trireme.Units(**options)
                own = trireme.Shards(share="never")
                model = trireme.Model(group, "zero3", units=units, shards=own)
                for name in "abc":
                    model.add_parameter(name, [16])
                model.seal()
                optimizer = trireme.Optimizer(model, "sgd")
                for _ in range(2):
                    for unit in (0, 1, 2, 2, 1, 0):
                        with model.gathered(unit):
                            pass
                    model.accumulate_flat(array.array("f", [1.0] * 48))
                    optimizer.step()
                done = model.statistics()
                found.append((model.info().unit_groups, done.gathers, done.prefetched > 0))
                if "reshard_ranks" in options:
                    self.assertGreater(done.reshard_gathers, 0)
            return found

        for joined, apart, persistent, alone, spread in self.ranks(4, body):
            self.assertEqual((joined[0], apart[0]), (1, 3))
            self.assertGreater(apart[1], 0)
            self.assertEqual(persistent[1], 0)
            self.assertEqual((apart[2], alone[2]), (True, False))
            self.assertEqual(spread[0], 3)

    def test_shards(self):
        def body(group):
            found = []
            for shards in (
                None,
                2,
                trireme.Shards(ranks=2),
                trireme.Shards(ranks=2, stride=2),
                trireme.Shards(ranks=2, share="never"),
                trireme.Shards(ranks=2, share="Always"),
            ):
                model = trireme.Model(group, "hybrid_shard", shards=shards)
                model.add_parameter("odd", [5], "f64")
                model.seal()
                shared = model.info().shared_bytes > 0
                found.append((model.memory().planned_parameters // 8, shared))
            return found

        found = self.ranks(4, body)
        self.assertEqual([whole for (whole, _), *_ in found], [2, 1, 1, 1])
        for _, short, long, _, own, always in found:
            self.assertEqual(short, long)
            self.assertEqual(long, always)
            self.assertEqual((short[1], own[1]), (True, False))
        # The first rank of a copy has 3 of 5.
        self.assertEqual([rank[2][0] for rank in found], [3, 2, 3, 2])
        self.assertEqual([rank[3][0] for rank in found], [3, 3, 2, 2])

    def test_a_trainers_offload(self):
        def forward(call):
            call.loss = 1.0

        def backward(call):
            for gradient in call.gradients:
                for index in range(len(memoryview(gradient).cast("B").cast("d"))):
                    memoryview(gradient).cast("B").cast("d")[index] = 1.0

        for given in (self.path, trireme.Offload(self.path), pathlib.Path(self.path)):
            model = sealed(self.alone(), "data_parallel")
            optimizer = trireme.Optimizer(model, "sgd", groups=[trireme.ParameterGroup()] * 2)
            layers = [
                trireme.Layer("first", lambda call: None, backward, parameters=[0], output=4),
                trireme.Layer("last", forward, backward, parameters=[1]),
            ]
            with trireme.Trainer(optimizer, layers, offload=given) as trainer:
                self.assertEqual(trainer.step().loss, 1.0)
                self.assertEqual(trainer.offload_info.path, self.path)
        with self.assertRaisesRegex(
            TypeError, "offload must be trireme.Offload\(...\), or .* not 7 of type"
        ):
            trireme.Trainer(optimizer, layers, offload=7)


class ValuesTest(TestCase):
    def test_they_are_by_keyword_and_documented(self):
        for kind in [*CLASSES, *SCHEDULES]:
            fields = [field.name for field in dataclasses.fields(kind)]
            parameters = inspect.signature(kind).parameters
            self.assertEqual(list(parameters), fields)
            for name, parameter in parameters.items():
                required = kind._fields[name].required
                by_position = required or (kind, name) == (trireme.Offload, "path")
                by_keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
                self.assertEqual(by_keyword, not by_position, (kind, name))
                self.assertRegex(inspect.getdoc(kind), rf"(?m)^\s*{name}: ")
                self.assertNotEqual(parameter.annotation, inspect.Parameter.empty)
            for word in ("TRIREME_", "trireme_", "NULL", "_INIT"):
                self.assertNotIn(word, inspect.getdoc(kind), kind)
            self.assertIn(kind.__name__, trireme.__all__)

    def test_equal_shown_copied_and_never_changed(self):
        one = trireme.AdamW(beta1=0.95)
        self.assertEqual(one, trireme.AdamW(beta1=0.95, beta2=None))
        self.assertEqual(hash(one), hash(trireme.AdamW(beta1=0.95)))
        self.assertNotEqual(one, trireme.AdamW())
        self.assertNotEqual(trireme.AdamW(), trireme.Adam())
        self.assertEqual(repr(one), "AdamW(beta1=0.95)")
        self.assertEqual(repr(trireme.Clipping()), "Clipping()")
        self.assertEqual(repr(trireme.Offload("a", ratio=0.5)), "Offload(path='a', ratio=0.5)")
        self.assertEqual(repr(trireme.Shards(share="NEVER")), "Shards(share='never')")
        self.assertEqual(trireme.Shards(share=2), trireme.Shards(share="never"))
        group = trireme.ParameterGroup(weight_decay=0)
        self.assertEqual(repr(group), "ParameterGroup(weight_decay=0.0)")
        self.assertNotEqual(group, trireme.ParameterGroup())
        for each in (one, group, trireme.Offload("a"), trireme.Muon(rate_adjustment="original")):
            self.assertEqual(eval(repr(each), vars(trireme)), each)
            for made in (copy.copy(each), copy.deepcopy(each), pickle.loads(pickle.dumps(each))):
                self.assertEqual(made, each)
        self.assertEqual(dataclasses.replace(one, beta2=0.5), trireme.AdamW(beta1=0.95, beta2=0.5))
        with self.assertRaises(dataclasses.FrozenInstanceError):
            one.beta1 = 0.5
        self.assertIsInstance(one, trireme.Rule)
        self.assertNotIsInstance(group, Rule)

    @needs_numpy
    def test_numbers_of_numpy(self):
        options = trireme.AdamW(beta1=numpy.float64(0.5), beta2=numpy.float32(0.25))
        self.assertEqual(options, trireme.AdamW(beta1=0.5, beta2=0.25))
        self.assertIs(type(options.beta1), float)
        self.assertEqual(
            trireme.Units(minimum_bytes=numpy.int64(8)), trireme.Units(minimum_bytes=8)
        )
        self.assertEqual(trireme.Clipping(max_norm=numpy.int32(2)), trireme.Clipping(max_norm=2))

    def test_wrong_types_name_the_keyword_and_what_it_takes(self):
        for make, words in (
            (
                lambda: trireme.AdamW(beta1="0.9"),
                "AdamW.beta1 must be a number, not '0.9' of type str",
            ),
            (
                lambda: trireme.Clipping(max_norm=True),
                "Clipping.max_norm must be a number, not True",
            ),
            (
                lambda: trireme.Clipping(max_norm=None),
                "Clipping.max_norm must be a number, not None",
            ),
            (lambda: trireme.SGD(nesterov="no"), "SGD.nesterov must be True or False, not 'no'"),
            (
                lambda: trireme.Buckets(bytes=1e6),
                "Buckets.bytes must be a whole number, not 1000000.0",
            ),
            (
                lambda: trireme.Units(prefetch_bytes="1"),
                "Units.prefetch_bytes must be a whole number",
            ),
            (
                lambda: trireme.Offload(7),
                "Offload.path must be a text or a path, not 7 of type int",
            ),
            (lambda: trireme.Buckets(hook=3), "Buckets.hook must be a function, not 3 of type int"),
            (lambda: trireme.UserRule("adam"), "UserRule.update must be a function, not 'adam'"),
            (
                lambda: trireme.ParameterGroup(rate_factor=[1]),
                "ParameterGroup.rate_factor must be a number",
            ),
        ):
            with self.assertRaises(TypeError) as caught:
                make()
            self.assertIn(words, str(caught.exception))

    def test_wrong_options_of_an_optimizer_and_a_model(self):
        group = self.alone()
        model = sealed(group)

        def optimizer(**options):
            return lambda: trireme.Optimizer(model, "sgd", **options)

        for make, words in (
            (
                optimizer(clipping="1"),
                "clipping must be trireme.Clipping(...), or the value of its max_norm alone",
            ),
            (optimizer(clipping=True), "clipping must be trireme.Clipping(...), "),
            (optimizer(clipping=trireme.LossScale()), "not LossScale() of type LossScale"),
            (
                optimizer(loss_scale=True),
                "loss_scale must be trireme.LossScale(...), or the value of its initial",
            ),
            (
                optimizer(offload=1),
                "offload must be trireme.Offload(...), or the value of its path alone, not 1",
            ),
            (
                optimizer(groups=trireme.ParameterGroup()),
                "groups must be a sequence of trireme.ParameterGroup(...)",
            ),
            (
                optimizer(groups=[trireme.ParameterGroup(), {}]),
                "groups[1] must be trireme.ParameterGroup(...), not {}",
            ),
            (optimizer(learning_rate="1"), "learning_rate must be a number, not '1' of type str"),
            (optimizer(weight_decay=None), "weight_decay must be a number, not None"),
            (optimizer(check_every=1.5), "check_every must be a whole number, not 1.5"),
            (optimizer(rounding_seed="a"), "rounding_seed must be a whole number"),
            (optimizer(norm_ranks=2), "norm_ranks must be a trireme.Communicator, not 2 of type"),
            (
                optimizer(norm_ranks=[group], clipping=1.0),
                "norm_ranks must be a trireme.Communicator, not [",
            ),
            (optimizer(one_sweep="no"), "one_sweep must be True or False, not 'no'"),
            (
                lambda: trireme.Optimizer(group, "sgd"),
                "model must be a trireme.Model, not <trireme.Comm",
            ),
            (
                lambda: trireme.Optimizer(model, trireme.AdamW),
                "rule is the class AdamW; AdamW() is a rule",
            ),
            (
                lambda: trireme.Model(group, "zero3", buckets=1),
                "buckets must be trireme.Buckets(...), not 1",
            ),
            (
                lambda: trireme.Model(group, "zero3", units=1),
                "units must be trireme.Units(...), not 1",
            ),
            (
                lambda: trireme.Model(group, "zero3", shards="2"),
                "shards must be trireme.Shards(...), or the value",
            ),
            (
                lambda: trireme.Model(group, "zero3", leaves="2"),
                "leaves must be a whole number, not '2'",
            ),
            (
                lambda: trireme.Model(group, "zero3", keep_gathered="no"),
                "keep_gathered must be True or False, not 'no'",
            ),
            (
                lambda: trireme.Model("local://x", "zero3"),
                "communicator must be a trireme.Communicator, not 'local://x'",
            ),
            (
                lambda: trireme.Mesh(1, {"data": 0}),
                "communicator must be a trireme.Communicator, not 1",
            ),
            (
                lambda: trireme.Layer("line", "forward", print),
                "Layer.forward must be a function, not 'forward'",
            ),
            (
                lambda: trireme.Communicator(0, 1, "transport://options", transport=self),
                "transport.send must be a function, not None",
            ),
        ):
            with self.assertRaises(TypeError) as caught:
                make()
            self.assertIn(words, str(caught.exception))
        trained(group, "sgd", model=model)  # nothing has changed
        plain = trireme.Optimizer(model, "sgd", groups=[trireme.ParameterGroup()] * 2)
        line = trireme.Layer("line", print, print, parameters=["matrix", "vector"])
        for make, words in (
            (
                lambda: trireme.Trainer(model, [line]),
                "optimizer must be a trireme.Optimizer, not <",
            ),
            (lambda: trireme.Trainer(plain, line), "layers must be a sequence of trireme.Layer"),
            (
                lambda: trireme.Trainer(plain, [line, None]),
                "layers[1] must be a trireme.Layer, not None",
            ),
            (
                lambda: trireme.Trainer(plain, [line], after_step=1),
                "after_step must be a function, not 1",
            ),
            (
                lambda: trireme.Trainer(plain, [line], zero_gradients="yes"),
                "zero_gradients must be True or False, not 'yes'",
            ),
        ):
            with self.assertRaises(TypeError) as caught:
                make()
            self.assertIn(words, str(caught.exception))

    def test_unknown_and_former_names(self):
        group = self.alone()
        model = sealed(group)
        for name in (
            "momentum",
            "nesterov",
            "beta1",
            "max_norm",
            "states",
            "group_max_norms",
            "loss_scale_growth",
            "offload_path",
            "clippings",
        ):
            with self.assertRaisesRegex(TypeError, f"unexpected keyword argument '{name}'"):
                trireme.Optimizer(model, "sgd", **{name: 1})
        for name in ("bucket_bytes", "bucket_hook", "shard_ranks", "share", "offload_path", "unit"):
            with self.assertRaisesRegex(TypeError, f"unexpected keyword argument '{name}'"):
                trireme.Model(group, "zero3", **{name: 1})
        for kind in CLASSES:
            with self.assertRaisesRegex(TypeError, "unexpected keyword argument 'beta9'"):
                kind(**{**{n: 1 for n, f in kind._fields.items() if f.required}, "beta9": 1})
        for kind in (trireme.SGD, trireme.Clipping, trireme.Shards):
            with self.assertRaisesRegex(TypeError, "positional"):
                kind(1)
        with self.assertRaisesRegex(TypeError, "missing 1 required positional argument: 'update'"):
            trireme.UserRule()

    def test_0_is_refused_where_the_library_would_take_its_default(self):
        for kind in CLASSES:
            for name, field in kind._fields.items():
                if type(field).__name__ not in ("Number", "Whole") or field.default is not None:
                    continue
                required = {n: "path" for n, f in kind._fields.items() if f.required}
                with self.assertRaises(trireme.InvalidArgumentError) as caught:
                    kind(**{**required, name: 0})
                words = f"{kind.__name__}.{name} 0 is out of range; leave it out for the default"
                self.assertEqual(str(caught.exception), words)
        for make in (
            lambda: trireme.Units(minimum_bytes=-1),
            lambda: trireme.Units(minimum_bytes=1 << 64),
            lambda: trireme.Shards(ranks=1 << 32),
            lambda: trireme.Shards(share="sometimes"),
            lambda: trireme.Muon(rate_adjustment="adamw"),
            lambda: trireme.Clipping(max_norm=10**400),
            lambda: trireme.Offload("a\0b"),
            lambda: trireme.Offload(kind="disk"),
        ):
            with self.assertRaises(trireme.InvalidArgumentError):
                make()

    def test_what_the_library_says_comes_through(self):
        group = self.alone()
        model = sealed(group)
        for options, words in (
            ({"clipping": -1}, "options.clipping.max_norm -1"),
            ({"clipping": trireme.Clipping(max_value=math.nan)}, "options.clipping.max_value"),
            ({"loss_scale": 3}, "options.loss_scale.initial_scale"),
            ({"offload": ""}, "options.offload.path"),
            ({"groups": [trireme.ParameterGroup(max_norm=-1)] * 2}, "options.groups[0].max_norm"),
        ):
            groups = [trireme.ParameterGroup()] * 2
            with self.assertRaises(trireme.InvalidArgumentError) as caught:
                trireme.Optimizer(model, "adam", **{"groups": groups, **options})
            self.assertIn(words, str(caught.exception))
        for rule, words in (
            (trireme.SGD(momentum=1), "options.rule.momentum"),
            (trireme.Adam(beta1=2), "options.rule.beta1"),
            (trireme.RMSprop(alpha=2), "options.rule.alpha"),
            (trireme.Muon(orthogonal_steps=100), "options.rule.orthogonal_steps"),
            (trireme.UserRule(print, state_count=9), "options.rule.state_count"),
        ):
            with self.assertRaises(trireme.InvalidArgumentError) as caught:
                trireme.Optimizer(model, rule, groups=groups)
            self.assertIn(words, str(caught.exception))
        for options, words in (
            ({"shards": trireme.Shards(ranks=3)}, "options.shards.ranks"),
            ({"shards": trireme.Shards(ranks=1, stride=3)}, "options.shards.stride"),
            ({"shards": trireme.Shards(share=9)}, "options.shards.share"),
            ({"units": trireme.Units(reshard_ranks=3)}, "options.units.reshard_ranks"),
            ({"offload": trireme.Offload("/tmp", ratio=2)}, "options.offload.ratio"),
            ({"offload": trireme.Offload("/tmp", kind=9)}, "options.offload.kind 9"),
            ({"offload": trireme.Offload()}, "options.offload.path"),
        ):
            with self.assertRaises(trireme.InvalidArgumentError) as caught:
                trireme.Model(group, "hybrid_shard", **options)
            self.assertIn(words, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
