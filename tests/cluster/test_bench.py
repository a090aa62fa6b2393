#!/usr/bin/env python3
"""trireme bench: its options, exit codes, figures in both forms, and that it finds nothing wrong.

Usage: test_bench.py TRIREME [unittest arguments]
"""

import json
import os
import pathlib
import resource
import stat
import subprocess
import sys
import tempfile
import unittest

TRIREME = ""
LONG = 240  # seconds; longer than anything healthy takes on a busy machine


def bench(*arguments, **environment):
    return subprocess.run(
        [TRIREME, "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=LONG,
        env={**os.environ, **environment},
    )


def figures(*arguments):
    """The rows of a run that must go well, as JSON."""
    result = bench(*arguments, "--json", "-")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


QUICK = ("-n", "2", "-w", "1")


def start_ranks(*arguments, tables=("", "")):
    """Two processes that others have started: what each said, and how it ended. Each has a tuning
    table, or none."""
    shared = {
        **os.environ,
        "WORLD_SIZE": "2",
        "TRIREME_TOKEN": "a token of the tests",
        "TRIREME_RENDEZVOUS": f"host://trireme-test-bench-{os.getpid()}",
    }
    jobs = [
        subprocess.Popen(
            [TRIREME, "bench", *(word.replace("RANK", str(rank)) for word in arguments)]
            + ["--ranks-as", "env"],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**shared, "RANK": str(rank), "TRIREME_TUNING": tables[rank]},
        )
        for rank in range(2)
    ]
    said = [job.communicate(timeout=LONG) for job in jobs]
    return [job.returncode for job in jobs], said


