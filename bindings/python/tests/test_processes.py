"""Ranks as processes, started by the trireme command; the example; the wheel."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from support import PACKAGE, PATIENCE, REPOSITORY, TestCase, command, needs_numpy, trireme

needs_command = unittest.skipIf(command() is None, "the trireme command was not built")


def run(*arguments, environment=None, **options):
    own = {"PYTHONPATH": str(PACKAGE), "PYTHONUNBUFFERED": "1"}
    return subprocess.run(
        [str(argument) for argument in arguments],
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        env={**os.environ, **own, **(environment or {})},
        **options,
    )


def launch(ranks, text, *arguments):
    return run(
        command(),
        "run",
        "--no-prefix",
        "--nproc-per-node",
        ranks,
        "--",
        sys.executable,
        "-c",
        text,
        *arguments,
    )


@needs_command
class LaunchTest(TestCase):
    def test_ranks_as_processes_train_a_model(self):
        done = launch(
            3,
            """
import array, trireme
with trireme.Communicator.from_environment() as group:
    data = array.array("f", [group.rank])
    group.all_reduce(data)
    model = trireme.Model(group, "zero3", gradients="sum")
    model.add_parameter("weight", [7])
    model.seal()
    optimizer = trireme.Optimizer(model, "sgd", learning_rate=1)
    model.accumulate_flat(array.array("f", range(7)))
    optimizer.step()
    print(group.world_size, data[0], model.get_parameters().tolist(), group.backend, flush=True)
""",
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 3)
        for line in lines:
            self.assertTrue(
                line.startswith("3 3.0 [-0.0, -3.0, -6.0, -9.0, -12.0, -15.0, -18.0] local")
                or line.startswith("3 3.0 [0.0, -3.0, -6.0, -9.0, -12.0, -15.0, -18.0] local"),
                line,
            )

    def test_a_killed_rank_is_named_by_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            launch(
                3,
                """
import os, pathlib, signal, sys, trireme
# The command ends the other ranks when one dies; they shall have time to tell what they hear.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
group = trireme.Communicator.from_environment()
try:
    group.barrier()
    if group.rank == 1:  # the others may still be inside the first barrier
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()
except trireme.PeerLostError as problem:
    pathlib.Path(sys.argv[1], str(group.rank)).write_text(repr(problem.blamed))
