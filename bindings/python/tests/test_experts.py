"""Experts on several ranks: rows, sums and gradients of plain loops, micro-batches, refusals."""

import array
import math
import unittest

from support import TestCase, trireme

ROWS, EXPERTS, TOP_K, WIDTH, LEAVES = 13, 5, 2, 3, 5
LEAF_ROWS = [3, 0, 5, 1, 4]
D_MEAN = [0.5, -1, 2, 0, 1]


def score(row, expert, batch=0):
    return ((row * 31 + expert * 17 + batch * 5) % 23 - 11) / 4


def element(row, column):
    return ((row * 7 + column * 3) % 11 - 5) / 4


def d_output(row, column):
    return ((row * 5 + column) % 9 - 4) / 8


def choices(row, batch=0):
    """The experts of a row, and all probabilities."""
    scores = [score(row, expert, batch) for expert in range(EXPERTS)]
    total = sum(map(math.exp, scores))
    best = sorted(range(EXPERTS), key=lambda expert: (-scores[expert], expert))
    return best[:TOP_K], [math.exp(value) / total for value in scores]


def plain_row(row, batch=0):
    """Output, and gradients of the row and of its scores. Expert e multiplies by e + 1."""
    chosen, p = choices(row, batch)
    output = [sum(p[e] * (e + 1) for e in chosen) * element(row, c) for c in range(WIDTH)]
    slopes = [sum(p[e] * (e + 1) for e in chosen) * d_output(row, c) for c in range(WIDTH)]
    product = sum(d_output(row, c) * element(row, c) for c in range(WIDTH))
    d_p = [D_MEAN[e] / ROWS + ((e + 1) * product if e in chosen else 0) for e in range(EXPERTS)]
    mean = sum(p[e] * d_p[e] for e in range(EXPERTS))
    return output, slopes, [p[e] * (d_p[e] - mean) for e in range(EXPERTS)]


def floats(values):
    return array.array("f", values)


def near(got, wanted):
    return len(got) == len(wanted) and all(
        abs(a - b) < 1e-5 * (1 + abs(b)) for a, b in zip(got, wanted)
    )


def own_rows(info):
    """The rows of this rank, by leaf."""
    first = sum(LEAF_ROWS[: info.own_leaves.start])
    mine = [LEAF_ROWS[leaf] for leaf in info.own_leaves]
    return range(first, first + sum(mine)), mine


def multiply(experts, routing, rows):
    """Each expert of this rank on the rows that it has received."""
    out = floats([0] * len(rows))
    for expert in experts.info.own_experts:
        for leaf in range(experts.info.leaves):
            for row in routing.segment(expert, leaf):
                for i in range(row * WIDTH, (row + 1) * WIDTH):
                    out[i] = (expert + 1) * rows[i]
    return out


def train(group, experts, batches):
    """Passes of micro-batches: all forward, and then all backward."""
    own, mine = own_rows(experts.info)
    started, found = [], []
    for batch in batches:
        scores = floats(score(row, e, batch) for row in own for e in range(EXPERTS))
        started.append((batch, scores, experts.route(scores, leaf_rows=mine)))
    kept = []
    for batch, scores, routing in started:
        data = floats(element(row, c) for row in own for c in range(WIDTH))
        received = floats([0] * (routing.received_rows * WIDTH))
        experts.dispatch(routing, data, received)
        output = floats([0] * len(data))
        returned = floats([0] * (routing.sent_rows * WIDTH))
        results = multiply(experts, routing, received)
        experts.combine(routing, results, output, returned=returned)
        kept.append((batch, scores, routing, output, returned))
    for batch, scores, routing, output, returned in reversed(kept):
        gradients = floats(d_output(row, c) for row in own for c in range(WIDTH))
        d_results = floats([0] * (routing.received_rows * WIDTH))
        d_weights = floats([0] * len(routing.weights))
        experts.combine_backward(routing, gradients, returned, d_results, d_weights)
        d_rows = floats([0] * len(gradients))
        experts.dispatch_backward(routing, multiply(experts, routing, d_results), d_rows)
        d_scores = floats([0] * len(scores))
        experts.route_backward(
            routing, scores, d_weights, d_scores, d_mean_probabilities=array.array("d", D_MEAN)
        )
        for i, row in enumerate(own):
            wanted = plain_row(row, batch)
            assert list(routing.chosen[i * TOP_K : (i + 1) * TOP_K]) == choices(row, batch)[0]
            assert near(output[i * WIDTH : (i + 1) * WIDTH], wanted[0])
            assert near(d_rows[i * WIDTH : (i + 1) * WIDTH], wanted[1])
            assert near(d_scores[i * EXPERTS : (i + 1) * EXPERTS], wanted[2])
        found.append((bytes(output), bytes(d_rows), bytes(d_scores), routing.mean_probabilities))
    return found


