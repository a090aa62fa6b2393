#!/usr/bin/env python3
"""trireme doctor: says what Python sees of the same machine, and gives advice where something is
short.

Usage: test_doctor.py TRIREME [unittest arguments]
"""

import json
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import unittest

TRIREME = ""
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

    def test_ranks_meet_and_talk(self):
        place = f"tcp://127.0.0.{random.randrange(2, 250)}:{random.randrange(20000, 30000)}"
        environment = {"TRIREME_TOKEN": "a token for tests of 27 bytes"}
        others = [
            start(
                "--json",
                "--connect",
                place,
                "--rank",
                str(rank),
                "--world-size",
                "3",
                environment=environment,
            )
            for rank in (1, 2)
        ]
        done, told = report(
            "--connect", place, "--rank", "0", "--world-size", "3", environment=environment
        )
        facts = told["connection"]
        self.assertEqual(facts["all ranks"]["value"], "meet: this is rank 0 of 3")
        self.assertIn("tcp", facts["backend"]["value"])
        talks = r"^\d+ us there and back, \d+ MB/s$"
        for rank, other in enumerate(others, 1):
            self.assertRegex(facts[f"rank {rank}"]["value"], talks)
            output, _ = other.communicate(timeout=60)
            theirs = json.loads(output)["connection"]
            self.assertEqual(theirs["all ranks"]["value"], f"meet: this is rank {rank} of 3")
            self.assertRegex(theirs["rank 0"]["value"], talks)
            self.assertEqual(set(theirs), {"all ranks", "backend", "rank 0"})
        for told in (facts, theirs):
            self.assertEqual([fact["advice"] for fact in told.values()], [""] * len(told))

    def test_who_does_not_come_is_named(self):
        place = f"tcp://127.0.0.{random.randrange(2, 250)}:{random.randrange(20000, 30000)}"
        options = ("--connect", place, "--world-size", "2", "--wait", "2")
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
