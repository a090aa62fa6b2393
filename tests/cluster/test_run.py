#!/usr/bin/env python3
"""trireme run: the workers' environment, the prefixes of their lines, the blame, and that no process is
left behind.

Usage: test_run.py TRIREME [unittest arguments]
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from waiting import LONG, alive, default_signals, leftovers, wait_until, wait_until_gone

TRIREME = ""


def command(workers, program, *options):
    return [TRIREME, "run", "--nproc-per-node", str(workers), *options, "--", *program]


def shell(workers, script, *options, **settings):
    """Runs a shell script as every worker to its end."""
    return subprocess.run(
        command(workers, ["sh", "-c", script], *options),
        capture_output=True,
        text=True,
        timeout=LONG,
        **settings,
    )


class Job:
    """A job that runs until it is ended. Each process of it writes its number into a folder."""

    def __init__(self, workers, script, *options):
        self.folder = tempfile.TemporaryDirectory()
        environment = dict(os.environ, FOLDER=self.folder.name)
        self.process = subprocess.Popen(
            command(workers, ["sh", "-c", script], *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=default_signals,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate(timeout=LONG)
        self.folder.cleanup()

    def files(self):
        return sorted(pathlib.Path(self.folder.name).iterdir())

    def wait_for(self, count):
        """The numbers in the files once there are `count`. Files come by rename: they are whole."""
        wait_until(
            lambda: len([f for f in self.files() if f.suffix == ".pid"]) >= count, "a process"
        )
        return [int(f.read_text()) for f in self.files() if f.suffix == ".pid"]

    def end(self):
        output, error = self.process.communicate(timeout=LONG)
        return self.process.returncode, output, error


# Writes this shell's number under a name of its own.
NOTE = 'note() { echo $$ > "$FOLDER/$1.tmp"; mv "$FOLDER/$1.tmp" "$FOLDER/$1.pid"; }; '
IDLE = NOTE + "note $RANK; while :; do sleep 0.05; done"


class Environment(unittest.TestCase):
    def test_each_worker_is_told_its_place(self):
        for workers in (1, 2, 5):
            done = shell(
                workers,
                "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT",
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(
                sorted(done.stdout.splitlines()),
                [f"[{r}] {r} {workers} {r} {workers} 127.0.0.1 29500" for r in range(workers)],
            )

    def test_all_workers_share_a_token_and_a_meeting_place_that_no_other_job_has(self):
        seen = set()
        for _ in range(3):
            done = shell(3, "echo $TRIREME_TOKEN $TRIREME_RENDEZVOUS", "--no-prefix")
            lines = done.stdout.splitlines()
            self.assertEqual(len(lines), 3)
            self.assertEqual(len(set(lines)), 1)
            self.assertRegex(lines[0], r"^[0-9a-f]{64} host://[0-9a-f]{32}$")
            token, place = lines[0].split()
            self.assertNotIn(place[len("host://") :], token)
            seen.add(lines[0])
        self.assertEqual(len(seen), 3)

    def test_variables_of_an_outer_job_are_replaced_and_others_stay(self):
        done = shell(
            1,
            "echo $RANK $WORLD_SIZE $OWN; env | grep -c ^RANK=",
            env=dict(os.environ, RANK="7", WORLD_SIZE="9", OWN="kept"),
        )
        self.assertEqual(done.stdout, "[0] 0 1 kept\n[0] 1\n")

    def test_the_token_is_in_no_command_line(self):
        with Job(2, 'printenv TRIREME_TOKEN > "$FOLDER/token"; ' + IDLE) as job:
            job.wait_for(2)
            token = pathlib.Path(job.folder.name, "token").read_bytes().strip()
            self.assertEqual(len(token), 64)
            lines = []
            for process in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    lines.append((process / "cmdline").read_bytes())
                except OSError:
                    pass  # it has ended
            self.assertTrue(any(b"trireme" in line for line in lines))
            self.assertFalse(any(token in line for line in lines))

    def test_workers_start_with_default_signals_no_input_and_only_the_usual_descriptors(self):
        script = (
            "grep -E '^Sig(Blk|Ign)' /proc/self/status; cat; "
            "ls /proc/self/fd | tr '\\n' ' '; echo; "
            "[ $(cut -d' ' -f5 /proc/$$/stat) = $$ ] && echo leads"
        )
        stops = {signal.SIGTERM, signal.SIGUSR1}
        blocked = lambda: (
            signal.pthread_sigmask(signal.SIG_BLOCK, stops),
            signal.signal(signal.SIGUSR2, signal.SIG_IGN),
        )
        done = shell(1, script, "--no-prefix", preexec_fn=blocked)
        lines = done.stdout.splitlines()
        self.assertEqual([line.split()[1] for line in lines[:2]], ["0" * 16, "0" * 16], done.stdout)
        self.assertEqual(lines[2].split(), ["0", "1", "2", "3"])  # 3 is the folder that ls reads
        self.assertEqual(lines[3:], ["leads"])

    def test_arguments_reach_the_program_as_they_are(self):
        strange = ["--nproc-per-node", "7", "--", "", "a b", "$HOME", "é\n"]
        done = subprocess.run(
            command(1, ["printf", "%s|", *strange], "--no-prefix"),
            capture_output=True,
            text=True,
            timeout=LONG,
        )
        self.assertEqual(done.stdout, "".join(f"{s}|" for s in strange) + "\n")


class Output(unittest.TestCase):
    def test_lines_of_workers_never_mix(self):
        # Each write is half a line, so that only whole lines passed on at once can come out right.
        done = shell(
            4,
            "i=0; while [ $i -lt 300 ]; do printf %s $RANK$RANK$RANK; "
            "printf '%s %s\\n' $RANK$RANK$RANK $i; i=$((i+1)); done",
        )
        self.assertEqual(done.returncode, 0)
        for rank in range(4):
            mine = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
            self.assertEqual(mine, [f"[{rank}] {str(rank) * 6} {i}" for i in range(300)])
        self.assertEqual(len(done.stdout.splitlines()), 1200)

    def test_stdout_and_stderr_stay_apart(self):
        done = shell(2, "echo out$RANK; echo error$RANK >&2")
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] out0", "[1] out1"])
        self.assertEqual(sorted(done.stderr.splitlines()), ["[0] error0", "[1] error1"])

    def test_a_last_line_without_an_end_is_not_lost(self):
        done = shell(2, "printf 'a\\n\\nb'")
        self.assertEqual(
            sorted(done.stdout.splitlines()), ["[0] ", "[0] a", "[0] b", "[1] ", "[1] a", "[1] b"]
        )

    def test_no_prefix_leaves_lines_as_they_are(self):
        done = shell(2, "echo x; echo y >&2", "--no-prefix")
        self.assertEqual((done.stdout, done.stderr), ("x\nx\n", "y\ny\n"))

    def test_much_output_and_bytes_that_are_no_text_arrive_whole(self):
        script = "yes $RANK | head -c 4000000; printf '\\377\\001'"
        done = subprocess.run(
            command(2, ["sh", "-c", script], "--no-prefix"), capture_output=True, timeout=LONG
        )
        self.assertEqual(done.stdout.count(b"0\n"), 2000000)
        self.assertEqual(done.stdout.count(b"1\n"), 2000000)
        self.assertEqual(done.stdout.count(b"\xff\x01\n"), 2)

    def test_a_very_long_line_comes_in_pieces(self):
        done = shell(1, "head -c 1000000 /dev/zero | tr '\\0' x", "--no-prefix")
        self.assertEqual(done.stdout.replace("\n", ""), "x" * 1000000)

    def test_logs_hold_each_workers_output_without_prefix(self):
        with tempfile.TemporaryDirectory() as folder:
            logs = pathlib.Path(folder, "new", "logs")
            done = shell(2, "echo out$RANK; printf error$RANK >&2", "--log-dir", str(logs))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("[1] out1\n", done.stdout)
            self.assertEqual(
                {f.name: f.read_text() for f in logs.iterdir()},
                {
                    "rank-0.out": "out0\n",
                    "rank-0.err": "error0",
                    "rank-1.out": "out1\n",
                    "rank-1.err": "error1",
                },
            )

    def test_a_log_folder_that_cannot_be_written_is_said_before_anything_starts(self):
        done = shell(2, "echo started", "--log-dir", "/dev/null/logs")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("trireme: cannot write /dev/null/logs/rank-0.out: ", done.stderr)

    def test_a_reader_who_goes_away_does_not_end_the_job(self):
        with tempfile.TemporaryDirectory() as folder:
            process = subprocess.Popen(
                command(2, ["sh", "-c", f"yes | head -c 300000; touch {folder}/$RANK"]),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            process.stdout.close()
            error = process.stderr.read()
            self.assertEqual((process.wait(timeout=LONG), error), (0, b""))
            process.stderr.close()
            self.assertEqual(sorted(os.listdir(folder)), ["0", "1"])


class Verdict(unittest.TestCase):
    def test_success_is_0_and_silent(self):
        done = shell(3, "exit 0")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_the_failed_rank_its_code_and_its_last_message_are_told(self):
        done = shell(
            3,
            "[ $RANK = 2 ] || exec sleep 100; echo first >&2; echo 'the reason' >&2; "
            "echo >&2; echo not this; exit 3",
        )
        self.assertEqual(done.returncode, 3)
        self.assertEqual(
            done.stderr.splitlines()[-1],
            "trireme: rank 2 failed: exit code 3; its last message: the reason",
        )

    def test_a_failure_without_a_message_is_told_too(self):
        done = shell(2, "[ $RANK = 0 ] || exec sleep 100; exit 9")
        self.assertEqual(
            (done.returncode, done.stderr), (9, "trireme: rank 0 failed: exit code 9\n")
        )

    def test_a_death_by_a_signal_is_named(self):
        for number, name in (
            (signal.SIGKILL, "SIGKILL"),
            (signal.SIGSEGV, "SIGSEGV"),
            (signal.SIGTERM, "SIGTERM"),
        ):
            done = shell(3, f"[ $RANK = 1 ] || exec sleep 100; ulimit -c 0; kill -{int(number)} $$")
            self.assertEqual(done.returncode, 128 + number)
            self.assertEqual(done.stderr, f"trireme: rank 1 failed: killed by {name}\n")

    def test_a_worker_that_fails_after_another_did_is_not_blamed(self):
        # Rank 0 ends with a code of its own when it is asked to end.
        script = NOTE + (
            "if [ $RANK = 1 ]; then "
            "while [ ! -e $FOLDER/0.pid ]; do sleep 0.05; done; "
            "exit 4; fi; trap 'echo late >&2; exit 5' TERM; note 0; "
            "while :; do sleep 0.05; done"
        )
        with Job(2, script) as job:
            code, _, error = job.end()
        self.assertEqual(code, 4)
        self.assertIn("[0] late\n", error)
        self.assertEqual(error.splitlines()[-1], "trireme: rank 1 failed: exit code 4")

    def test_a_worker_that_ends_well_early_does_not_end_the_others(self):
        done = shell(2, "[ $RANK = 0 ] && exit 0; sleep 0.5; echo still here")
        self.assertEqual((done.returncode, done.stdout), (0, "[1] still here\n"))

    def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(self):
        script = NOTE + (
            "if [ $RANK = 1 ]; then "
            "while [ ! -e $FOLDER/0.pid ]; do sleep 0.05; done; "
            "exit 6; fi; trap '' TERM; note 0; while :; do sleep 0.05; done"
        )
        begin = time.monotonic()
        with Job(2, script, "--grace", "0.5") as job:
            code, _, error = job.end()
        self.assertEqual(code, 6)
        self.assertGreaterEqual(time.monotonic() - begin, 0.5)
        self.assertIn("rank 1 failed: exit code 6", error)

    def test_a_program_that_is_not_there_is_127_and_one_that_cannot_run_126(self):
        for program, code, words in (
            ("no-such-program", 127, "was not found"),
            ("/no/such/program", 127, "was not found"),
            ("/etc/passwd", 126, "is not executable"),
            ("/etc", 126, "is not executable"),
        ):
            done = subprocess.run(
                command(2, [program]), capture_output=True, text=True, timeout=LONG
            )
            self.assertEqual(
                (done.returncode, done.stdout, done.stderr),
                (code, "", f'trireme: program "{program}" {words}\n'),
            )

    def test_a_program_that_the_kernel_refuses_is_126_with_the_reason(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"#!/no/such/interpreter\n")
            file.flush()
            os.chmod(file.name, 0o755)
            copy = file.name + ".copy"  # a file that is open for writing cannot be run
            subprocess.run(["cp", "-p", file.name, copy], check=True)
            try:
                done = subprocess.run(
                    command(1, [copy]), capture_output=True, text=True, timeout=LONG
                )
            finally:
                os.unlink(copy)
        self.assertEqual(done.returncode, 127)
        self.assertIn(
            f"rank 0 failed: exit code 127; its last message: trireme: cannot run {copy}: ",
            done.stderr,
        )

    def test_the_cause_is_named_and_not_who_lost_it(self):
        # Rank 2 fails once rank 1 runs, and rank 1 once rank 2 has ended.
        script = NOTE + (
            "[ $RANK = 0 ] && exec sleep 100; note $RANK; "
            "while [ ! -e $FOLDER/$((3 - RANK)).pid ]; do sleep 0.01; done; if [ $RANK = 2 ]; then "
            'echo "trireme._errors.PeerLostError: trireme_all_reduce: rank 1 left" >&2; exit 1; '
            "fi; while kill -0 $(cat $FOLDER/2.pid) 2>/dev/null; do sleep 0.01; done; "
            'printf "%s\\n" "ValueError: the data are bad" '
            '"  at Trainer.Step (System.Int32 step) [0x00018] in <a>:0" '
            '"note: run with \\`RUST_BACKTRACE=1\\` environment variable" >&2; exit 3'
        )
        with Job(3, script) as job:
            code, _, error = job.end()
        self.assertEqual(
            (code, error.splitlines()[-1]),
            (
                3,
                "trireme: rank 1 failed: exit code 3; its last message: ValueError: the data are bad",
            ),
        )

    def test_who_lost_a_peer_is_named_if_nobody_else_has_failed(self):
        done = shell(
            2, '[ $RANK = 0 ] && exec sleep 100; echo "PEER_LOST: rank 0 left" >&2; exit 1'
        )
        self.assertEqual(
            (done.returncode, done.stderr.splitlines()[-1]),
            (1, "trireme: rank 1 failed: exit code 1; its last message: PEER_LOST: rank 0 left"),
        )

    def test_survivors_are_kept_where_it_is_asked_for(self):
        with Job(
            3,
            NOTE + "if [ $RANK = 1 ]; then note 1; kill -9 $$; fi; "
            "while [ ! -e $FOLDER/go ]; do sleep 0.05; done; echo lives; exit $RANK",
            "--keep-survivors",
        ) as job:
            job.wait_for(1)
            first = job.process.stderr.readline()
            self.assertEqual(first, "trireme: rank 1 failed: killed by SIGKILL. The others go on\n")
            pathlib.Path(job.folder.name, "go").touch()
            code, output, error = job.end()
        self.assertEqual((code, sorted(output.splitlines())), (0, ["[0] lives", "[2] lives"]))
        self.assertIn("trireme: rank 2 failed: exit code 2", error)

    def test_no_survivor_is_a_failure(self):
        done = shell(2, "exit 4", "--keep-survivors")
        self.assertEqual(done.returncode, 4)
        self.assertRegex(done.stderr.splitlines()[-1], "^trireme: rank [01] failed: exit code 4$")

    def test_failed_workers_are_started_again(self):
        script = (
            "echo try $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 4"
        )
        with tempfile.TemporaryDirectory() as folder:
            done = shell(1, script, "--max-restarts", "3", "--log-dir", folder)
            self.assertEqual(
                pathlib.Path(folder, "rank-0.out").read_text(), "try 0\ntry 1\ntry 2\n"
            )
        self.assertEqual((done.returncode, done.stdout), (0, "[0] try 0\n[0] try 1\n[0] try 2\n"))
        self.assertEqual(
            done.stderr.splitlines(),
            [
                "trireme: rank 0 failed: exit code 4",
                "trireme: the workers are started again (restart 1 of at most 3)",
                "trireme: rank 0 failed: exit code 4",
                "trireme: the workers are started again (restart 2 of at most 3)",
            ],
        )
        done = shell(2, "exit 4", "--max-restarts", "1")
        self.assertEqual(done.returncode, 4)
        self.assertEqual(done.stderr.count("started again"), 1)


class Signals(unittest.TestCase):
    def test_signals_reach_the_workers_and_the_code_says_which(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # `note` comes after `trap`, so that a worker that can be seen can also hear.
            script = (
                NOTE + 'for s in INT TERM HUP; do trap "echo got $s; exit 0" $s; done; '
                "note $RANK; while :; do sleep 0.05; done"
            )
            with Job(3, script) as job:
                job.wait_for(3)
                job.process.send_signal(number)
                code, output, error = job.end()
            self.assertEqual(code, 128 + number)
            name = number.name[3:]
            self.assertEqual(sorted(output.splitlines()), [f"[{r}] got {name}" for r in range(3)])
            # The rest is what a shell says about its child.
            self.assertEqual(
                error.splitlines()[0], f"trireme: SIG{name} is passed on to the workers"
            )
            self.assertNotIn("failed", error)

    def test_a_worker_that_ignores_a_passed_on_signal_is_killed_after_the_grace(self):
        with Job(2, "trap '' TERM; " + IDLE, "--grace", "0.3") as job:
            workers = job.wait_for(2)
            job.process.terminate()
            code, _, error = job.end()
            self.assertEqual(code, 128 + signal.SIGTERM)
            self.assertNotIn("failed", error)
            self.assertEqual([pid for pid in workers if alive(pid)], [])

    def test_signals_reach_the_children_of_a_worker_too(self):
        script = NOTE + (
            'sh -c \'trap "echo child got it; exit 0" TERM; '
            "echo $$ > $FOLDER/$RANK.tmp; mv $FOLDER/$RANK.tmp $FOLDER/$RANK.pid; "
            "while :; do sleep 0.05; done' & "
            "trap 'wait; exit 0' TERM; wait"
        )
        with Job(1, script) as job:
            job.wait_for(1)
            job.process.terminate()
            code, output, _ = job.end()
            self.assertEqual((code, output), (128 + signal.SIGTERM, "[0] child got it\n"))

    def test_a_job_under_nohup_survives_sighup(self):
        process = subprocess.Popen(
            command(1, ["sh", "-c", "echo up; sleep 0.5; echo end"]),
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )
        self.assertEqual(process.stdout.readline(), "[0] up\n")
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.stdout.read(), "[0] end\n")
        self.assertEqual(process.wait(timeout=LONG), 0)
        process.stdout.close()


class Lifeline(unittest.TestCase):
    # A worker with a child in its own group and one in a session of its own, all deaf to signals.
    FAMILY = (
        "trap '' TERM INT HUP; "
        + NOTE
        + "me='echo $$ > $FOLDER/$0.tmp; mv $FOLDER/$0.tmp $FOLDER/$0.pid; "
        "while :; do sleep 0.05; done'; "
        'sh -c "$me" child-$RANK & setsid sh -c "$me" daemon-$RANK & '
        '(setsid sh -c "$me" orphan-$RANK &); note $RANK; '
    )

    def assert_all_gone(self, pids):
        wait_until(lambda: not any(alive(pid) for pid in pids), "the end of every process")

    def test_kill_9_of_the_launcher_leaves_no_process_and_no_file(self):
        before = leftovers()
        for workers in (1, 3):
            with Job(workers, self.FAMILY + "while :; do sleep 0.05; done") as job:
                pids = job.wait_for(4 * workers)
                self.assertTrue(all(alive(pid) for pid in pids))
                job.process.kill()
                job.process.wait(timeout=LONG)
                self.assert_all_gone(pids)
        wait_until_gone(leftovers() - before)

    def test_what_a_worker_leaves_behind_ends_with_it(self):
        with Job(2, self.FAMILY + "while [ ! -e $FOLDER/go ]; do sleep 0.05; done; exit 0") as job:
            pids = job.wait_for(8)
            pathlib.Path(job.folder.name, "go").touch()
            code, _, error = job.end()
            self.assertEqual((code, error), (0, ""))
            self.assertEqual([pid for pid in pids if alive(pid)], [])

    def test_kill_9_of_a_supervisor_ends_its_worker_and_is_told(self):
        with Job(2, IDLE) as job:
            pids = job.wait_for(2)
            parent = pathlib.Path(f"/proc/{pids[1]}/stat").read_text().rsplit(")", 1)[1].split()[1]
            os.kill(int(parent), signal.SIGKILL)
            code, _, error = job.end()
            self.assertEqual(code, 128 + signal.SIGKILL)
            self.assertRegex(error, r"^trireme: rank 1 failed: killed by SIGKILL\n$")
            self.assert_all_gone(pids)

    # Leaves the group that it was started in for that of a child, and is deaf to what is polite.
    ELSEWHERE = f"""exec {sys.executable} -c '
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
else:
    while os.getpgid(child) != child: time.sleep(0.01)
    os.setpgid(0, child)