class ExpertsTest(TestCase):
    def test_outputs_and_gradients_are_those_of_plain_loops(self):
        def body(group):
            with trireme.Experts(
                group, "moe 3", EXPERTS, TOP_K, width=WIDTH, rows=ROWS, leaves=LEAVES
            ) as experts:
                found = train(group, experts, [0, 1])
                info = experts.info
                assert info.routes == info.dispatches == info.combines_backward == 2
                assert info.held_memory == info.pass_memory
                return found

        alone = self.ranks(1, body)[0]
        for world_size in (2, 3, 5):
            parts = self.ranks(world_size, body)
            for batch in range(2):
                for array_number in range(3):
                    joined = b"".join(part[batch][array_number] for part in parts)
                    self.assertEqual(joined, alone[batch][array_number])
                self.assertEqual({str(part[batch][3]) for part in parts}, {str(alone[batch][3])})

    def test_padding_and_what_is_dropped(self):
        def body(group):
            with trireme.Experts(
                group,
                "moe 3",
                2,
                1,
                width=1,
                rows=4,
                dtype="f64",
                scores="probabilities",
                normalize=True,
                capacity=1,
                drop="lowest_weight",
            ) as experts:
                routing = experts.route(
                    floats([1, 0, 0.5, 0.25, 9, 9, 0, 3]), padding=bytes([0, 0, 1, 0])
                )
                assert list(routing.chosen) == [0, -1, -1, 1]
                assert list(routing.weights) == [1, 1, 0, 1]
                ranks = group.world_size
                assert routing.expert_rows == [2 * ranks, ranks]
                assert routing.expert_dropped == [ranks, 0]
                assert routing.real_rows == 3 * ranks
                received = array.array("d", [0] * routing.received_rows)
                experts.dispatch(routing, array.array("d", [7, 8, 9, 10]), received)
                out = array.array("d", [99] * 4)
                experts.combine(routing, received, out)
                return list(out)

        for world_size in (1, 2, 3):
            self.assertEqual(self.ranks(world_size, body), [[7, 0, 0, 10]] * world_size)

    def test_ranks_that_differ_are_a_mismatch_on_all(self):
        def body(group):
            experts = trireme.Experts(group, "x", 2, 1, width=1, rows=1, normalize=group.rank == 0)
            try:
                experts.route(floats([0, 1]))
            except trireme.MismatchError as error:
                return 'route pass of experts "x"' in str(error)
            return False

        self.assertEqual(self.ranks(2, body), [True, True])

    def test_a_rank_without_experts_has_no_segment(self):
        def body(group):
            with trireme.Experts(group, "x", 1, 1, width=1, rows=1) as experts:
                routing = experts.route(floats([1]))
                if group.rank == 1:
                    return routing.segment(0, 1)
                try:
                    routing.segment(0, 0)
                except trireme.InvalidArgumentError as error:
                    return "this rank has no expert, and leaves are 0 to 1" in str(error)
                return False

        self.assertEqual(self.ranks(2, body), [True, range(1, 2)])

    def test_wrong_arguments_are_refused(self):
        group = self.alone()
        refused = self.assertRaisesRegex
        invalid = trireme.InvalidArgumentError
        with refused(invalid, "options.top_k is 3"):
            trireme.Experts(group, "x", 2, 3, width=1, rows=1)
        with refused(invalid, "is 'last' meant"):
            trireme.Experts(group, "x", 2, 1, width=1, rows=1, drop="lost")
        with refused(trireme.UnsupportedError, "f32, f64, f16 or bf16"):
            trireme.Experts(group, "x", 2, 1, width=1, rows=1, dtype="i32")
        with self.assertRaises(TypeError):
            trireme.Experts(None, "x", 2, 1, width=1, rows=1)
        experts = trireme.Experts(group, "x", 2, 1, width=2, rows=3, leaves=2)
        with refused(invalid, "scores has 3 elements, no multiple of the 2 experts"):
            experts.route(floats([0, 1, 2]))
        with refused(TypeError, "scores has elements of type f64"):
            experts.route(array.array("d", [0, 1]))
        with refused(invalid, "leaf_rows has 1 numbers, but this rank has 2 leaves"):
            experts.route(floats([0, 1]), leaf_rows=[1])
        with refused(invalid, "padding has 2 elements, but must have 1"):
            experts.route(floats([0, 1]), leaf_rows=[1, 0], padding=bytes(2))
        with refused(invalid, "row 0 of rank 0 has, for expert 1, a score that is no finite"):
            experts.route(floats([0, math.nan]), leaf_rows=[0, 1])
        self.assertEqual(experts.route(bytes(floats([0, 1])), leaf_rows=[1, 0]).chosen[0], 1)
        with refused(ValueError, "scores has 3 bytes, no multiple of 4"):
            experts.route(bytes(3), leaf_rows=[1, 0])
        with trireme.Buffer(group, 8) as memory:
            memory.memory[:] = bytes(floats([0, 1]))
            self.assertEqual(experts.route(memory, leaf_rows=[0, 1]).chosen[0], 1)
        flags = memoryview(bytes([1, 0])).cast("?")
        marked = experts.route(floats([0, 1, 1, 0]), leaf_rows=[1, 1], padding=flags)
        self.assertEqual(list(marked.chosen), [-1, 0])
        with refused(invalid, "padding has 2 elements, but must have 0"):
            experts.route(floats([]), leaf_rows=[0, 0], padding=flags)
        with refused(invalid, 'options.name is "x", which another layer of experts'):
            trireme.Experts(group, "x", 2, 1, width=1, rows=1)
        routing = experts.route(floats([0, 1, 1, 0]), leaf_rows=[1, 1])
        self.assertEqual(routing.segment(0, 1), range(0, 1))
        self.assertEqual(routing.segment(1, 0), range(1, 2))
        with refused(invalid, "expert 2 and leaf 0: this rank has experts 0 to 1"):
            routing.segment(2, 0)
        rows, out = floats([1, 2, 3, 4]), floats([0] * 4)
        with refused(invalid, "received has 3 elements, but must have 4"):
            experts.dispatch(routing, rows, out[:3])
        with refused(TypeError, "read-only"):
            experts.dispatch(routing, rows, bytes(rows))
        with refused(trireme.InvalidStateError, "needs as many combine passes"):
            experts.combine_backward(routing, rows, rows, out, floats([0, 0]))
        other = trireme.Experts(group, "y", 2, 1, width=2, rows=3, leaves=2)
        with refused(invalid, "kept has not the bytes"):
            other.dispatch(routing, rows, out)
        longer = trireme.Experts(group, "longer", 1000, 1, width=2, rows=3, leaves=2)
        with refused(invalid, "it is another layer's"):
            longer.dispatch(routing, rows, out)
        experts.dispatch(routing, rows, out)
        self.assertEqual(list(out), [3, 4, 1, 2])
        experts.close()
        with self.assertRaises(trireme.InvalidHandleError):
            experts.dispatch(routing, rows, out)


if __name__ == "__main__":
    unittest.main()
