#!/usr/bin/env python3
"""trireme doctor: says what Python sees of the same machine, and gives advice where something is
short.

Usage: test_doctor.py TRIREME [unittest arguments]
"""

import json
import os
import random
import re
import resource
import socket
import subprocess
import sys
import tempfile
import unittest

TRIREME = ""
QUICK = "TRIREME_TEST_QUICK" in os.environ
TIME = r"[\d.]+ (?:us|ms|s)"
JOB = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TRIREME_RENDEZVOUS",
    "TRIREME_TOKEN",
)


def doctor(*options, environment=None, **settings):
    clean = {name: value for name, value in os.environ.items() if name not in JOB}
    return subprocess.run(
        [TRIREME, "doctor", *options],
        capture_output=True,
        text=True,
        timeout=60,
        env={**clean, **(environment or {})},
        **settings,
    )


def start(*options, environment):
    clean = {name: value for name, value in os.environ.items() if name not in JOB}
    return subprocess.Popen(
        [TRIREME, "doctor", *options],
        stdout=subprocess.PIPE,
        text=True,
        env={**clean, **environment},
    )


def report(*options, **settings):
    done = doctor("--json", *options, **settings)
    return done, json.loads(done.stdout)


def place():
    return f"tcp://127.0.0.{random.randrange(2, 250)}:{random.randrange(20000, 30000)}"


def meet(ranks, *options, json_=True, last=None):
    """Status and report of each rank of a group. `last` is more environment of the last one."""
    where = place()
    jobs = []
    for rank in range(ranks):
        words = ["--connect", where, "--rank", str(rank), "--world-size", str(ranks), *options]
        environment = {"TRIREME_TOKEN": "a token for tests of 27 bytes"}
        if rank + 1 == ranks:
            environment.update(last or {})
        jobs.append(start(*(["--json"] if json_ else []), *words, environment=environment))
    reports = []
    try:
        for job in jobs if last is None else jobs[:-1]:
            reports.append(job.communicate(timeout=120)[0])
    finally:
        for job in jobs:  # one stands still, or all do after a failure of the test
            job.kill()
    if last is not None:
        reports.append(jobs[-1].communicate(timeout=60)[0])
    return [
        (job.wait(), json.loads(text) if json_ and text else text)
        for job, text in zip(jobs, reports)
    ]


