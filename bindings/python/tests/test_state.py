"""One copy of the parameters for ranks that share memory, and the state of training."""

import array
import math
import unittest

from support import TestCase, needs_numpy, numpy, trireme

STRATEGIES = ("data_parallel", "zero1", "zero2", "zero3", "hybrid_shard")
SHAPES = {"a": (3, 2), "frozen": (3,), "b": (5,), "scalar": (), "c": (17,)}
ELEMENTS = sum(math.prod(shape) for shape in SHAPES.values())
SAVED_AT = 2
STEPS = 4


def build(group, strategy, share="auto", **options):
    """Four units; "a" and "frozen" are one."""
    ranks = 2 if group.world_size % 2 == 0 else group.world_size
    shards = trireme.Shards(ranks=ranks if strategy == "hybrid_shard" else 0, share=share)
    units = trireme.Units(minimum_bytes=1)
    model = trireme.Model(group, strategy, units=units, shards=shards, **options)
    for name, shape in SHAPES.items():
        unit = "first" if name in ("a", "frozen") else None
        model.add_parameter(name, shape, unit=unit, frozen=name == "frozen")
    model.seal()
    return model


def start_values():
    return array.array("f", [i % 7 - 3 for i in range(ELEMENTS)])


def train(model, optimizer, steps):
    """A step for each number: the gradients are of the step and the rank."""
    rank = model.communicator.rank
    for step in steps:
        with model.backward():
            for number, (name, shape) in reversed(list(enumerate(SHAPES.items()))):
                if name != "frozen":
                    count = math.prod(shape)
                    gradient = [
                        (3 * i + 5 * step + 7 * rank + number) % 11 - 4.5 for i in range(count)
                    ]
                    model.gradient_ready(name, array.array("f", gradient))
        optimizer.learning_rate = 0.1 / (1 + step)
        optimizer.step()


def parts_of(world_size, strategy, share, rule="adamw", steps=SAVED_AT):
    """A body that answers what a rank saves after so many steps, and its parameters at the end."""

    def body(group):
        model = build(group, strategy, share=share)
        model.set_parameters(start_values())
        optimizer = trireme.Optimizer(model, rule, clipping=3)
        train(model, optimizer, range(steps))
        state = optimizer.save()
        train(model, optimizer, range(steps, STEPS))
        return state, model.get_parameters().tobytes()

    return body


def damaged(state, position):
    copy = bytearray(state)
    copy[position] ^= 1
    return copy


class ShareTest(TestCase):
    def test_who_shares_and_that_it_trains_the_same(self):
        def body(group, strategy, share):
            model = build(group, strategy, share=share)
            model.set_parameters(start_values() if group.rank == 0 else None)
            optimizer = trireme.Optimizer(model, "adamw", weight_decay=0.1)
            train(model, optimizer, range(2))
            for unit in range(4):
                model.gather_unit(unit)
            seen = [value for name in ("a", "frozen", "b") for value in view(model, name)]
            read_only = model.parameter("c").readonly
            for unit in range(4):
                model.release_unit(unit)
            gathers = model.statistics().gathers
            values = model.get_parameters()
            self.assertEqual(seen, values[:14].tolist())
            return model.info().shared_bytes, read_only, gathers, values.tobytes()

        def view(model, name):
            return memoryview(model.parameter(name).tobytes()).cast("f").tolist()

        for strategy in STRATEGIES:
            bits = None
            for share in ("auto", "always", "never"):
                if (strategy, share) == ("data_parallel", "always"):
                    continue
                sharded = strategy in ("zero3", "hybrid_shard")
                shares = share == "always" or (share == "auto" and sharded)
                for outcome in self.ranks(2, lambda group: body(group, strategy, share)):
                    shared_bytes, read_only, gathers, values = outcome
                    self.assertEqual(shared_bytes, 4 * ELEMENTS if shares else 0)
                    self.assertEqual(read_only, shares)
                    self.assertEqual(gathers, 4 if sharded and not shares else 0)
                    bits = bits or values
                    self.assertEqual(values, bits, (strategy, share))

    def test_what_cannot_be_shared_is_refused(self):
        group = self.alone()
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "zero1 trains the same"):
            trireme.Model(group, "data_parallel", shards=trireme.Shards(share="always"))
        for share in ("sometimes", 3, -1):
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Model(group, "zero3", shards=trireme.Shards(share=share))

    def test_ranks_that_ask_for_different_sharing_are_told(self):
        def body(group, strategies, shares, named):
            model = trireme.Model(
                group, strategies[group.rank], shards=trireme.Shards(share=shares[group.rank])
            )
            model.add_parameter("weight", [3])
            with self.assertRaisesRegex(trireme.MismatchError, named):
                model.seal()
            group.barrier()  # the group lives on

        for strategies, shares, named in (
            (("zero1", "zero1"), ("always", "never"), r"options\.shards\.share"),
            (("zero3", "zero3"), ("never", "auto"), r"options\.shards\.share"),
            (("zero1", "zero3"), ("auto", "auto"), "strategy"),
        ):
            self.ranks(2, lambda group: body(group, strategies, shares, named))


