#!/usr/bin/env python3
"""The language model as a user runs it, small: it learns, writes a sample and a picture, and its
losses are the same with any strategy, number of ranks, checkpoints and budget of activations.

Usage: test_command.py TRIREME EXAMPLE_GPT TEXT.gz [unittest arguments]
"""

import gzip
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

LONG = 240  # seconds; longer than anything healthy takes on a busy machine
STEPS = 60
SMALL = (
    "--layers 4 --width 32 --heads 4 --context 32 --leaves 4 --sequences 4 "
    f"--steps {STEPS} --rate 0.01 --sample 100"
).split()


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "text").write_bytes(gzip.decompress(pathlib.Path(TEXT).read_bytes()))

    def run_program(self, ranks, *options):
        command = [PROGRAM, "--text", self.folder / "text", "--out", self.folder, *options]
        if ranks > 0:
            command = [
                TRIREME,
                "run",
                "--no-prefix",
                "--nproc-per-node",
                str(ranks),
                "--",
                *command,
            ]
        return subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, timeout=LONG
        )

    def losses(self, *arguments):
        """(first, last, text not trained on, unigram entropy, values as printed)"""
        done = self.run_program(*arguments, *SMALL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        line = re.search(r"^loss: .*$", done.stdout, flags=re.M).group()
        numbers = [float(n) for n in re.findall(r"\d+\.\d+", line)]
        self.assertEqual(len(numbers), 4, line)
        return numbers, line, done

    def test_it_learns_and_shows_it(self):
        (first, last, held_out, entropy), line, done = self.losses(2, "--strategy", "zero3")
        self.assertGreater(first, entropy)
        self.assertLess(last, entropy - 0.3)
        self.assertLess(held_out, entropy - 0.3)
        sample = re.search(r"---- sample\n(.*)\n---- end", done.stdout, flags=re.S).group(1)
        self.assertEqual(len(sample), 101)
        self.assertGreater(len(set(sample)), 5)
        picture = xml.etree.ElementTree.parse(self.folder / "loss.svg")
        curves = [path.get("d") for path in picture.iter("{http://www.w3.org/2000/svg}path")]
        self.assertEqual(max(curve.count("L") for curve in curves), STEPS - 1)
        self.assertIn(f"{STEPS}/{STEPS}", done.stderr)

        time = re.search(
            r"^time: 60 steps in ([0-9.]+) s, ([0-9.]+) ms a step, .*; (\d+) bytes of "
            r"activations planned, 0 of 6 layers",
            done.stdout,
            flags=re.M,
        )
        self.assertIsNotNone(time, done.stdout)
        self.assertGreater(float(time[1]), 0)
        self.assertGreater(float(time[2]), 0)

        for less in (["--checkpoint", "1"], ["--activation-budget", str(int(time[3]) // 2)]):
            other = self.losses(0, "--strategy", "data_parallel", *less)
            self.assertEqual(other[1], line)
            planned = re.search(r"(\d+) bytes of activations planned", other[2].stdout)[1]
            self.assertLessEqual(int(planned), int(time[3]) // 2)

    def test_ranks_may_split_the_layers(self):
        alone = self.losses(0, "--tensor", "1")
        self.assertLess(alone[0][1], alone[0][3] - 0.3)
        for ranks, options in ((2, ["--tensor", "2"]), (4, ["--tensor", "2", "--sequence", "yes"])):
            self.assertEqual(self.losses(ranks, *options, "--strategy", "zero2")[1], alone[1])

    def test_what_it_does_not_understand(self):
        for options, complaint in [
            (["--stepps", "3"], "options, each with a value"),
            (["--steps"], "options, each with a value"),
            (["--steps", "3x"], "--steps does not take 3x"),
            (["--checkpoint", "-1"], "--checkpoint does not take -1"),
            (["--shard-ranks", "4294967296"], "--shard-ranks does not take"),
            (["--strategy", "zero9"], "--strategy does not take zero9"),
            (["--heads", "5"], "--heads divides --width"),
            (["--sequence", "yes"], "--sequence and --tensor-blocks need --tensor"),
            (["--tensor", "1", "--strategy", "hsdp"], "needs --shard-ranks"),
            (["--tensor", "1", "--sequence", "on"], "--sequence does not take on"),
            (["--tensor", "1", "--tensor-blocks", "3"], "--tensor-blocks divide --heads"),
            (["--dropout", "1"], "--dropout is below 1"),
            (["--text", "/no/such/file"], "cannot be read"),
            (["--activation-budget", "1"], "the least that works is"),
        ]:
            done = self.run_program(0, *options)
            self.assertEqual(done.returncode, 1, options)
            self.assertIn(complaint, done.stderr)


if __name__ == "__main__":
    TRIREME, PROGRAM, TEXT = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
