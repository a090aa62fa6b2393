"""Vocabularies that ranks split: embeddings, losses and gradients of plain loops, refusals."""

import array
import math
import unittest

from support import TestCase, trireme

CLASSES, WIDTH = 11, 3
TOKENS = [0, 10, 4, 4, 7]
IGNORED = -1


def logit(row, column):
    return ((row * 31 + column * 17) % 23 - 11) / 4


def plain_loss(row, target, smoothing, z_loss):
    logits = [logit(row, column) for column in range(CLASSES)]
    total = math.log(sum(map(math.exp, logits)))
    loss = total - (1 - smoothing) * logits[target] - smoothing / CLASSES * sum(logits)
    gradients = [
        (1 + 2 * z_loss * total) * math.exp(value - total)
        - smoothing / CLASSES
        - (1 - smoothing if column == target else 0)
        for column, value in enumerate(logits)
    ]
    return loss + z_loss * total**2, gradients


class VocabularyTest(TestCase):
    def test_embeddings_are_copied_and_gradients_added(self):
        weight = [float(i) if i % 4 else -0.0 for i in range(CLASSES * WIDTH)]
        gradients = array.array("d", (i / 8 for i in range(len(TOKENS) * WIDTH)))

        def body(group):
            with trireme.Tensor(group, 8) as tensor:
                embedding = trireme.VocabularyParallelEmbedding(
                    tensor, "tokens", CLASSES, WIDTH, 8, dtype="f64"
                )
                own = embedding.info.classes
                assert own == tensor.range(CLASSES)
                assert embedding.info.embed_bytes <= 8 * WIDTH * 8 * (group.world_size - 1)
                part = array.array("d", weight[own.start * WIDTH : own.stop * WIDTH])
                out = array.array("d", [99] * (len(TOKENS) * WIDTH))
                embedding.forward(array.array("i", TOKENS), part, out)
                wanted = array.array("d")
                for token in TOKENS:
                    wanted.extend(weight[token * WIDTH : (token + 1) * WIDTH])
                assert bytes(out) == bytes(wanted)
                sums = array.array("d", [1] * len(part))
                embedding.backward(array.array("q", TOKENS), gradients, sums)
                for i, value in enumerate(sums):
                    token, column = own.start + i // WIDTH, i % WIDTH
                    rows = [row for row, other in enumerate(TOKENS) if other == token]
                    assert value == 1 + sum(gradients[row * WIDTH + column] for row in rows)
                embedding.close()
                return True

        for world_size in (1, 2, 3):
            self.assertEqual(self.ranks(world_size, body), [True] * world_size)

    def test_losses_and_gradients_are_those_of_plain_loops(self):
        def body(group):
            with (
                trireme.Tensor(group, 8) as tensor,
                trireme.ParallelCrossEntropy(
                    tensor,
                    "lm head",
                    CLASSES,
                    6,
                    label_smoothing=0.125,
                    z_loss=0.01,
                    ignored_target=IGNORED,
                ) as entropy,
            ):
                own = entropy.info.classes
                # Two micro-batches are under way; the second one has an ignored row.
                batches = [(0, TOKENS), (5, [3, IGNORED, 8])]
                started = []
                for first, tokens in batches:
                    targets = array.array("q", tokens)
                    logits = array.array(
                        "f", (logit(first + row, c) for row in range(len(tokens)) for c in own)
                    )
                    losses = array.array("f", [99] * len(tokens))
                    kept = entropy.forward(logits, targets, losses)
                    started.append((first, targets, logits, losses, kept))
                found = []
                for first, targets, logits, losses, kept in started:
                    weights = array.array("f", (0.5 + row for row in range(len(targets))))
                    entropy.backward(logits, targets, kept, logits, weights)
                    for row, target in enumerate(targets):
                        loss, slopes = plain_loss(first + row, target, 0.125, 0.01)
                        if target == IGNORED:
                            loss, slopes = 0, [0] * CLASSES
                        assert abs(losses[row] - loss) < 1e-6 * (1 + loss)
                        for i, column in enumerate(own):
                            got = logits[row * len(own) + i]
                            assert abs(got - slopes[column] * weights[row]) < 1e-5
                    found.append((bytes(losses), bytes(kept)))
                return found

        alone = self.ranks(1, body)
        for world_size in (2, 3, 5):
            self.assertEqual(self.ranks(world_size, body), alone * world_size)

    def test_ranks_with_other_targets_are_a_mismatch_on_all(self):
        def body(group):
            entropy = trireme.ParallelCrossEntropy(trireme.Tensor(group), "x", 4, 1)
            logits = array.array("f", [0] * len(entropy.info.classes))
            try:
                entropy.forward(logits, array.array("i", [group.rank]), array.array("f", [0]))
            except trireme.MismatchError as error:
                return "tokens #" in str(error)
            return False

        self.assertEqual(self.ranks(2, body), [True, True])

    def test_wrong_arguments_are_refused(self):
        group = self.alone()
        tensor = trireme.Tensor(group)
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "options.classes is 0"):
            trireme.VocabularyParallelEmbedding(tensor, "x", 0, 1, 1)
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "label_smoothing is 2"):
            trireme.ParallelCrossEntropy(tensor, "x", 4, 1, label_smoothing=2)
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "does not fit into 64 bits"):
            trireme.ParallelCrossEntropy(tensor, "x", 4, 1, ignored_target=2**63)
        with self.assertRaisesRegex(trireme.UnsupportedError, "f32, f64, f16 or bf16"):
            trireme.ParallelCrossEntropy(tensor, "x", 4, 1, dtype="i32")
        with self.assertRaises(TypeError):
            trireme.ParallelCrossEntropy(group, "x", 4, 1)
        entropy = trireme.ParallelCrossEntropy(tensor, "x", 4, 2)
        logits, losses = array.array("f", [0] * 8), array.array("f", [7] * 2)
        with self.assertRaisesRegex(
            trireme.InvalidArgumentError, r"targets\[1\] is 4, not a class"
        ):
            entropy.forward(logits, array.array("i", [3, 4]), losses)
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "logits has 8 elements"):
            entropy.forward(logits, array.array("i", [3]), losses)
        with self.assertRaisesRegex(TypeError, "losses has elements of type f64"):
            entropy.forward(logits, array.array("i", [3, 1]), array.array("d", [0] * 2))
        with self.assertRaisesRegex(trireme.UnsupportedError, "the dtype of targets"):
            entropy.forward(logits, array.array("f", [3, 1]), losses)
        targets = array.array("i", [3, 1])
        kept = entropy.forward(logits, targets, losses)
        self.assertAlmostEqual(losses[0], math.log(4), 6)
        with self.assertRaisesRegex(trireme.InvalidArgumentError, "kept has 16 elements"):
            entropy.backward(logits, targets, kept[:16], logits)
        entropy.backward(logits, targets, kept, logits)
        self.assertEqual(list(logits), [0.25, 0.25, 0.25, -0.75, 0.25, -0.75, 0.25, 0.25])
        entropy.close()
        with self.assertRaises(trireme.InvalidHandleError):
            entropy.forward(logits, targets, losses)


if __name__ == "__main__":
    unittest.main()