class RangesTest(TestCase):
    def test_ranges_hold_every_element_once(self):
        def body(group, strategy, share):
            model = build(group, strategy, share=share, gradients="sum")
            model.set_parameters(start_values())
            optimizer = trireme.Optimizer(model, "adam")
            train(model, optimizer, range(1))
            values = model.get_parameters()
            found = []
            for piece in optimizer.ranges():
                self.assertEqual(piece.dtype, "f32")
                self.assertEqual(list(SHAPES)[piece.parameter], piece.name)
                self.assertEqual(piece.shape, SHAPES[piece.name])
                self.assertEqual(len(piece.data), piece.count)
                self.assertGreater(piece.count, 0)
                if piece.kind == "parameter":
                    flat = sum(math.prod(s) for s in list(SHAPES.values())[: piece.parameter])
                    first = flat + piece.first
                    self.assertEqual(
                        piece.data.tolist(), values[first : first + piece.count].tolist()
                    )
                    self.assertEqual(piece.vector, 0)
                else:
                    self.assertEqual(piece.kind, "optimizer")
                    for value in piece.data.tolist() if piece.vector == 1 else ():
                        self.assertGreaterEqual(value, 0)  # v adds squares
                kind = (piece.kind, piece.vector, piece.name)
                found += [(*kind, piece.first + i) for i in range(piece.count)]
            return found

        wanted = sorted(
            (kind, vector, name, i)
            for name, shape in SHAPES.items()
            for kind, vector in (("parameter", 0), ("optimizer", 0), ("optimizer", 1))
            for i in range(math.prod(shape))
            if kind == "parameter" or name != "frozen"
        )
        for strategy in STRATEGIES:
            for share in ("auto", "never"):
                for world_size in (1, 2, 3):
                    results = self.ranks(world_size, lambda group: body(group, strategy, share))
                    self.assertEqual(sorted(sum(results, [])), wanted, (strategy, world_size))

    def test_a_matrix_of_adafactor_has_rows_and_columns(self):
        model = trireme.Model(self.alone(), "zero1")
        model.add_parameter("matrix", [2, 3])
        model.seal()
        optimizer = trireme.Optimizer(
            model,
            trireme.Adafactor(beta2_decay=-1, max_update_rms=0.5, min_parameter_rms=2),
            learning_rate=0.5,
        )
        model.accumulate_flat(array.array("f", [1, 2, 3, 4, 5, 6]))
        optimizer.step()
        squares = [value * value for value in model.get_parameters()]
        self.assertAlmostEqual(math.sqrt(sum(squares) / 6), 0.5 * 2 * 0.5, places=6)
        model.accumulate_flat(array.array("f", bytes(4 * 6)))
        optimizer.step()  # the means of squares halve
        found = {piece.kind: piece for piece in optimizer.ranges()}
        self.assertEqual(sorted(found), ["columns", "parameter", "rows"])
        for kind, means in (("rows", [14 / 3, 77 / 3]), ("columns", [17 / 2, 29 / 2, 45 / 2])):
            self.assertEqual(found[kind].shape, (len(means),))
            for have, mean in zip(found[kind].data, means):
                self.assertAlmostEqual(have, mean / 2, places=5)

    def test_a_range_outlives_the_optimizer_and_the_model(self):
        model = build(self.alone(), "zero1")
        model.set_parameters(start_values())
        optimizer = trireme.Optimizer(model, trireme.SGD(momentum=0.5))
        first = optimizer.ranges()[0]
        optimizer.close()
        model.close()
        del model, optimizer
        self.assertEqual(first.data.tolist(), start_values()[:6].tolist())

    def test_what_is_written_to_a_range_is_the_state(self):
        model = build(self.alone(), "zero2")
        optimizer = trireme.Optimizer(model, trireme.SGD(momentum=0.5), learning_rate=1)
        train(model, optimizer, range(1))
        for piece in optimizer.ranges():
            for i in range(piece.count):
                piece.data[i] = 8 if piece.kind == "parameter" else 4
        model.accumulate_flat(array.array("f", bytes(4 * ELEMENTS)))
        optimizer.learning_rate = 1
        optimizer.step()  # 8 - 0.5 * 4
        values = model.get_parameters().tolist()
        self.assertEqual(values, [6.0] * 6 + [8.0] * 3 + [6.0] * 23)

    @needs_numpy
    def test_numpy_sees_the_librarys_own_memory(self):
        model = build(self.alone(), "zero1")
        optimizer = trireme.Optimizer(model, "sgd")
        weight = optimizer.ranges()[0]
        numpy.asarray(weight.data)[:] = 2.5
        self.assertEqual(model.get_parameters()[:6].tolist(), [2.5] * 6)


