#!/usr/bin/env python3
"""trireme doctor: says what Python sees of the same machine, and gives advice where something is
short.

Usage: test_doctor.py TRIREME [unittest arguments]
"""

import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import unittest

TRIREME = ""
JOB = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TRIREME_RENDEZVOUS",
       "TRIREME_TOKEN")


def doctor(*options, environment=None, **settings):
    clean = {name: value for name, value in os.environ.items() if name not in JOB}
    return subprocess.run([TRIREME, "doctor", *options], capture_output=True, text=True, timeout=60,
                          env={**clean, **(environment or {})}, **settings)


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

    def test_what_it_does_not_know_is_refused(self):
        for options in (["--no-such"], ["extra"], ["--folder"]):
            done = doctor(*options)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    TRIREME = sys.argv.pop(1)
    unittest.main()