class Runs(unittest.TestCase):
    def test_all_operations_are_right(self):
        operations = [
            "all_reduce",
            "reduce_scatter",
            "reduce_scatter_v",
            "all_gather",
            "all_gather_v",
            "broadcast",
            "barrier",
            "send_receive",
            "reduce",
            "gather",
            "gather_v",
            "scatter",
            "scatter_v",
            "all_to_all",
            "all_to_all_v",
        ]
        quick = os.environ.get("TRIREME_TEST_QUICK")
        for ranks in ("2",) if quick else ("1", "3"):
            for ranks_as in ("threads", "processes"):
                for memory in ("private",) if quick else ("registered", "private"):
                    data = figures(
                        *operations,
                        *QUICK,
                        "-b",
                        "8",
                        "-e",
                        "300000",
                        "-f",
                        "200",
                        "-c",
                        "-g",
                        ranks,
                        "--ranks-as",
                        ranks_as,
                        "--memory",
                        memory,
                    )
                    self.assertEqual(data["ranks"], int(ranks))
                    self.assertEqual((data["ranks_as"], data["memory"]), (ranks_as, memory))
                    self.assertEqual({row["operation"] for row in data["rows"]}, set(operations))
                    for row in data["rows"]:
                        forms = [row[form] for form in ("in_place", "out_of_place") if form in row]
                        self.assertTrue(forms, row)
                        for form in forms:
                            self.assertEqual(form["wrong"], 0, row)
                            self.assertGreater(form["time_us"], 0)
                            self.assertGreaterEqual(form["p99_us"], form["time_us"])

    def test_every_dtype_and_reduction(self):
        data = figures(
            "all_reduce",
            *QUICK,
            "-b",
            "64K",
            "-e",
            "64K",
            "-c",
            "-d",
            "all",
            "-o",
            "all",
            "-g",
            "2",
            "--ranks-as",
            "threads",
        )
        pairs = {(row["dtype"], row["reduction"]) for row in data["rows"]}
        self.assertEqual(len(pairs), len(data["rows"]))
        self.assertTrue(
            {
                ("f32", "sum"),
                ("bf16", "average"),
                ("bool", "bxor"),
                ("i8", "product"),
                ("f8e5m2", "scaled_sum"),
                ("u64", "max"),
            }
            <= pairs
        )
        self.assertNotIn(("f32", "band"), pairs)
        self.assertEqual(sum(row["in_place"]["wrong"] for row in data["rows"]), 0)

    def test_algorithms_and_a_transport(self):
        operations = ["all_reduce", "all_gather", "broadcast", "all_to_all"]
        for ranks_as in ("threads", "processes", "transport"):
            data = figures(
                *operations,
                *QUICK,
                "-b",
                "64K",
                "-e",
                "64K",
                "-c",
                "-g",
                "3",
                "--algorithm",
                "direct",
                "--ranks-as",
                ranks_as,
            )
            self.assertEqual(data["ranks_as"], ranks_as)
            self.assertEqual(len(data["rows"]), len(operations))
            for row in data["rows"]:
                form = row.get("in_place") or row["out_of_place"]
                self.assertEqual(form["wrong"], 0, row)
        result = bench("all_to_all", *QUICK, "--algorithm", "ring", "-g", "2")
        self.assertEqual(result.returncode, 1)
        self.assertIn("pairwise", result.stderr)
        self.assertNotEqual(bench("all_reduce", "--algorithm", "magic").returncode, 0)
        self.assertNotEqual(bench("send_receive", "--algorithm", "ring").returncode, 0)

    def test_ranks_over_a_network(self):
        operations = ["all_reduce", "all_gather", "send_receive"]
        for backend in ("", "frames", "gloo"):  # the first: by the memory of this host
            with self.subTest(backend=backend):
                result = bench(
                    *operations,
                    *QUICK,
                    "-b",
                    "64K",
                    "-e",
                    "64K",
                    "-c",
                    "-g",
                    "2",
                    "--ranks-as",
                    "tcp",
                    *(["--backend", backend] if backend else []),
                    "--json",
                    "-",
                )
                if "libtrireme_gloo.so" in result.stderr:
                    self.skipTest("Gloo is not installed")
                self.assertEqual(result.returncode, 0, result.stderr)
                rows = json.loads(result.stdout)["rows"]
                self.assertEqual([row["operation"] for row in rows], operations)
                for row in rows:
                    form = row.get("in_place") or row["out_of_place"]
                    self.assertEqual(form["wrong"], 0, row)

    def test_ranks_that_others_have_started(self):
        codes, said = start_ranks(
            "all_reduce", "reduce", *QUICK, "-b", "4K", "-e", "4K", "-c", "-r", "1", "--json", "-"
        )
        self.assertEqual(codes, [0, 0], said)
        data = json.loads(said[0][0])
        self.assertEqual((data["ranks"], data["ranks_as"]), (2, "env"))
        self.assertEqual(data["backend"], "local (processes)")
        for row in data["rows"]:
            self.assertEqual(row["out_of_place"]["wrong"], 0, row)
            self.assertGreater(row["out_of_place"]["time_us"], 0)
        self.assertEqual(said[1][0], "")  # rank 0 speaks for all
        codes, said = start_ranks("barrier", "--all", "--check")
        self.assertEqual(codes, [0, 0], said)
        self.assertRegex(said[0][0], r"all: [1-9]\d* cases, 0 elements wrong\n$")
        codes, said = start_ranks("broadcast", *QUICK, "-r", "2")
        self.assertEqual(codes, [1, 1], said)
        self.assertIn("root 2", said[0][1])

    def test_sizes(self):
        def counts(*options):
            rows = figures("all_reduce", *QUICK, "--place", "in", "-g", "2", *options)["rows"]
            return [(row["bytes"], row["count"]) for row in rows]

        self.assertEqual(counts("-b", "8", "-e", "512", "-f", "8"), [(8, 2), (64, 16), (512, 128)])
        self.assertEqual(
            counts("-b", "1K", "-e", "2K", "-i", "512"), [(1024, 256), (1536, 384), (2048, 512)]
        )
        self.assertEqual(counts("-b", "0", "-e", "4"), [(0, 0), (4, 1)])
        self.assertEqual(counts("-b", "8", "-e", "8", "-d", "bf16"), [(8, 4)])

    def test_iterations_are_those_asked_for(self):
        row = figures("barrier", "-n", "7", "-w", "0", "-g", "2")["rows"][0]
        self.assertEqual(row["out_of_place"]["samples"], 7)
        self.assertIsNone(row["out_of_place"]["wrong"])
        self.assertNotIn("in_place", row)

    def test_table_of_rows(self):
        result = bench("broadcast", *QUICK, "-b", "64", "-e", "64", "-g", "2", "-r", "1", "-c")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        row = next(line for line in lines if not line.startswith("#")).split()
        self.assertEqual(row[:5], ["64", "16", "f32", "none", "1"])
        self.assertEqual(row[5:10], ["N/A"] * 5)  # it has no form out of place
        self.assertEqual(row[-1], "0")
        self.assertIn("# wrong elements: 0", lines)
        self.assertTrue(any("memory limit" in line for line in lines))
        self.assertTrue(any("flag round trip" in line for line in lines))

    def test_sweep(self):
        # Each takes minutes where sanitizers watch.
        operations = (
            ("barrier",)
            if os.environ.get("TRIREME_TEST_QUICK")
            else ("broadcast", "barrier", "send_receive")
        )
        result = bench(*operations, "--all", "--check")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), (2 * 2 + 1) * 6 + 1)  # a transport has one kind of memory
        self.assertRegex(lines[-1], r"^all: [1-9]\d* cases, 0 elements wrong$")

    def test_json_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "figures.json"
            result = bench("barrier", *QUICK, "-g", "2", "--json", str(path))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("barrier", result.stdout)
            self.assertEqual(json.loads(path.read_text())["rows"][0]["operation"], "barrier")
            self.assertEqual(bench("barrier", *QUICK, "--json", folder + "/no/file").returncode, 1)