class SaveTest(TestCase):
    def test_a_training_that_is_resumed_has_the_same_bits(self):
        for strategy in STRATEGIES:
            for world_size in (1, 2, 3):
                saved = self.ranks(world_size, parts_of(world_size, strategy, "auto"))
                self.assertIs(type(saved[0][0]), bytes)

                def body(group):
                    model = build(group, strategy)
                    optimizer = trireme.Optimizer(model, "adamw", learning_rate=7, clipping=3)
                    state = saved[group.rank][0]
                    # Any memory will do.
                    optimizer.load((state, bytearray(state), memoryview(state))[group.rank])
                    self.assertEqual(optimizer.step_count, SAVED_AT)
                    self.assertEqual(optimizer.learning_rate, 0.1 / SAVED_AT)
                    self.assertEqual(optimizer.save(), state)
                    train(model, optimizer, range(SAVED_AT, STEPS))
                    return model.get_parameters().tobytes()

                for rank, values in enumerate(self.ranks(world_size, body)):
                    self.assertEqual(values, saved[rank][1], (strategy, world_size))

    def test_damaged_state_is_refused_by_all_and_changes_nothing(self):
        for strategy in STRATEGIES:
            saved = self.ranks(2, parts_of(2, strategy, "auto"))

            def body(group):
                model = build(group, strategy)
                model.set_parameters(start_values())
                optimizer = trireme.Optimizer(model, "adamw", clipping=3)
                state = saved[group.rank][0]
                for position in (0, len(saved[1][0]) // 2, len(saved[1][0]) - 1):
                    with self.assertRaises(trireme.CorruptError):
                        optimizer.load(state if group.rank == 0 else damaged(state, position))
                with self.assertRaises(trireme.CorruptError):
                    optimizer.load(state if group.rank == 0 else state[:-1])
                with self.assertRaises(trireme.InvalidArgumentError):
                    optimizer.load(state if group.rank == 0 else b"")
                self.assertEqual(optimizer.step_count, 0)
                self.assertEqual(model.get_parameters(), start_values())
                optimizer.load(state)
                self.assertEqual(optimizer.step_count, SAVED_AT)

            self.ranks(2, body)

    def test_the_state_of_another_training_is_refused(self):
        saved = self.ranks(2, parts_of(2, "zero3", "auto"))

        def body(group, strategy, rule, text):
            model = build(group, strategy)
            optimizer = trireme.Optimizer(model, rule)
            state = saved[(group.rank + 1 if text == "rank" else group.rank) % 2][0]
            with self.assertRaisesRegex(trireme.InvalidArgumentError, text):
                optimizer.load(state)
            group.barrier()

        for world_size, strategy, rule, text in (
            (3, "zero3", "adamw", "world size"),
            (1, "zero3", "adamw", "world size"),
            (2, "zero2", "adamw", "strategy"),
            (2, "zero3", "sgd", "other"),
            (2, "zero3", "adamw", "rank"),
        ):
            self.ranks(world_size, lambda group: body(group, strategy, rule, text))

    def test_parts_of_different_steps_are_a_mismatch(self):
        early = self.ranks(2, parts_of(2, "zero3", "auto"))
        late = self.ranks(2, parts_of(2, "zero3", "auto", steps=SAVED_AT + 1))

        def body(group):
            model = build(group, "zero3")
            optimizer = trireme.Optimizer(model, "adamw", clipping=3)
            with self.assertRaisesRegex(trireme.MismatchError, "number of steps is 2 on rank 0"):
                optimizer.load((early, late)[group.rank][group.rank][0])
            self.assertEqual(optimizer.step_count, 0)
            optimizer.load(early[group.rank][0])

        self.ranks(2, body)

    def test_wrong_calls_are_refused(self):
        model = build(self.alone(), "zero1")
        optimizer = trireme.Optimizer(model, "sgd")
        state = optimizer.save()
        with self.assertRaisesRegex(TypeError, "not str"):
            optimizer.load("state")
        with self.assertRaisesRegex(TypeError, "not NoneType"):
            optimizer.load(None)
        with self.assertRaisesRegex(ValueError, "contiguous"):
            optimizer.load(memoryview(state)[::2])
        model.begin_backward()
        with self.assertRaises(trireme.InvalidStateError):
            optimizer.save()
        with self.assertRaises(trireme.InvalidStateError):
            optimizer.load(state)
        model.discard_gradients()
        optimizer.load(state)
        optimizer.close()
        for call in (optimizer.ranges, optimizer.save, lambda: optimizer.load(state)):
            with self.assertRaisesRegex(trireme.InvalidHandleError, "the optimizer is closed"):
                call()


if __name__ == "__main__":
    unittest.main()
