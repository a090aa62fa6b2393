"""Attention over positions of several ranks: bits, gradients, callbacks, refusals."""

import array
import math
import unittest

from support import TestCase, run_ranks, trireme

POSITIONS, HEADS, KV_HEADS, WIDTH, CHUNKS = 11, 4, 2, 3, 8


def inputs(salt, columns):
    """Rows that all ranks know."""
    return [
        [((p * 31 + c * 7 + salt * 17) % 23 - 11) / 8 for c in range(columns)]
        for p in range(POSITIONS)
    ]


Q, K, V = inputs(1, HEADS * WIDTH), inputs(2, KV_HEADS * WIDTH), inputs(3, KV_HEADS * WIDTH)
D_OUTPUT = inputs(4, HEADS * WIDTH)


def head(row, number):
    return row[number * WIDTH : (number + 1) * WIDTH]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def plain_attention(causal, starts=()):
    """Outputs of a plain computation of one process."""
    rows = []
    for p in range(POSITIONS):
        row = []
        for h in range(HEADS):
            keys = [
                t
                for t in range(POSITIONS)
                if (t <= p or not causal)
                and sum(s <= t for s in starts) == sum(s <= p for s in starts)
            ]
            kv = h // (HEADS // KV_HEADS)
            weights = [
                math.exp(dot(head(Q[p], h), head(K[t], kv)) / math.sqrt(WIDTH)) for t in keys
            ]
            for d in range(WIDTH):
                row.append(sum(w * head(V[t], kv)[d] for w, t in zip(weights, keys)) / sum(weights))
        rows.append(row)
    return rows


def own(context, rows):
    return array.array("f", (x for p in context.positions() for x in rows[p]))


def zeros(count):
    return array.array("f", [0] * count)


class Rank:
    """Arrays of one rank, and its passes."""

    def __init__(self, context):
        self.context, info = context, context.info
        self.given = [own(context, rows) for rows in (Q, K, V)]
        self.d_output = own(context, D_OUTPUT)
        self.output, self.kept = zeros(info.q_count), zeros(info.kept_count)
        self.gradients = [zeros(info.q_count), zeros(info.kv_count), zeros(info.kv_count)]

    def forward(self, **options):
        self.context.attention_forward(*self.given, self.output, self.kept, **options)

    def backward(self, **options):
        self.context.attention_backward(
            *self.given, self.output, self.kept, self.d_output, *self.gradients, **options
        )

    def rows(self):
        """Outputs and gradients by position."""
        found = {}
        for at, position in enumerate(self.context.positions()):
            found[position] = [
                values[at * columns : (at + 1) * columns].tobytes()
                for values, columns in zip(
                    (self.output, *self.gradients),
                    (HEADS * WIDTH, HEADS * WIDTH, KV_HEADS * WIDTH, KV_HEADS * WIDTH),
                )
            ]
        return found


def context_of(group, **options):
    options = {"heads": HEADS, "kv_heads": KV_HEADS, "width": WIDTH, "causal": True, **options}
    return trireme.Context(group, "layer 3", POSITIONS, CHUNKS, **options)


def forward_pair(call):
    q, k, v = call.q.tolist(), call.k.tolist(), call.v.tolist()
    for row in range(call.q_count):
        keys = range(call.visible_first[row], call.visible_end[row])
        for h in range(call.heads):
            at, kv = row * call.heads + h, h // (call.heads // call.kv_heads)
            query = q[at * call.width : (at + 1) * call.width]
            places = [(t * call.kv_heads + kv) * call.width for t in keys]
            scores = [call.scale * dot(query, k[p : p + call.width]) for p in places]
            most = max(scores, default=-math.inf)
            weights = [math.exp(s - most) for s in scores]
            call.maximum[at], call.sum[at] = most, sum(weights)
            for d in range(call.width):
                call.output[at * call.width + d] = sum(
                    w * v[p + d] for w, p in zip(weights, places)
                )


def backward_pair(call):
    q, k, v, gradient = (x.tolist() for x in (call.q, call.k, call.v, call.d_output))
    dq, dk, dv = [0.0] * len(call.dq), [0.0] * len(call.dk), [0.0] * len(call.dv)
    for row in range(call.q_count):
        for h in range(call.heads):
            at, kv = row * call.heads + h, h // (call.heads // call.kv_heads)
            start = at * call.width
            for t in range(call.visible_first[row], call.visible_end[row]):
                p = (t * call.kv_heads + kv) * call.width
                score = call.scale * dot(q[start : start + call.width], k[p : p + call.width])
                weight = math.exp(score - call.total_maximum[at]) / call.total_sum[at]
                product = dot(gradient[start : start + call.width], v[p : p + call.width])
                ds = weight * (product - call.delta[at]) * call.scale
                for d in range(call.width):
                    dq[start + d] += ds * k[p + d]
                    dk[p + d] += ds * q[start + d]
                    dv[p + d] += weight * gradient[start + d]
    for target, values in ((call.dq, dq), (call.dk, dk), (call.dv, dv)):
        target[:] = memoryview(array.array("f", values))