class Doctor(unittest.TestCase):
    def test_it_says_what_python_sees(self):
        done, told = report()
        self.assertEqual(done.stderr, "")
        machine = told["machine"]
        self.assertEqual(machine["cores"]["value"], str(len(os.sched_getaffinity(0))))
        self.assertEqual(machine["host"]["value"], os.uname().nodename)
        self.assertEqual(machine["kernel"]["value"], f"Linux {os.uname().release}")
        with open("/proc/sys/kernel/random/boot_id") as file:
            self.assertEqual(machine["boot"]["value"], file.read().strip())
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.assertEqual(machine["memory"]["value"], f"{pages >> 20} MiB")
        self.assertEqual(set(told["network"]), {name for _, name in socket.if_nameindex()})
        self.assertIn("127.0.0.1", told["network"]["lo"]["value"])
        with open("/proc/sys/net/ipv4/tcp_congestion_control") as file:
            congestion = told["limits"]["congestion control"]["value"]
            self.assertEqual(congestion.split(";")[0], file.read().strip())

    def test_devices_are_told_with_every_try(self):
        nowhere = {
            "TRIREME_CUDA_DRIVER": "/nowhere/libcuda.so.1",
            "TRIREME_NCCL_LIBRARY": "/nowhere/libnccl.so.2",
        }
        _, told = report(environment=nowhere)
        devices = told["devices"]
        self.assertRegex(devices["plugin"]["value"], "^here, with")
        for name, tried in (
            ("driver", "CUDA driver: tried /nowhere/libcuda.so.1: "),
            ("NCCL", "NCCL: tried /nowhere/libnccl.so.2: "),
        ):
            self.assertIn(tried, devices[name]["value"])
            self.assertEqual(devices[name]["advice"], "")  # most machines have no GPU
        _, told = report(environment={"TRIREME_CUDA_PLUGIN": "/nowhere/libtrireme_cuda.so"})
        self.assertEqual(list(told["devices"]), ["plugin"])
        self.assertIn("tried /nowhere/libtrireme_cuda.so: ", told["devices"]["plugin"]["value"])

    def test_backends_that_are_here_have_a_table_and_others_a_reason(self):
        _, told = report()
        self.assertEqual(told["library"]["backend local"]["value"], "here")
        table = told["what local can do"]
        self.assertIn("reduce_scatter_v", table["operations"]["value"].split())
        self.assertNotIn("bytes", table["reduces sum"]["value"].split())
        self.assertEqual(table["after a loss"]["value"], "ranks agree and shrink")
        self.assertIn("a majority", told["what frames can do"]["after a loss"]["value"])
        self.assertNotIn("f32", table["reduces band"]["value"].split())
        self.assertIn("bytes", table["moves"]["value"].split())
        for name, fact in told["library"].items():
            if name.startswith("backend ") and fact["value"] != "here":
                self.assertNotIn(f"what {name.split()[1]} can do", told)
                self.assertRegex(fact["value"], "^not here: .*[a-z]")

    def test_the_status_says_whether_there_is_advice(self):
        for options in ((), ("--folder", tempfile.gettempdir()), ("--folder", "/no/such/folder")):
            done, told = report(*options)
            advice = [fact["advice"] for section in told.values() for fact in section.values()]
            self.assertEqual(done.returncode, 1 if any(advice) else 0)

    def test_what_is_short_comes_with_advice(self):
        def few_files():
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))

        done, told = report(preexec_fn=few_files)
        files = told["limits"]["open files"]
        self.assertTrue(files["value"].startswith("100 "), files)
        self.assertIn("ulimit -n", files["advice"])
        self.assertEqual(done.returncode, 1)

        done, told = report("--folder", "/no/such/folder")
        self.assertIn("No such file", told["folder /no/such/folder"]["there"]["value"])
        self.assertEqual(done.returncode, 1)

    def test_the_token_is_never_shown(self):
        for token, wants_advice in (("dGhpcyBpcyBhIGxvbmcgc2VjcmV0", False), ("hunter2", True)):
            for options in ((), ("--json",)):
                done = doctor(*options, environment={"TRIREME_TOKEN": token, "RANK": "3"})
                self.assertNotIn(token, done.stdout + done.stderr)
            _, told = report(environment={"TRIREME_TOKEN": token, "RANK": "3"})
            self.assertEqual(told["job"]["RANK"]["value"], "3")
            self.assertEqual(told["job"]["TRIREME_TOKEN"]["value"], "set")
            self.assertEqual(told["job"]["TRIREME_TOKEN"]["advice"] != "", wants_advice)

    def test_hostile_values_leave_the_report_whole(self):
        odd = 'a"b\\c\nd\te\x01'
        _, told = report(environment={"MASTER_ADDR": odd})
        self.assertEqual(told["job"]["MASTER_ADDR"]["value"], odd)

    def test_text_marks_advice(self):
        done = doctor("--folder", "/no/such/folder")
        self.assertRegex(done.stdout, r"(?m)^ +! no file can be made there$")
        self.assertRegex(done.stdout, r"(?m)^\d+ pieces? of advice, marked with !\.$")

    def test_every_pair_of_ranks_talks(self):
        for options, backend in (((), "met by tcp"), (("--backend", "frames"), "frames (tcp)")):
            reports = meet(3, *options)
            for rank, (_, told) in enumerate(reports):
                facts = told["connection"]
                self.assertEqual(facts["all ranks"]["value"], f"meet: this is rank {rank} of 3")
                self.assertIn(backend, facts["backend"]["value"])
                self.assertRegex(facts["pairs"]["value"], "^3, .*each rank with each other one$")
                own = {
                    f"rank {low} and rank {high}"
                    for low, high in ((0, 1), (0, 2), (1, 2))
                    if rank in (0, low, high)
                }
                self.assertEqual(set(facts), {"all ranks", "backend", "pairs"} | own)
                for pair in own:
                    self.assertRegex(facts[pair]["value"], rf"^{TIME} there and back, [\d.]+ MB/s$")
                    # All know the same figures.
                    self.assertEqual(facts[pair], reports[0][1]["connection"][pair])
                self.assertEqual([fact["advice"] for fact in facts.values()], [""] * len(facts))

    def test_the_choice_stands_beside_algorithms_by_name(self):
        # The fastest one may be any that the backend has: a busy machine decides. Frames have no
        # native one.
        for options, names in (((), "[a-z_]+"), (("--backend", "frames"), "(?!native)[a-z_]+")):
            reports = meet(3, *options)
            for _, told in reports:
                facts = told["all_reduce of f32"]
                self.assertEqual(list(facts), ["8 B", "64 KiB", "1 MiB", "16 MiB"])
                for fact in facts.values():
                    if not fact["value"].startswith("left out: "):  # on a machine that is that slow
                        self.assertRegex(
                            fact["value"],
                            rf"^{TIME} as chosen, ({TIME} by ({names}), the fastest |too slow)",
                        )
                    self.assertEqual(fact["advice"], "")
                self.assertRegex(facts["8 B"]["value"], f"^{TIME} as chosen")
                self.assertEqual(facts, reports[0][1]["all_reduce of f32"])

    def test_text_has_the_same_facts(self):
        reports = meet(2, json_=False)
        self.assertRegex(reports[0][1], rf"(?m)^  rank 0 and rank 1 +{TIME} there and back, ")
        self.assertRegex(reports[0][1], rf"(?m)^  16 MiB +({TIME} as chosen|left out)")
        # A remark is no advice.
        remarks = len(re.findall(r"(?m)^ +~ ", reports[0][1]))
        self.assertEqual("marked with ~" in reports[0][1], remarks > 0)

    @unittest.skipIf(QUICK, "17 processes with a sanitizer")
    def test_a_larger_world_has_no_list_of_all_pairs(self):
        _, told = meet(17, "--backend", "frames")[0]
        self.assertIn("31, ", told["connection"]["pairs"]["value"])
        self.assertIn("each rank with the next one", told["connection"]["pairs"]["value"])
        pairs = {(0, rank) for rank in range(1, 17)} | {(rank, rank + 1) for rank in range(1, 16)}
        self.assertEqual(
            {name for name in told["connection"] if name.startswith("rank ")},
            {f"rank {low} and rank {high}" for low, high in pairs},
        )

    def test_who_dies_meanwhile_is_named(self):
        for options in ((), ("--backend", "frames")):
            for point, section, names in (
                ("broadcast.before_move=kill@1", "connection", "rank 0 and rank [12]"),
                ("broadcast.before_move=kill@2", "connection", "rank [01] and rank 2"),
                ("all_reduce.before_move=kill@1", "all_reduce of f32", "8 B"),
                ("barrier.before_move=kill@2", "all_reduce of f32", "8 B"),
            ):
                *others, victim = meet(3, *options, last={"TRIREME_FAILPOINTS": point})
                self.assertEqual(victim[0], -9)
                for rank, (status, told) in enumerate(others):
                    with self.subTest(options=options, point=point, rank=rank):
                        self.assertEqual(status, 1)
                        name, fact = list(told[section].items())[-1]
                        self.assertRegex(name, f"^{names}$")
                        self.assertIn("rank 2", fact["advice"])
                        self.assertEqual(section, list(told)[-1])

    def test_who_stands_still_is_named_at_the_deadline(self):
        point = {"TRIREME_FAILPOINTS": "all_reduce.before_move=stop@3"}
        for options in ((), ("--backend", "frames")):
            for status, told in meet(3, "--wait", "3", *options, last=point)[:2]:
                self.assertEqual(status, 1)
                fact = list(told["all_reduce of f32"].values())[-1]
                self.assertIn("rank 2", fact["advice"])

    def test_who_does_not_come_is_named(self):
        options = ("--connect", place(), "--world-size", "2", "--wait", "2")
        token = {"TRIREME_TOKEN": "a token for tests of 27 bytes"}
        stranger = start(
            "--json",
            *options,
            "--rank",
            "1",
            environment={"TRIREME_TOKEN": "another token of 24 bytes"},
        )
        done, told = report(*options, "--rank", "0", environment=token)
        self.assertEqual(told["connection"]["all ranks"]["value"], "do not meet")
        self.assertIn("rank 1", told["connection"]["all ranks"]["advice"])
        self.assertEqual(done.returncode, 1)
        output, _ = stranger.communicate(timeout=60)
        self.assertEqual(stranger.returncode, 1)
        self.assertIn("token", json.loads(output)["connection"]["all ranks"]["advice"])

        done, told = report(*options, "--rank", "0")
        self.assertIn("TRIREME_TOKEN", told["connection"]["all ranks"]["advice"])
        done, told = report("--connect", "nowhere", "--rank", "0", "--world-size", "2")
        self.assertIn("nowhere", told["connection"]["all ranks"]["advice"])

    def test_what_it_does_not_know_is_refused(self):
        for options in (
            ["--no-such"],
            ["extra"],
            ["--folder"],
            ["--rank", "0"],
            ["--connect", "tcp://127.0.0.1:1", "--wait", "0"],
            ["--connect", "tcp://127.0.0.1:1", "--rank", "-1"],
        ):
            done = doctor(*options)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    TRIREME = sys.argv.pop(1)
    unittest.main()