class Tuning(unittest.TestCase):
    """--tune writes a table, and groups take it."""

    TINY = ("-n", "1", "-w", "0", "--rounds", "2", "-b", "1K", "-e", "16K")
    OPERATIONS = (
        "all_reduce reduce_scatter all_gather broadcast reduce gather scatter all_to_all barrier"
    ).split()
    ALGORITHMS = (
        "automatic direct ring halving_doubling binomial double_tree bruck pairwise native"
    ).split()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "table"

    def read_table(self, path, group):
        """The rules, each as its words. Everything in the file is as the pages say."""
        lines = path.read_text().splitlines()
        self.assertEqual(lines[0], "trireme tuning 1")
        self.assertRegex(lines[1], r"^# measured on \d{4}-\d\d-\d\d by trireme \d")
        rules = [line.split("#")[0].split() for line in lines if line[0] != "#"][1:]
        self.assertEqual(rules.pop(0), ["group", *group.split()])
        for operation, size, algorithm in rules:
            self.assertIn(operation, self.OPERATIONS)
            self.assertIn(algorithm, self.ALGORITHMS)
            self.assertLessEqual(int(size), 32 << 10)
            if int(size) > 16 << 10:  # was not measured
                self.assertEqual(algorithm, "automatic")
        self.assertEqual(list(self.folder.glob("table.*")), [])
        return rules

    def test_writes_what_groups_read(self):
        kinds = (
            (("--ranks-as", "threads", "-g", "3"), "3 local (threads)"),
            (("--ranks-as", "transport", "-g", "3"), "3 frames (transport)"),
            (("--ranks-as", "tcp", "--backend", "frames", "-g", "4"), "4 frames (tcp)"),
            (("-g", "1"), "1 local (processes)"),
        )
        for kind, group in kinds:
            with self.subTest(group=group):
                result = bench("--tune", str(self.path), *self.TINY, *kind)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertTrue(
                    result.stdout.endswith(
                        f"# wrote {self.path} for {group.replace(' ', ' ranks of ', 1)}\n"
                    ),
                    result.stdout,
                )
                rows = [line.split() for line in result.stdout.splitlines() if line[0] != "#"]
                sizes = 3  # 1K, 4K, 16K
                self.assertEqual(
                    [row[0] for row in rows],
                    [each for each in self.OPERATIONS[:-1] for _ in range(sizes)] + ["barrier"],
                )
                for row in rows:
                    self.assertEqual(row[2], "chosen")
                    self.assertIn("direct", row)
                # The shared memory of threads has all operations, frames have none of their own.
                self.assertEqual("native" in result.stdout, "local" in group)
                self.read_table(self.path, group)
                result = bench(
                    *("all_reduce", "all_gather", "broadcast", "-b", "1K", "-e", "16K", "-c"),
                    *QUICK,
                    *kind,
                    TRIREME_TUNING=str(self.path),
                )
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("# wrong elements: 0", result.stdout)

    def test_rank_0_alone_writes(self):
        table = str(self.folder / "table-RANK")
        codes, said = start_ranks("--tune", table, "broadcast", "reduce", *self.TINY)
        self.assertEqual(codes, [0, 0], said)
        self.assertEqual(said[1], ("", ""))
        written = self.folder / "table-0"
        self.assertEqual([path.name for path in self.folder.iterdir()], ["table-0"])
        rules = self.read_table(written, "2 local (processes)")
        self.assertLessEqual({rule[0] for rule in rules}, {"broadcast", "reduce"})
        # Both take it, and one alone is told apart.
        codes, said = start_ranks("broadcast", *QUICK, tables=(str(written), str(written)))
        self.assertEqual(codes, [0, 0], said)
        codes, said = start_ranks("broadcast", *QUICK, tables=("", str(written)))
        self.assertEqual(codes, [1, 1], said)
        for _, errors in said:
            self.assertIn("different tuning tables (TRIREME_TUNING)", errors)

    def test_own_choice_is_measured(self):
        """A table that is in use does not count while another one is measured."""
        old = self.folder / "old"
        old.write_text("nonsense\n")
        result = bench("all_reduce", *QUICK, "-g", "2", TRIREME_TUNING=str(old))
        self.assertEqual(result.returncode, 1)
        self.assertIn('line 1: "nonsense" is not "trireme tuning 1"', result.stderr)
        result = bench(
            *("--tune", str(self.path), "barrier", "-g", "2"), *self.TINY, TRIREME_TUNING=str(old)
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.read_table(self.path, "2 local (processes)")

    def test_the_old_table_stays(self):
        """Unless a new one is whole."""
        self.path.write_text("mine\n")
        result = bench("--tune", str(self.path), "barrier", *self.TINY, "--ranks-as", "env")
        self.assertEqual(result.returncode, 1)  # there are no such ranks
        self.assertEqual(self.path.read_text(), "mine\n")
        result = bench("--tune", str(self.folder / "no" / "table"), "barrier", *self.TINY)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot write", result.stderr)
        (self.folder / "full").mkdir()  # a folder where the table should be
        result = bench("--tune", str(self.folder / "full"), "barrier", *self.TINY)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot write", result.stderr)
        self.assertNotIn("chosen", result.stdout)  # it has measured nothing
        (self.folder / "link").symlink_to("/dev/null")
        for path in (self.folder / "link", "/dev/null"):
            result = bench("--tune", str(path), "barrier", *self.TINY)
            self.assertEqual(result.returncode, 1)
            self.assertIn("no regular file", result.stderr)
        self.assertTrue(pathlib.Path("/dev/null").is_char_device())
        self.assertEqual(
            sorted(path.name for path in self.folder.iterdir()), ["full", "link", "table"]
        )

    def test_a_new_table_replaces_the_old_one(self):
        """And nothing else; it has the permissions of the old one."""
        neighbour = self.folder / "table.part"
        neighbour.write_text("theirs\n")
        self.addCleanup(os.umask, os.umask(0o022))
        for mode in (0o644, 0o600):
            result = bench("--tune", str(self.path), "barrier", *self.TINY)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), mode)
            self.path.chmod(0o600)
        self.assertEqual(neighbour.read_text(), "theirs\n")
        neighbour.unlink()
        self.read_table(self.path, "2 local (processes)")

    def test_a_table_that_cannot_be_written_is_printed(self):
        """The disk is full when all is measured."""
        self.path.write_text("mine\n")
        result = subprocess.run(
            [TRIREME, "bench", "--tune", str(self.path), "barrier", *self.TINY]
            + ["--ranks-as", "threads"],
            capture_output=True,
            text=True,
            timeout=LONG,
            restore_signals=False,  # SIGXFSZ stays ignored
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10)),
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot write", result.stderr)
        self.assertIn("\ntrireme tuning 1\n# measured on", result.stdout)
        self.assertIn("\ngroup 2 local (threads)\n", result.stdout)
        self.assertEqual(self.path.read_text(), "mine\n")
        self.assertEqual([path.name for path in self.folder.iterdir()], ["table"])

    def test_sizes_end(self):
        result = bench("--tune", str(self.path), "-e", "262145G")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("is above 262144G", result.stderr)
        self.assertFalse(self.path.exists())