name = os.environ["FOLDER"] + "/" + os.environ["RANK"] + ("" if child else "-child")
open(name + ".tmp", "w").write(str(os.getpid()))
os.rename(name + ".tmp", name + ".pid")
while True: time.sleep(0.05)
'"""

    def test_a_worker_in_another_process_group_is_ended_too(self):
        with Job(2, self.ELSEWHERE, "--grace", "0.3") as job:
            pids = job.wait_for(4)
            job.process.terminate()
            code, _, error = job.end()
            self.assertEqual(
                (code, error),
                (128 + signal.SIGTERM, "trireme: SIGTERM is passed on to the workers\n"),
            )
            self.assertEqual([pid for pid in pids if alive(pid)], [])
        with Job(2, self.ELSEWHERE) as job:
            pids = job.wait_for(4)
            job.process.kill()
            job.process.wait(timeout=LONG)
            self.assert_all_gone(pids)

    def supervisors(self, pids):
        stats = [pathlib.Path(f"/proc/{pid}/stat").read_text() for pid in pids]
        return {int(stat.rsplit(")", 1)[1].split()[1]) for stat in stats}

    def test_a_worker_whose_supervisor_is_stopped_is_ended_too(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with Job(2, IDLE) as job:
                pids = job.wait_for(2)
                for supervisor in self.supervisors(pids):
                    os.kill(supervisor, signal.SIGSTOP)
                job.process.send_signal(number)
                job.process.wait(timeout=LONG)
                self.assert_all_gone(pids)
                if number == signal.SIGTERM:
                    code, _, error = job.end()
                    self.assertEqual(code, 128 + signal.SIGTERM)
                    self.assertNotIn("left behind", error)

    def test_kill_9_of_launcher_and_supervisors_together_ends_the_workers(self):
        with Job(3, IDLE) as job:
            pids = job.wait_for(3)
            for pid in (job.process.pid, *self.supervisors(pids)):
                with contextlib.suppress(ProcessLookupError):  # it saw the one before it die
                    os.kill(pid, signal.SIGKILL)
            self.assert_all_gone(pids)


class Torchrun(unittest.TestCase):
    """Lines that are written for torchrun."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.environment = dict(os.environ, PYTHONPATH=self.folder)
        pathlib.Path(self.folder, "train.py").write_text(
            "import os, sys\n"
            "print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['MASTER_ADDR'],"
            " os.environ['MASTER_PORT'], *sys.argv[1:])\n"
        )

    def said(self, *line, **variables):
        done = subprocess.run(
            [TRIREME, "run", "--no-prefix", *line],
            capture_output=True,
            text=True,
            timeout=LONG,
            cwd=self.folder,
            env={**self.environment, **variables},
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), line)
        return sorted(done.stdout.splitlines())

    def test_its_spellings_are_understood(self):
        both = ["0 2 127.0.0.1 29500 --lr 3", "1 2 127.0.0.1 29500 --lr 3"]
        program = ["train.py", "--lr", "3"]
        for options in (
            ["--nproc_per_node=2"],
            ["--nproc-per-node", "2"],
            ["--nproc_per_node", "2"],
            [
                "--nnodes=1",
                "--nproc_per_node=2",
                "--rdzv_backend=c10d",
                "--rdzv_endpoint=localhost:0",
            ],
        ):
            self.assertEqual(self.said(*options, *program), both)
            self.assertEqual(self.said(*options, "--", *program), both)
        self.assertEqual(self.said("--nproc_per_node=2", "-m", "train", "--lr", "3"), both)
        self.assertEqual(
            self.said(
                "--nproc_per_node=1",
                "--nnodes=1",
                "--node_rank=0",
                "--master_addr=10.0.0.9",
                "--master_port=4711",
                "train.py",
            ),
            ["0 1 10.0.0.9 4711"],
        )

    def test_standalone_has_a_port_to_itself(self):
        ports = set()
        for _ in range(2):
            (line,) = self.said("--standalone", "--nnodes=1", "--nproc_per_node=1", "train.py")
            self.assertRegex(line, r"^0 1 127\.0\.0\.1 \d+$")
            ports.add(line.split()[3])
        self.assertNotIn("29500", ports)

    def test_auto_takes_the_gpus_and_else_the_cores(self):
        self.assertEqual(
            len(self.said("--nproc-per-node", "auto", "train.py", CUDA_VISIBLE_DEVICES="0,1,2")), 3
        )
        cores = len(os.sched_getaffinity(0))
        for count in ("auto", "cpu"):
            self.assertEqual(
                len(self.said("--nproc-per-node", count, "train.py", CUDA_VISIBLE_DEVICES="")),
                cores,
            )

    def test_an_interpreter_of_its_own_counts(self):
        script = pathlib.Path(self.folder, "own.py")
        script.write_text("#!/bin/sh\necho shell $RANK\n")
        script.chmod(0o755)
        self.assertEqual(self.said("--nproc-per-node=1", str(script)), ["shell 0"])
        self.assertEqual(
            self.said("--nproc-per-node=1", "train.py", TRIREME_PYTHON="/bin/echo"), ["-u train.py"]
        )

    def test_each_worker_sees_its_gpu_and_its_cores_alone(self):
        shell_script = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
        self.assertEqual(
            self.said(
                "--nproc-per-node=2", "--bind-gpus", *shell_script, CUDA_VISIBLE_DEVICES="GPU-a,7,5"
            ),
            ["7", "GPU-a"],
        )
        cores = sorted(os.sched_getaffinity(0))
        workers = min(len(cores), 2)
        script = "import os; print(os.environ['OMP_NUM_THREADS'], *sorted(os.sched_getaffinity(0)))"
        seen = self.said(
            f"--nproc-per-node={workers}", "--bind-cores", sys.executable, "-c", script
        )
        lines = [[int(word) for word in line.split()] for line in seen]
        self.assertEqual(sorted(core for line in lines for core in line[1:]), cores)
        self.assertEqual({line[0] for line in lines}, {len(cores) // workers})

    def test_warnings_are_asked_for_and_the_users_choice_counts(self):
        line = ["--nproc-per-node=1", "sh", "-c", "echo $TRIREME_LOG"]
        clean = {"TRIREME_LOG": "error"}
        self.environment.pop("TRIREME_LOG", None)
        self.assertEqual((self.said(*line), self.said(*line, **clean)), (["warning"], ["error"]))


class Arguments(unittest.TestCase):
    def refused(self, arguments, words):
        done = subprocess.run([TRIREME, *arguments], capture_output=True, text=True, timeout=LONG)
        self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
        self.assertIn("trireme: ", done.stderr)
        self.assertIn(words, done.stderr)

    def test_what_is_unknown_or_out_of_range_is_refused(self):
        n = ["--nproc-per-node", "1"]
        self.refused([], "run, bench, plan, doctor or info")
        self.refused(["walk"], "walk")
        self.refused(["run"], "--nproc-per-node")
        self.refused(["run", "--", "true"], "--nproc-per-node")
        self.refused(["run", *n], "PROGRAM")
        self.refused(["run", *n, "--"], "PROGRAM")
        self.refused(["run", *n, "--rdzv-backend", "etcd", "--", "true"], "--rdzv-backend")
        for count in ("0", "-1", "1025", "two", "1.5", "99999999999999999999"):
            self.refused(["run", "--nproc-per-node", count, "--", "true"], "--nproc-per-node")
        for grace in ("-1", "soon", "86401", "nan"):
            self.refused(["run", *n, "--grace", grace, "--", "true"], "--grace")
        self.refused(["info", "--", "true"], "--")
        self.refused(["info", "--all"], "--all")
        self.refused(["run", "--nproc-per-nod=2", "true"], "did you mean --nproc-per-node?")
        self.refused(["run", "--rdvz_endpoint", "a:1", "true"], "did you mean --rdzv-endpoint?")
        self.refused(["run", "--nproc-per-node"], "a value is missing")
        self.refused(["run", *n, "--no-prefix=1", "true"], "takes no value")
        self.refused(["run", *n, "-m", "--no-python", "true"], "--no-python")
        self.refused(["run", *n, "--standalone", "--nnodes", "2", "true"], "--standalone")
        self.refused(["run", "--nproc-per-node", "1024", "--bind-cores", "true"], "--bind-cores")
        self.refused(["run", "--nproc-per-node", "1024", "--bind-gpus", "true"], "--bind-gpus")
        self.refused(["supervisor", "true"], "only for trireme run")

    def test_version_info_and_help_answer(self):
        version = subprocess.run(
            [TRIREME, "--version"], capture_output=True, text=True, timeout=LONG
        )
        self.assertRegex(version.stdout, r"^trireme \d+\.\d+\.\d+\n$")
        info = subprocess.run([TRIREME, "info"], capture_output=True, text=True, timeout=LONG)
        self.assertIn(version.stdout.split()[1], info.stdout)
        points = subprocess.run(
            [TRIREME, "info", "--failpoints"], capture_output=True, text=True, timeout=LONG
        )
        self.assertIn("all_reduce.after_publish\n", points.stdout)
        for done in (version, info, points):
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        text = subprocess.run(
            [TRIREME, "run", "--help"], capture_output=True, text=True, timeout=LONG
        )
        self.assertEqual(text.returncode, 0)
        for option in (
            "--nproc-per-node",
            "--no-prefix",
            "--log-dir",
            "--grace",
            "[--] PROGRAM",
            "--max-restarts",
            "--keep-survivors",
            "--bind-cores",
            "--bind-gpus",
            "--module",
            "--no-python",
            "--standalone",
            "--master-addr",
            "--master-port",
            "--rdzv-backend",
        ):
            self.assertIn(option, text.stdout)


if __name__ == "__main__":
    TRIREME = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
