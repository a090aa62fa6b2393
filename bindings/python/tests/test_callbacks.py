"""Hooks and update rules may close their own model from inside, and do nothing else with it."""

import ctypes

from support import TestCase, trireme
from test_model import ELEMENTS, STRATEGIES, build, gradient_of, gradients_of


class CallbackTest(TestCase):
    def refuses(self, model, optimizer):
        for call in (
            lambda: model.memory(),
            lambda: model.get_parameters(),
            lambda: model.set_parameters(gradients_of(0)),
            lambda: model.accumulate_flat(gradients_of(0)),
            lambda: model.discard_gradients(),
            lambda: optimizer.step(),
            lambda: optimizer.save(),
            lambda: optimizer.load(b""),
            lambda: setattr(optimizer, "learning_rate", 3),
        ):
            with self.assertRaises(trireme.InvalidStateError):
                call()

    def test_calls_on_the_model_are_refused_and_change_nothing(self):
        for strategy in STRATEGIES:
            for where in ("before", "after", "rule"):
                there, visits = [], []

                def hook(bucket):
                    if bucket.moment == where:
                        visits.append(where)
                        self.refuses(*there)

                def rule(update):
                    for i, g in enumerate(update.gradients):
                        update.parameters[i] -= g
                    if where == "rule":
                        visits.append(where)
                        self.refuses(*there)

                model = build(self.alone(), strategy, buckets=trireme.Buckets(hook=hook))
                optimizer = trireme.Optimizer(model, rule)
                there += [model, optimizer]
                model.accumulate_flat(gradients_of(0))
                optimizer.step()
                self.assertTrue(visits)
                want = [-gradient_of(0, i) for i in range(ELEMENTS)]
                self.assertEqual(model.get_parameters().tolist(), want)
                optimizer.close()
                model.close()
                del hook, rule, model, optimizer, there

    def test_parts_of_a_later_library_are_larger(self):
        words = (ctypes.c_uint64 * 10)(7, 2, 3, 0, 99, 8, 4, 5, 3, 99)
        part = trireme._native.trireme_bucket_part
        parts = ctypes.cast(words, ctypes.POINTER(part))
        raw = trireme._native.trireme_bucket(parts=parts, part_count=2, part_bytes=40)
        found = [tuple(part) for part in trireme._hook._parts(raw)]
        self.assertEqual(found, [(7, 2, 3, 0), (8, 4, 5, 3)])

    def test_a_model_may_be_closed_inside(self):
        for strategy in STRATEGIES:
            for where in ("after", "rule"):

                def body(group):
                    there, visits = [], []

                    def close():
                        visits.append(where)
                        for each in there:
                            each.close()

                    def hook(bucket):
                        if bucket.moment == where:
                            close()

                    def rule(update):
                        if where == "rule":
                            close()

                    model = build(group, strategy, buckets=trireme.Buckets(hook=hook))
                    optimizer = trireme.Optimizer(model, rule)
                    there += [model, optimizer]
                    model.accumulate_flat(gradients_of(group.rank))
                    try:
                        optimizer.step()
                    except trireme.CallbackError as problem:
                        # The library does not call the closed rule for the remaining pieces.
                        self.assertIn("rank 0", str(problem))
                    self.assertTrue(model.closed and optimizer.closed)
                    group.barrier()
                    return len(visits)

                self.assertTrue(all(visits > 0 for visits in self.ranks(2, body)))
