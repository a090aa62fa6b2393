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
ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/language-model.md"
# The blocks of the page stand in this function.
FRAME = """#include <stddef.h>
#include <trireme/trireme.h>
void add_layer(trireme_model *model, trireme_layer *layers, uint64_t layer);
void train(trireme_communicator *communicator, const double *seconds, uint64_t layer_count,
           trireme_pipeline_layer_costs *costs, uint64_t *cuts, uint32_t *own, uint64_t count,
           uint64_t own_layer_count, trireme_layer *layers, trireme_optimizer *optimizer,
           trireme_model_options model_options, trireme_parallel_info info,
           trireme_parallel *parallel, trireme_model *model, trireme_trainer *trainer,
           trireme_pipeline_schedule *schedule) {
%s}
"""
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

    def test_ranks_may_have_other_layers(self):
        """The final loss to the last bit, the text of the trained parameters, and the layout."""

        def outcome(ranks, *options):
            done = self.losses(ranks, *options, "--dropout", "0.1")
            bits = re.search(r"to the last bit: (\S+)$", done[2].stdout, flags=re.M)[1]
            layout = re.search(r"^layout: .*$", done[2].stdout, flags=re.M)
            sample = re.search(r"---- sample\n(.*)\n---- end", done[2].stdout, flags=re.S)[1]
            return bits, done[1], sample, layout and layout.group()

        alone = outcome(0)
        self.assertIsNone(alone[-1])
        for ranks, options, layout in (
            (
                3,
                ["--pipeline", "3", "--schedule", "1F1B", "--strategy", "zero1"],
                "data 1 x shard 1 x tensor 1 x pipeline 3; 1f1b, 3 stages, 4 micro-batches: "
                "ranks wait 33.3 %",
            ),
            (
                4,
                ["--data", "2", "--pipeline", "2", "--schedule", "ZB-V", "--strategy", "zero3"],
                "data 2 x shard 1 x tensor 1 x pipeline 2; zbv, 4 stages, 2 micro-batches: ",
            ),
        ):
            found = outcome(ranks, *options)
            self.assertEqual(found[:-1], alone[:-1])
            self.assertIn(layout, found[-1])
        split = outcome(0, "--tensor", "1")
        both = outcome(4, "--tensor", "2", "--pipeline", "2", "--sequence", "yes")
        self.assertEqual(both[:-1], split[:-1])
        self.assertIn("tensor 2 x pipeline 2", both[-1])

    def test_the_page_draws_what_the_command_draws(self):
        part = re.search(r"^## A model too deep$(.*?)^## ", PAGE.read_text(), flags=re.S | re.M)[1]
        blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", part, flags=re.S | re.M)
        plain = [text for language, text in blocks if language == ""]
        (self.folder / "costs.txt").write_text(re.sub(r"^ +", "", plain[0], flags=re.M))
        drawn = ""
        for line in re.findall(r"^ +\$ trireme (plan .*)$", plain[1], flags=re.M):
            drawn += f"$ trireme {line}\n"
            drawn += subprocess.run(
                [str(pathlib.Path(TRIREME).resolve()), *line.split()],
                capture_output=True,
                text=True,
                timeout=LONG,
                check=True,
                cwd=self.folder,
            ).stdout
        self.assertEqual(drawn.count("trireme plan"), 2)
        self.assertEqual(drawn, re.sub(r"^   ", "", plain[1], flags=re.M))

        body = "".join(text for language, text in blocks if language == "c")
        (self.folder / "page.c").write_text(FRAME % body)
        checked = subprocess.run(
            [
                "cc",
                "-std=c11",
                "-Wall",
                "-Werror",
                "-Wno-unused-result",
                "-fsyntax-only",
                f"-I{ROOT}/include",
                "page.c",
            ],
            capture_output=True,
            text=True,
            timeout=LONG,
            cwd=self.folder,
        )
        self.assertEqual(checked.returncode, 0, checked.stderr)

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
            (["--pipeline", "1", "--strategy", "hsdp"], "needs --shard-ranks"),
            (["--schedule", "zb-h9"], "--schedule does not take zb-h9"),
            (["--data", "2"], "multiply to 2, but there are 1 ranks"),
            (["--pipeline", "2"], "multiply to 2, but there are 1 ranks"),
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