""",
                folder,
            )
            heard = {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}
        self.assertEqual(heard, {"0": "(1,)", "2": "(1,)"})


@needs_numpy
class DigitsTest(TestCase):
    def digits(self, *arguments, launcher=(), environment=None):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder, "out")
            done = run(
                *launcher,
                sys.executable,
                REPOSITORY / "examples/digits/digits.py",
                "--data",
                REPOSITORY / "examples/data/digits.csv.gz",
                "--out",
                out,
                *arguments,
                environment=environment,
            )
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            (line,) = done.stdout.splitlines()
            return dict(part.split("=") for part in line.split()), out.read_bytes()

    def test_the_example_gives_the_same_bits_alone_as_threads_and_as_processes(self):
        fields, alone = self.digits("--passes", "1")
        self.assertEqual(fields["mode"], "alone")
        self.assertGreater(float(fields["accuracy"]), 60)
        self.assertEqual(len(alone), 4 * 17226)
        fields, threads = self.digits("--passes", "1", "--threads", "3", "--strategy", "zero3")
        self.assertEqual((fields["mode"], fields["ranks"]), ("threads", "3"))
        self.assertEqual(threads, alone)
        if command() is not None:
            launcher = (command(), "run", "--no-prefix", "--nproc-per-node", "2", "--")
            fields, processes = self.digits(
                "--passes", "1", "--strategy", "zero2", launcher=launcher
            )
            self.assertEqual((fields["mode"], fields["ranks"]), ("processes", "2"))
            self.assertEqual(processes, alone)
        fakes = pathlib.Path(trireme._native.library._name).resolve().parent / "tests"
        if (fakes / "fake_plugin.so").is_file():
            environment = {
                "TRIREME_CUDA_DRIVER": str(fakes / "fake_cuda.so"),
                "TRIREME_CUDA_PLUGIN": str(fakes / "fake_plugin.so"),
                "TRIREME_NCCL_LIBRARY": str(fakes / "none.so"),  # not that of the machine
            }
            words = "--passes", "1", "--threads", "2", "--strategy", "zero1", "--device", "cuda"
            self.assertEqual(self.digits(*words, environment=environment)[1], alone)

    def test_a_wrong_option_is_one_line_and_an_exit_code(self):
        done = run(
            sys.executable,
            REPOSITORY / "examples/digits/digits.py",
            "--strategy",
            "zero9",
            "--data",
            REPOSITORY / "examples/data/digits.csv.gz",
        )
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        (line,) = done.stderr.splitlines()
        self.assertIn("INVALID_ARGUMENT", line)
        self.assertIn("zero9", line)


class WheelTest(TestCase):
    def test_the_wheel_carries_the_library_and_needs_nothing_else(self):
        with tempfile.TemporaryDirectory() as folder:
            made = run(sys.executable, "-m", "venv", f"{folder}/venv")
            if made.returncode != 0:
                self.skipTest("python3-venv is not installed")
            library = trireme._native.library._name
            python = f"{folder}/venv/bin/python"
            environment = {**os.environ, "TRIREME_LIBRARY": os.path.abspath(library)}
            environment.pop("PYTHONPATH", None)
            for step in (
                [python, "-m", "pip", "install", "--no-index", "--quiet", str(PACKAGE)],
                [python, "-c", "import trireme; print(trireme._native.library._name)"],
            ):
                done = subprocess.run(
                    step, capture_output=True, text=True, env=environment, cwd=folder
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                environment.pop("TRIREME_LIBRARY", None)  # the second step must find its own
            self.assertTrue(done.stdout.startswith(f"{folder}/venv/lib"), done.stdout)
            self.assertTrue(done.stdout.strip().endswith("/trireme/libtrireme.so.1"))
            if command() is not None:
                self.check_the_command(folder, environment)

    def check_the_command(self, folder, environment):
        environment = {**environment, "PATH": f"{folder}/venv/bin:{environment['PATH']}"}
        environment.pop("TRIREME_COMMAND", None)
        script = pathlib.Path(folder, "where.py")
        script.write_text("import os, sys, trireme; print(os.environ['RANK'], sys.prefix)\n")
        python = f"{folder}/venv/bin/python"
        for start in ([f"{folder}/venv/bin/trireme"], [python, "-m", "trireme"]):
            done = subprocess.run(
                [*start, "run", "--no-prefix", "--nproc-per-node=2", str(script)],
                capture_output=True,
                text=True,
                env=environment,
                cwd=folder,
                timeout=PATIENCE,
            )
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(
                sorted(done.stdout.splitlines()), [f"{rank} {folder}/venv" for rank in range(2)]
            )


class CommandTest(TestCase):
    def test_where_there_is_no_command_it_is_said_where_it_was_looked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            missing = f"{folder}/no/trireme"
            library = os.path.abspath(trireme._native.library._name)
            environment = {
                "PATH": folder,
                "PYTHONPATH": str(PACKAGE),
                "TRIREME_COMMAND": missing,
                "TRIREME_LIBRARY": f"{folder}/libtrireme.so.1",
            }
            os.symlink(library, f"{folder}/libtrireme.so.1")
            text = (
                "import sys, trireme.__main__ as command;"
                "command.pathlib.Path.resolve = lambda path: path; sys.exit(command.main())"
            )
            done = subprocess.run(
                [sys.executable, "-c", text], capture_output=True, text=True, env=environment
            )
            self.assertEqual((done.returncode, done.stdout), (127, ""))
            self.assertIn(f"{missing} (TRIREME_COMMAND)", done.stderr)
            self.assertIn("trireme-command (in the package)", done.stderr)
            self.assertIn(f"{folder}/trireme (beside TRIREME_LIBRARY)", done.stderr)
            self.assertIn("cmake", done.stderr)


class DocumentationTest(TestCase):
    def test_the_examples_in_docstrings_are_true(self):
        import doctest
        import importlib

        attempted = 0
        for module in (
            "trireme",
            "trireme._communicator",
            "trireme._model",
            "trireme._pipeline_model",
        ):
            result = doctest.testmod(importlib.import_module(module))
            self.assertEqual(result.failed, 0, module)
            attempted += result.attempted
        self.assertGreater(attempted, 10)

    def test_everything_public_has_a_docstring(self):
        for name in trireme.__all__:
            thing = getattr(trireme, name)
            self.assertTrue(thing.__doc__, name)
            if isinstance(thing, type):
                for attribute, value in vars(thing).items():
                    if not attribute.startswith("_") and (
                        callable(value) or isinstance(value, property)
                    ):
                        self.assertTrue(value.__doc__, f"{name}.{attribute}")


if __name__ == "__main__":
    unittest.main()