class Peers(unittest.TestCase):
    """With peers that are no peers: what they print is what counts."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def make(self, script):
        path = pathlib.Path(self.folder.name) / "bench_peer_gloo"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run_beside(self, *options):
        return bench(
            "all_reduce",
            "broadcast",
            *QUICK,
            "-b",
            "8",
            "-e",
            "8",
            "-g",
            "2",
            "--peer",
            "gloo",
            "--peer-folder",
            self.folder.name,
            "--rounds",
            "3",
            *options,
        )

    def test_times_and_ratios(self):
        self.make('[ "$1" = 2 ] && echo noise && echo "all_reduce 8 1000000.0"')
        result = self.run_beside("--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        data = json.loads(result.stdout)
        self.assertEqual(data["rounds"], 3)
        reduce, broadcast = data["rows"]
        self.assertEqual(reduce["gloo"]["time_us"], 1e6)
        self.assertGreater(reduce["gloo"]["ratio"], 0)
        self.assertNotIn("gloo", broadcast)  # the peer has none

    def test_failure_of_a_peer(self):
        self.make("echo broken pipe dream; exit 3")
        result = self.run_beside()
        self.assertEqual(result.returncode, 1)
        self.assertIn("gloo ended with status 3: broken pipe dream", result.stderr)

    def test_absent_peer(self):
        result = self.run_beside()
        self.assertEqual(result.returncode, 2)
        self.assertIn("no program in", result.stderr)

    def test_table(self):
        """One round of the table beside a peer that takes a second for everything."""
        self.make('shift 4; for c; do echo "${c%:*} ${c#*:} 1000000"; done')
        path = os.path.join(self.folder.name, "table.json")
        result = bench(
            "--table",
            "--rounds",
            "1",
            "-e",
            "1M",
            *QUICK,
            "--peer",
            "gloo",
            "--peer-folder",
            self.folder.name,
            "--json",
            path,
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(path) as file:
            goals = json.load(file)["goals"]
        self.assertIn("best MPI", {goal["against"] for goal in goals})
        self.assertLessEqual(max(goal["bytes"] for goal in goals), 1 << 20)
        for goal in goals:
            if goal["against"] == "best MPI":  # there was none
                self.assertEqual(goal["ours_us"], -1)
            elif goal["against"] == "best peer":
                self.assertEqual(goal["theirs_us"], 1e6)
                self.assertAlmostEqual(
                    goal["ratio"], 1e6 / goal["ours_us"], delta=1e-2 * goal["ratio"]
                )


class Refusals(unittest.TestCase):
    def refused(self, arguments, words):
        result = bench(*arguments)
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertEqual(result.stdout, "")
        self.assertIn(words, result.stderr)

    def test_bad_options(self):
        for arguments, words in (
            (["all_scatter"], "all_scatter"),
            (["-b", "12Q"], "12Q"),
            (["-b", "-1"], "-1"),
            (["-b", "2K", "-e", "1K"], "--minbytes"),
            (["-i", "0"], "--stepbytes"),
            (["-i", "8", "-f", "2"], "--step"),
            (["-f", "1"], "1"),
            (["-n", "0"], "0"),
            (["-n", "1", "--seconds", "1"], "--"),
            (["--seconds", "nan"], "--seconds"),
            (["-d", "f128"], "f128"),
            (["-o", "median"], "median"),
            (["-o", "band"], "band of f32 has no meaning"),
            (["-r", "2"], "--root"),
            (["-r", "-1"], "--root"),
            (["-g", "0"], "0"),
            (["-g", "65"], "65"),
            (["--ranks-as", "fibres"], "fibres"),
            (["--ranks-as", "host"], "transport"),
            (["--memory", "shared"], "shared"),
            (["--place", "up"], "up"),
            (["broadcast", "--place", "out"], "--place"),
            (["send_receive", "--place", "in"], "--place"),
            (["all_to_all", "--place", "in"], "--place"),
            (["all_to_all_v", "--place", "in"], "--place"),
            (["--all"], "--check"),
            (["--all", "--check", "--json", "-"], "--json"),
            (["--table", "--check"], "--table"),
            (["--table", "barrier"], "--table"),
            (["--table", "-d", "i8"], "--datatype"),
            (["--table", "--all", "--check"], "--table"),
            (["--all", "--check", "-g", "2"], "--ranks"),
            (["--peer", "nccl"], "nccl"),
            (["--peer", "gloo", "-d", "f64"], "--peer"),
            (["all_gather_v", "--peer", "gloo"], "all_gather_v"),
            (["scatter_v", "--peer", "gloo"], "scatter_v"),
            (["--rounds", "0"], "0"),
            (["--backend", "gloo"], "--ranks-as"),
            (["--backend", "gloo", "--ranks-as", "threads"], "--backend"),
            (["--ranks-as", "env", "-g", "2"], "--ranks"),
            (["--ranks-as", "env", "--peer", "gloo"], "--peer"),
            (["--ranks-as", "env", "-r", "64"], "--root"),
            (["--table", "--ranks-as", "tcp"], "--table"),
            (["--tune", "f", "all_gather_v"], "no rules for all_gather_v"),
            (["--tune", "f", "send_receive"], "no rules for send_receive"),
            (["--tune", "f", "--check"], "--tune"),
            (["--tune", "f", "--json", "-"], "--tune"),
            (["--tune", "f", "--table"], "--tune"),
            (["--tune", "f", "--peer", "gloo"], "--tune"),
            (["--tune", "f", "--algorithm", "ring"], "--tune"),
            (["--tune", "f", "-d", "f64"], "--tune"),
            (["--tune", "f", "--place", "in"], "--tune"),
            (["--tune", "f", "-i", "8"], "--tune"),
            (["--tune", "f", "-b", "2K", "-e", "1K"], "--minbytes"),
            (["--tune"], "--tune"),
        ):
            with self.subTest(arguments=arguments):
                self.refused(arguments, words)

    def test_program_is_none_of_its_business(self):
        self.refused(["--", "true"], '"true" is not one of')


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    TRIREME = os.path.abspath(sys.argv.pop(1))
    unittest.main()