class ContextTest(TestCase):
    def whole(self, world_size, starts=(), **options):
        """Outputs and gradients of all positions."""

        def body(group):
            with context_of(group, **options) as context:
                rank = Rank(context)
                rank.forward(sequence_starts=starts)
                rank.backward(sequence_starts=starts)
                info = context.info
                assert (info.forward_passes, info.backward_passes) == (1, 1)
                assert info.held_memory == max(info.forward_memory, info.backward_memory)
                return rank.rows()

        found = {}
        for rows in self.ranks(world_size, body):
            found.update(rows)
        self.assertEqual(sorted(found), list(range(POSITIONS)))
        return found

    def test_every_number_of_ranks_gives_the_same_bits(self):
        for starts in ((), (4, 9)):
            first = self.whole(1, starts)
            wanted = plain_attention(True, starts)
            for position, (output, *_) in first.items():
                for got, want in zip(array.array("f", output), wanted[position]):
                    self.assertAlmostEqual(got, want, places=5)
            for world_size in (2, 3, 4):
                for layout in ("contiguous", "zigzag"):
                    for method in ("gather", "ring"):
                        same = self.whole(world_size, starts, layout=layout, method=method)
                        self.assertEqual(same, first, (world_size, layout, method))

    def test_functions_of_the_caller_compute_pairs(self):
        near = self.whole(1)
        first = self.whole(1, forward=forward_pair, backward=backward_pair)
        for position, arrays in first.items():
            for got, want in zip(arrays, near[position]):
                for a, b in zip(array.array("f", got), array.array("f", want)):
                    self.assertAlmostEqual(a, b, places=5)
        options = {"forward": forward_pair, "backward": backward_pair, "method": "ring"}
        self.assertEqual(self.whole(3, **options), first)

    def test_positions_follow_the_layout(self):
        def body(group):
            with context_of(group, layout="zigzag") as context:
                assert list(context.positions(1)) == [2, 3, 4, 5, 6, 7]
                return context.positions(), context.info.rows

        found = self.ranks(2, body)
        self.assertEqual(found[0], ([0, 1, 8, 9, 10], 5))
        self.assertEqual(found[1], (range(2, 8), 6))

    def test_an_exception_of_a_function_comes_out_on_its_rank(self):
        def body(group):
            fails = group.rank == 1

            def forward(call):
                if fails and (call.q_chunk, call.kv_chunk) == (4, 2):
                    raise ZeroDivisionError("of the test")
                forward_pair(call)

            context = context_of(group, forward=forward, backward=backward_pair)
            rank = Rank(context)
            try:
                rank.forward()
            except Exception as error:
                fails = False
                rank.forward()  # the next pass works
                return type(error), str(error)
            return None

        first, second = self.ranks(2, body)
        self.assertEqual(second, (ZeroDivisionError, "of the test"))
        self.assertIs(first[0], trireme.CallbackError)
        self.assertIn("rank 1 for chunk pair (4, 2)", first[1])

    def test_a_context_holds_its_functions(self):
        context = context_of(self.alone(), forward=lambda c: forward_pair(c), backward=print)
        rank = Rank(context)
        rank.forward()
        self.assertAlmostEqual(rank.output[0], plain_attention(True)[0][0], places=5)

    def test_ranks_that_differ_all_get_a_mismatch(self):
        def body(group):
            Rank(context_of(group, causal=group.rank == 0)).forward()

        for outcome in run_ranks(2, body):
            self.assertIsInstance(outcome, trireme.MismatchError)

    def test_a_rank_that_does_not_come_is_a_timeout(self):
        def body(group):
            if group.rank:
                return None
            with self.assertRaisesRegex(trireme.TimeoutError, "the deadline is 0.05 s"):
                Rank(context_of(group, method="ring")).forward(timeout=0.05)
            return True

        self.assertEqual(self.ranks(2, body), [True, None])

    def test_narrow_numbers_are_memory_of_16_bits(self):
        with trireme.Context(self.alone(), "x", 1, 1, heads=1, width=1, dtype="bf16") as context:
            one = array.array("H", [0x3F80])
            output, kept = array.array("H", [0]), zeros(2)
            context.attention_forward(one, one, one, output, kept)
            self.assertEqual((output.tolist(), kept.tolist()), ([0x3F80], [1, 1]))

    def test_wrong_arguments_are_refused(self):
        group = self.alone()
        with self.assertRaises(TypeError):
            trireme.Context(None, "x", 1, 1, heads=1, width=1)
        with self.assertRaisesRegex(TypeError, "go together"):
            context_of(group, forward=forward_pair)
        for options in (
            {"heads": 0},
            {"heads": -1},
            {"kv_heads": 3},
            {"width": 0},
            {"layout": "zig"},
            {"method": "rings"},
            {"scale": math.nan},
        ):
            with self.assertRaises(trireme.InvalidArgumentError):
                context_of(group, **options)
        with self.assertRaises(trireme.UnsupportedError):
            context_of(group, dtype="f64")
        context = context_of(group)
        rank = Rank(context)
        for name, wrong, problem in (
            ("given", [zeros(1), *rank.given[1:]], "q has 1 elements, but the context wants 132"),
            ("output", zeros(2), "output has 2 elements"),
            ("kept", zeros(3), "kept has 3 elements, but the context wants 88"),
        ):
            changed = Rank(context)
            setattr(changed, name, wrong)
            with self.assertRaisesRegex(trireme.InvalidArgumentError, problem):
                changed.forward()
        rank.output = bytes(4 * 132)
        with self.assertRaisesRegex(TypeError, "output is read-only"):
            rank.forward()
        rank.output = array.array("d", [0] * 132)
        with self.assertRaisesRegex(TypeError, "output has elements of type f64"):
            rank.forward()
        rank.output = rank.given[0]
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "q and arrays.output overlap"):
            rank.forward()
        rank.output = zeros(132)
        for starts in ((11,), (3, 3), (-1,)):
            with self.assertRaises(trireme.InvalidArgumentError):
                rank.forward(sequence_starts=starts)
        with self.assertRaises(trireme.InvalidArgumentError):
            context.positions(1)
        rank.forward()
        context.close()
        with self.assertRaises(trireme.InvalidHandleError):
            rank.forward()


if __name__ == "__main__":
    unittest.main()
