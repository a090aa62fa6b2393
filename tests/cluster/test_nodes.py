#!/usr/bin/env python3
"""trireme run --nnodes: agents that are as on several hosts, but share this one's loopback. The tests
check the ranks of each agent, admission, the failures that end the job, and that no process is left.

Usage: test_nodes.py TRIREME [unittest arguments]
"""

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from waiting import LONG, alive, default_signals, end_now, free_port, listens, wait_until

TRIREME = ""
TOKEN = "a token of the tests, which no job has"
STARTERS = (
    "SLURM_NNODES",
    "SLURM_NODEID",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_SIZE",
    "PMI_RANK",
    "TRIREME_TOKEN_FILE",
    "TRIREME_TOKEN_FD",
)
# Writes this shell's number under its rank, whole from the beginning. It comes after the traps of a
# script: a worker that can be seen can also hear.
NOTE = 'echo $$ > "$FOLDER/$RANK.tmp"; mv "$FOLDER/$RANK.tmp" "$FOLDER/$RANK.pid"; '
IDLE = NOTE + "while :; do sleep 0.05; done"
# Calls at a port without end, as fast as it can, and says nothing.
FLOOD = """
import socket, sys
calls = []
while True:
    calls.append(socket.socket())
    calls[-1].setblocking(False)
    calls[-1].connect_ex(("127.0.0.1", int(sys.argv[1])))
    if len(calls) > 300:
        calls.pop(0).close()
"""


class Relay:
    """Stands between an agent and its coordinator, and can cut their connections."""

    def __init__(self, port):
        self.coordinator = ("127.0.0.1", port)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.place = "127.0.0.1:" + str(self.server.getsockname()[1])
        self.calls = 0  # that have come to the coordinator
        self.is_open = threading.Event()
        self.is_open.set()
        self.ends = []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            caller, _ = self.server.accept()
            self.is_open.wait()
            try:
                ends = (caller, socket.create_connection(self.coordinator))
            except OSError:  # it does not listen
                caller.close()
                continue
            self.ends += ends
            for source, sink in (ends, ends[::-1]):
                threading.Thread(target=self.pass_on, args=(source, sink), daemon=True).start()
            self.calls += 1

    @staticmethod
    def pass_on(source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """Later calls wait until is_open is set."""
        self.is_open.clear()
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Nodes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.agents = []
        self.addCleanup(self.end_all)
        self.port = free_port()

    def end_all(self):
        for agent in self.agents:
            end_now(agent)

    def agent(
        self,
        script,
        *options,
        workers=1,
        nodes="2",
        token=TOKEN,
        endpoint=None,
        descriptors=(),
        **variables,
    ):
        environment = {name: value for name, value in os.environ.items() if name not in STARTERS}
        environment.update(FOLDER=self.folder.name, TRIREME_TOKEN=token, **variables)
        agent = subprocess.Popen(
            [
                TRIREME,
                "run",
                "--nnodes",
                nodes,
                "--rdzv-endpoint",
                endpoint or f"127.0.0.1:{self.port}",
                "--nproc-per-node",
                str(workers),
                *options,
                "--",
                "sh",
                "-c",
                script,
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=descriptors,
        )
        self.agents.append(agent)
        return agent

    def coordinator(self, *arguments, **settings):
        """The agent that listens; it does so once this comes back."""
        agent = self.agent(*arguments, **settings)
        wait_until(lambda: listens(self.port) or agent.poll() is not None, "a coordinator")
        return agent

    def end(self, agent):
        output, error = agent.communicate(timeout=LONG)
        return agent.returncode, output, error

    def pids(self, count):
        """The numbers of workers, once there are so many."""
        folder = pathlib.Path(self.folder.name)
        wait_until(lambda: len(list(folder.glob("*.pid"))) >= count, "a worker")
        return {int(file.stem): int(file.read_text()) for file in folder.glob("*.pid")}

    def assert_all_gone(self, pids):
        wait_until(lambda: not any(alive(pid) for pid in pids), "the end of every worker")


class Places(Nodes):
    def test_ranks_are_contiguous_on_each_host_and_all_meet_in_one_place(self):
        script = (
            "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK "
            "$GROUP_WORLD_SIZE $NODE_RANK; "
            "echo meet $MASTER_ADDR $MASTER_PORT $TRIREME_RENDEZVOUS $TRIREME_TOKEN"
        )
        first = self.coordinator(script, "--no-prefix", workers=2)
        second = self.agent(script, "--no-prefix", workers=3)
        places = []
        for node, workers, agent in ((0, 2, first), (1, 3, second)):
            code, output, error = self.end(agent)
            self.assertEqual((code, error), (0, ""))
            lines = sorted(line for line in output.splitlines() if not line.startswith("meet"))
            begin = 2 * node
            self.assertEqual(
                lines, [f"{begin + i} 5 {i} {workers} {node} 2 {node}" for i in range(workers)]
            )
            places += [line for line in output.splitlines() if line.startswith("meet")]
        self.assertEqual(len(places), 5)
        self.assertEqual(len(set(places)), 1)
        self.assertRegex(
            places[0], rf"^meet 127\.0\.0\.1 \d+ tcp://127\.0\.0\.1:\d+/[0-9a-f]{{16}} {TOKEN}$"
        )

    def test_lines_and_logs_bear_the_rank_of_the_job(self):
        logs = pathlib.Path(self.folder.name, "logs")
        first = self.coordinator("echo out$RANK", "--log-dir", str(logs))
        second = self.agent("echo out$RANK", "--log-dir", str(logs), workers=2)
        self.assertEqual(self.end(first), (0, "[0] out0\n", ""))
        self.assertEqual(sorted(self.end(second)[1].splitlines()), ["[1] out1", "[2] out2"])
        self.assertEqual((logs / "rank-2.out").read_text(), "out2\n")

    def test_node_ranks_can_be_chosen(self):
        script = "echo $RANK $MASTER_ADDR"
        agents = {
            1: self.coordinator(script, "--node-rank", "1", nodes="3"),
            2: self.agent(script, "--node-rank", "2", nodes="3"),
            0: self.agent(script, "--node-rank", "0", nodes="3"),
        }
        for node, agent in agents.items():
            self.assertEqual(self.end(agent), (0, f"[{node}] {node} 127.0.0.1\n", ""))

    def test_slurm_and_mpirun_say_how_many_and_which(self):
        for nodes, rank in (
            ("SLURM_NNODES", "SLURM_NODEID"),
            ("PMI_SIZE", "PMI_RANK"),
            ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        ):
            agents = [
                self.agent("echo $RANK $WORLD_SIZE", nodes="auto", **{nodes: "2", rank: str(i)})
                for i in (1, 0)
            ]
            self.assertEqual(self.end(agents[0]), (0, "[1] 1 2\n", ""))
            self.assertEqual(self.end(agents[1]), (0, "[0] 0 2\n", ""))

    def test_the_ports_that_ranks_are_told_can_be_listened_on_and_nobody_else_gets_them(self):
        script = """python3 - <<'END'
import os, re, socket
ports = [int(os.environ["MASTER_PORT"]),
         int(re.search(r":(\\d+)/", os.environ["TRIREME_RENDEZVOUS"]).group(1))]
others = []
for _ in range(200):
    others.append(socket.socket())
    others[-1].bind(("127.0.0.1", 0))
assert not {other.getsockname()[1] for other in others} & set(ports)
for port in ports:
    server = socket.create_server(("127.0.0.1", port))
    socket.create_connection(("127.0.0.1", port)).close()
print("fine")
END"""
        self.assertEqual(self.end(self.agent(script, nodes="1")), (0, "[0] fine\n", ""))

    def test_the_token_can_be_in_a_file_and_stays_there(self):
        file = pathlib.Path(self.folder.name, "token")
        file.write_text("a token that is in a file\n")
        file.chmod(0o600)
        script = "echo ${TRIREME_TOKEN:-none} $TRIREME_TOKEN_FILE"
        settings = {"token": "", "TRIREME_TOKEN_FILE": str(file)}
        agents = [self.coordinator(script, **settings), self.agent(script, **settings)]
        for rank, agent in enumerate(agents):
            self.assertEqual(self.end(agent), (0, f"[{rank}] none {file}\n", ""))

    def test_a_token_by_descriptor_is_read_by_the_agent_and_reaches_its_workers(self):
        # A descriptor can be read but once: who is told its number would look for the token there.
        script = "echo ${TRIREME_TOKEN:-none} ${TRIREME_TOKEN_FD:-none}"
        agents = []
        for _ in range(2):
            reader, writer = os.pipe()
            os.write(writer, TOKEN.encode() + b"\n")
            os.close(writer)
            agents.append(
                self.agent(script, token="", descriptors=(reader,), TRIREME_TOKEN_FD=str(reader))
            )
            os.close(reader)
        for agent in agents:
            code, output, error = self.end(agent)
            self.assertEqual((code, output[3:], error), (0, f" {TOKEN} none\n", ""))

    def test_mpirun_inside_an_allocation_of_slurm_goes_first(self):
        agents = [
            self.agent(
                "echo $RANK $WORLD_SIZE",
                nodes="auto",
                OMPI_COMM_WORLD_SIZE="2",
                OMPI_COMM_WORLD_RANK=str(node),
                SLURM_NNODES=str(2 - node),
                SLURM_NODEID="0",
            )
            for node in (0, 1)
        ]
        for node, agent in enumerate(agents):
            self.assertEqual(self.end(agent), (0, f"[{node}] {node} 2\n", ""))


class Joining(Nodes):
    def test_who_does_not_belong_is_refused_with_the_reason_while_the_others_wait(self):
        first = self.coordinator("echo $RANK", "--node-rank", "0")
        for words, arguments, settings in (
            ("does not know the token of this job", [], {"token": TOKEN + "?"}),
            ("belongs to another job", ["--rdzv-id", "other"], {}),
            ("it was started with --nnodes 3, the job with --nnodes 2", [], {"nodes": "3"}),
            (
                "it was started with --max-restarts 1, the job with --max-restarts 0",
                ["--max-restarts", "1"],
                {},
            ),
            ("node rank 0 is taken by an agent on", ["--node-rank", "0"], {}),
        ):
            code, output, error = self.end(self.agent("echo no", *arguments, **settings))
            self.assertEqual((code, output), (1, ""))
            self.assertIn(words, error)
            self.assertIn(f"trireme: the agent at 127.0.0.1:{self.port}", error)
            self.assertIsNone(first.poll())
        self.assertEqual(self.end(self.agent("echo $RANK")), (0, "[1] 1\n", ""))
        code, output, error = self.end(first)
        self.assertEqual((code, output), (0, "[0] 0\n"))
        # The coordinator has told of them, too.
        self.assertIn("a caller from 127.0.0.1 does not know the token of this job", error)
        self.assertIn("is refused: node rank 0 is taken", error)

    def test_without_a_token_nothing_begins(self):
        for token, words in (("", "need the job's token"), ("short", "has 5 bytes")):
            code, output, error = self.end(self.agent("echo no", token=token))
            self.assertEqual((code, output), (1, ""))
            self.assertIn(words, error)
        self.assertFalse(listens(self.port))

    def test_the_fewest_begin_after_the_last_call_and_who_comes_later_is_refused(self):
        conf = ("--rdzv-conf", "last_call_timeout=0.3")
        agents = [self.coordinator(IDLE, *conf, nodes="2:4"), self.agent(IDLE, *conf, nodes="2:4")]
        self.assertEqual(sorted(self.pids(2)), [0, 1])
        code, _, error = self.end(self.agent("echo no", *conf, nodes="2:4"))
        self.assertEqual(code, 1)
        self.assertIn("refuses this one: the job has begun without it, with 2 nodes", error)
        self.assertEqual([agent.poll() for agent in agents], [None, None])

    def test_the_most_begin_at_once(self):
        agents = [self.coordinator("echo $WORLD_SIZE", nodes="1:3")]
        agents += [self.agent("echo $WORLD_SIZE", nodes="1:3") for _ in range(2)]
        for agent in agents:
            code, output, _ = self.end(agent)
            self.assertEqual((code, output[3:]), (0, " 3\n"))

    def test_too_few_in_time_is_told_to_all_with_who_came(self):
        conf = ("--rdzv-conf", "join_timeout=6")
        agents = [
            self.coordinator("echo no", *conf, nodes="3"),
            self.agent("echo no", "--rdzv-conf", "join_timeout=30", nodes="3"),
        ]
        for agent in agents:
            code, output, error = self.end(agent)
            self.assertEqual((code, output), (1, ""))
            name = socket.gethostname()
            self.assertEqual(
                error,
                f"trireme: only 2 of at least 3 nodes have come within 6 s: {name} {name}\n",
            )

    def test_a_coordinator_that_never_comes_is_named(self):
        agent = self.agent("echo no", endpoint="0.0.0.0:1")
        self.assertIn("it is every address of a host", self.end(agent)[2])
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", self.port))
            deaf.listen()  # somebody else's port, who says nothing
            code, _, error = self.end(self.agent("echo no", "--rdzv-conf", "join_timeout=0.5"))
            self.assertEqual(code, 1)
            self.assertEqual(
                error,
                f"trireme: the agent at 127.0.0.1:{self.port} has not been reached "
                "within 0.5 s: no answer\n",
            )

    def test_another_program_at_the_endpoint_is_told_from_a_wrong_token(self):
        with socket.create_server(("127.0.0.1", self.port)) as server:
            server.settimeout(LONG)
            agent = self.agent("echo no")
            caller, _ = server.accept()
            with caller:
                caller.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                self.assertEqual(
                    self.end(agent),
                    (
                        1,
                        "",
                        f"trireme: the agent at 127.0.0.1:{self.port} does not know the token of "
                        "this job: it is another program\n",
                    ),
                )

    def test_agents_wait_for_a_coordinator_that_comes_back(self):
        first = self.coordinator("echo no")
        # Asked for 3 nodes, so that this one would be refused if it had been heard.
        others = [self.agent("echo $RANK", nodes="3")]
        self.assertEqual(self.end(others[0])[0], 1)
        first.kill()
        first.wait()
        again = self.coordinator("echo $WORLD_SIZE")
        self.assertEqual(self.end(self.agent("echo $WORLD_SIZE"))[0], 0)
        self.assertEqual(self.end(again), (0, "[0] 2\n", ""))

    def test_an_agent_that_goes_before_the_job_begins_is_not_missed(self):
        first = self.coordinator("echo $WORLD_SIZE", nodes="3")
        left = self.one_of_two_that_is_known()
        left.send_signal(signal.SIGTERM)
        self.assertEqual(self.end(left)[0], 128 + signal.SIGTERM)
        self.assertIsNone(first.poll())
        last = [self.agent("echo $WORLD_SIZE", "--node-rank", rank, nodes="3") for rank in "12"]
        for agent in (first, *last):
            code, output, error = self.end(agent)
            self.assertEqual((code, output[3:]), (0, " 3\n"), error)

    def one_of_two_that_is_known(self):
        """Of two agents that want one node rank one is refused: the other has joined."""
        agents = [self.agent("echo no", "--node-rank", "2", nodes="3") for _ in range(2)]
        wait_until(lambda: any(agent.poll() is not None for agent in agents), "a refusal")
        refused = next(agent for agent in agents if agent.poll() is not None)
        self.assertEqual(self.end(refused)[0], 1)
        return next(agent for agent in agents if agent is not refused)

    def test_strangers_neither_get_in_nor_in_the_way(self):
        first = self.coordinator("echo $RANK")
        hellos = [
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01\x02\x00",
            random.Random(5).randbytes(4000),
            b"trireme\n" + b"\0" * 200,
        ]
        strangers = []
        for number in range(200):
            strangers.append(socket.create_connection(("127.0.0.1", self.port), timeout=LONG))
            try:
                strangers[-1].sendall(hellos[number % len(hellos)])
            except OSError:
                pass  # refused already
        second = self.agent("echo $RANK")
        self.assertEqual(self.end(second), (0, "[1] 1\n", ""))
        code, output, error = self.end(first)
        self.assertEqual((code, output), (0, "[0] 0\n"))
        self.assertLessEqual(len(error.splitlines()), 3, error)
        for stranger in strangers:
            stranger.close()

    @unittest.skipIf(
        os.environ.get("TRIREME_TEST_QUICK"),
        "under a sanitizer an agent's turn behind a flood comes later than it waits",
    )
    def test_an_agent_gets_in_while_strangers_call_without_end(self):
        first = self.coordinator("echo $RANK")
        floods = [subprocess.Popen([sys.executable, "-c", FLOOD, str(self.port)]) for _ in range(2)]
        try:
            # The coordinator has as many of them as it takes.
            wait_until(lambda: len(os.listdir(f"/proc/{first.pid}/fd")) > 60, "a flood")
            second = self.agent("echo $RANK", "--rdzv-conf", "join_timeout=40")
            self.assertEqual(self.end(second), (0, "[1] 1\n", ""))
            self.assertEqual(self.end(first), (0, "[0] 0\n", ""))
        finally:
            for flood in floods:
                flood.kill()
                flood.wait()

    def test_nobody_is_heard_at_another_address(self):
        self.coordinator("echo no")
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", self.port), timeout=LONG)

    def test_a_signal_ends_a_job_that_has_not_begun(self):
        first = self.coordinator("echo no", nodes="3")
        second = self.one_of_two_that_is_known()
        first.send_signal(signal.SIGINT)
        for agent in (first, second):
            code, output, error = self.end(agent)
            self.assertEqual((code, output), (128 + signal.SIGINT, ""))
            self.assertIn("SIGINT has ended the job before it began", error)


class Ends(Nodes):
    def test_the_first_failure_ends_the_job_everywhere_with_its_last_message(self):
        script = NOTE + (
            "[ $RANK = 3 ] || { while :; do sleep 0.05; done; }; "
            "while [ ! -e $FOLDER/0.pid ]; do sleep 0.05; done; "
            "echo the reason >&2; exit 7"
        )
        agents = [
            self.coordinator(script, workers=2, nodes="3"),
            *(self.agent(script, workers=2, nodes="3") for _ in range(2)),
        ]
        name = socket.gethostname()
        for agent in agents:
            code, _, error = self.end(agent)
            self.assertEqual(code, 7)
            self.assertEqual(
                error.splitlines()[-1],
                f"trireme: rank 3 on {name} failed: exit code 7; its last message: the reason",
            )
        self.assert_all_gone(self.pids(1).values())

    def test_failures_that_follow_are_not_blamed(self):
        # Rank 1 fails; rank 0 has a failure of its own when it is asked to end, and takes its time.
        script = (
            "if [ $RANK = 1 ]; then while [ ! -e $FOLDER/0.pid ]; do sleep 0.05; done; "
            "kill -9 $$; fi; trap 'sleep 0.3; echo late >&2; exit 5' TERM; "
            + NOTE
            + "while :; do sleep 0.05; done"
        )
        agents = [self.coordinator(script), self.agent(script)]
        for agent in agents:
            code, _, error = self.end(agent)
            self.assertEqual(code, 128 + signal.SIGKILL)
            self.assertIn(f"rank 1 on {socket.gethostname()} failed: killed by SIGKILL", error)

    def test_success_is_0_once_all_have_ended(self):
        first = self.coordinator("exit 0")
        second = self.agent("sleep 0.3; echo last")
        self.assertEqual(self.end(second), (0, "[1] last\n", ""))
        self.assertEqual(self.end(first), (0, "", ""))

    def test_a_signal_to_one_agent_reaches_the_workers_of_all(self):
        script = "trap 'echo got it; exit 0' INT; " + NOTE + "while :; do sleep 0.05; done"
        for victim in (0, 1):
            for file in pathlib.Path(self.folder.name).iterdir():
                file.unlink()
            agents = [self.coordinator(script), self.agent(script)]
            self.pids(2)
            agents[victim].send_signal(signal.SIGINT)
            said = [self.end(agent) for agent in agents]
            self.assertEqual([code for code, _, _ in said], [128 + signal.SIGINT] * 2)
            self.assertEqual(
                sorted(output for _, output, _ in said), ["[0] got it\n", "[1] got it\n"]
            )
            self.assertIn(
                f"SIGINT, which was sent to {socket.gethostname()}, is passed on",
                said[1 - victim][2],
            )
            for _, _, error in said:
                self.assertNotIn("failed", error)

    def test_another_signal_reaches_the_workers_of_all_too(self):
        script = (
            "trap : INT; trap 'echo got it; exit 0' TERM; " + NOTE + "while :; do sleep 0.05; done"
        )
        for victim in (0, 1):
            for file in pathlib.Path(self.folder.name).iterdir():
                file.unlink()
            agents = [
                self.coordinator(script, "--grace", "50"),
                self.agent(script, "--grace", "50"),
            ]
            self.pids(2)
            agents[victim].send_signal(signal.SIGINT)
            self.assertIn("SIGINT", agents[1 - victim].stderr.readline())
            agents[victim].send_signal(signal.SIGTERM)
            said = [self.end(agent) for agent in agents]
            self.assertEqual([code for code, _, _ in said], [128 + signal.SIGINT] * 2)
            self.assertEqual(
                sorted(output for _, output, _ in said), ["[0] got it\n", "[1] got it\n"]
            )
            self.assertIn("SIGTERM, which was sent to", said[1 - victim][2])

    def test_a_signal_to_all_agents_comes_to_each_worker_once(self):
        script = (
            "trap 'echo got it; [ -e $FOLDER/end ] && exit 0' TERM; "
            + NOTE
            + "while :; do sleep 0.05; [ -e $FOLDER/end ] && exit 0; done"
        )
        agents = [self.coordinator(script, "--grace", "50"), self.agent(script, "--grace", "50")]
        self.pids(2)
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        for agent in agents:
            self.assertIn("SIGTERM", agent.stderr.readline())
        time.sleep(0.3)
        pathlib.Path(self.folder.name, "end").touch()
        for agent in agents:
            code, output, _ = self.end(agent)
            self.assertEqual((code, output[3:]), (128 + signal.SIGTERM, " got it\n"))

    def test_kill_9_of_an_agent_ends_its_workers_and_the_job(self):
        for victim in (0, 1):
            for file in pathlib.Path(self.folder.name).iterdir():
                file.unlink()
            agents = [self.coordinator(IDLE, workers=2), self.agent(IDLE, workers=2)]
            pids = self.pids(4)
            agents[victim].kill()
            agents[victim].wait()
            code, _, error = self.end(agents[1 - victim])
            self.assertEqual(code, 1)
            who = (
                f"the agent at 127.0.0.1:{self.port}, which coordinates the job,"
                if victim == 0
                else f"the agent of node 1 on {socket.gethostname()} (ranks 2 to 3)"
            )
            self.assertIn(f"trireme: {who} is lost: its connection has ended", error)
            self.assert_all_gone(pids.values())

    def test_a_stopped_agent_is_lost_after_its_silence(self):
        conf = ("--rdzv-conf", "silence_timeout=2")
        agents = [self.coordinator(IDLE, *conf), self.agent(IDLE, *conf)]
        pids = self.pids(2)
        agents[1].send_signal(signal.SIGSTOP)
        code, _, error = self.end(agents[0])
        self.assertEqual(code, 1)
        self.assertIn("is lost: it has given no sign of life for 2 s", error)
        # When it goes on it finds itself alone, and ends what is its own.
        agents[1].send_signal(signal.SIGCONT)
        code, _, error = self.end(agents[1])
        self.assertEqual(code, 1)
        self.assertIn("is lost: its connection has ended", error)
        self.assert_all_gone(pids.values())

    def test_after_a_failure_the_workers_of_all_hosts_are_started_again(self):
        # Rank 1 fails twice; the others wait, or have done their part already.
        script = (
            "C=$TORCHELASTIC_RESTART_COUNT; echo $RANK of $WORLD_SIZE $C $TRIREME_RENDEZVOUS; "
            'touch "$FOLDER/$RANK.$C"; [ $C = 2 ] && exit 0; [ $RANK = 2 ] && exit 0; '
            'until [ -e "$FOLDER/0.$C" -a -e "$FOLDER/2.$C" -a $RANK = 1 ]; do sleep 0.05; done; '
            "exit 7"
        )
        options = ("--no-prefix", "--max-restarts", "2", "--grace", "1")
        first = self.coordinator(script, *options, workers=2)
        second = self.agent(script, *options, workers=1)
        places = {}
        for agent in (first, second):
            code, output, error = self.end(agent)
            self.assertEqual(code, 0, error)
            for restart in (1, 2):
                self.assertIn(
                    f"the workers are started again (restart {restart} of at most 2)", error
                )
            self.assertEqual(error.count("failed: exit code 7"), 2, error)
            for line in output.splitlines():
                rank, _, count, restart, place = line.split()
                self.assertEqual(count, "3")
                places.setdefault(restart, {})[rank] = place
        self.assertEqual(
            {restart: sorted(ranks) for restart, ranks in places.items()},
            {str(restart): ["0", "1", "2"] for restart in range(3)},
        )
        # All meet in one place, another one each time.
        self.assertEqual([len(set(ranks.values())) for ranks in places.values()], [1, 1, 1])
        self.assertEqual(len({ranks["0"] for ranks in places.values()}), 3)

    def test_restarts_end_with_their_number_and_with_a_signal(self):
        first = self.coordinator("exit 5", "--max-restarts", "1")
        second = self.agent("exit 5", "--max-restarts", "1")
        for agent in (first, second):
            code, _, error = self.end(agent)
            self.assertEqual((code, error.count("started again")), (5, 1), error)
        first = self.coordinator(IDLE, "--max-restarts", "3", "--grace", "1")
        second = self.agent(IDLE, "--max-restarts", "3", "--grace", "1")
        pids = self.pids(2)
        first.send_signal(signal.SIGTERM)
        for agent in (first, second):
            code, _, error = self.end(agent)
            self.assertNotEqual(code, 0)
            self.assertNotIn("started again", error)
        self.assert_all_gone(pids.values())

    def test_a_signal_between_an_effect_and_its_cause_ends_the_job_for_good(self):
        # The failed worker tells of a lost peer, so its launcher waits for the cause. The launcher
        # is stopped meanwhile, so that the signal comes in that time.
        script = NOTE + (
            "until [ -e $FOLDER/fail -a $RANK = 1 ]; do sleep 0.05; done; "
            "echo 'trireme_all_reduce: rank 0 was lost during all_reduce' >&2; exit 1"
        )
        options = ("--max-restarts", "1", "--rdzv-conf", "silence_timeout=50,join_timeout=1")
        first = self.coordinator(script, *options)
        second = self.agent(script, *options)
        self.pids(2)
        children = pathlib.Path(f"/proc/{second.pid}/task/{second.pid}/children")
        supervisor = int(children.read_text())
        second.send_signal(signal.SIGSTOP)
        pathlib.Path(self.folder.name, "fail").touch()
        wait_until(lambda: not alive(supervisor), "the end of the worker")
        second.send_signal(signal.SIGINT)
        second.send_signal(signal.SIGCONT)
        for agent in (first, second):
            code, _, error = self.end(agent)
            self.assertNotIn("started again", error)
            self.assertEqual(code, 128 + signal.SIGINT, error)

    def test_an_agent_that_starts_again_before_its_coordinator_waits_for_that(self):
        # The coordinator cannot start again before its output is read.
        loud = "head -c 300000 /dev/zero | tr '\\0' x; : > $FOLDER/written; exit 5"
        late = "until [ -e $FOLDER/written ]; do sleep 0.01; done; exit 5"
        first = self.coordinator(loud, "--max-restarts", "1")
        second = self.agent(late, "--max-restarts", "1")
        self.assertTrue(any("started again" in line for line in second.stderr))
        with contextlib.suppress(subprocess.TimeoutExpired):
            second.wait(timeout=0.5)
        self.assertIsNone(second.poll())
        for agent in (first, second):
            code, _, error = self.end(agent)
            self.assertEqual(code, 5, error)

    def test_a_lost_agent_that_starts_again_while_the_old_job_ends_waits_for_the_next(self):
        # Rank 0 takes its time to end.
        script = (
            "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; "
            "[ $RANK = 0 ] && trap ': > $FOLDER/asked; "
            "until [ -e $FOLDER/enough ]; do sleep 0.05; done; exit 0' TERM; " + IDLE
        )
        options = ("--max-restarts", "1", "--grace", "50")
        relay = Relay(self.port)
        first = self.coordinator(script, *options)
        second = self.agent(script, *options, endpoint=relay.place)
        self.pids(2)
        relay.cut()
        wait_until(pathlib.Path(self.folder.name, "asked").exists, "the end of the old job")
        relay.is_open.set()
        wait_until(lambda: relay.calls > 2 or second.poll() is not None, "another call")
        self.assertIsNone(second.poll(), "it was refused")
        pathlib.Path(self.folder.name, "enough").touch()
        for agent in (first, second):
            code, _, error = self.end(agent)
            self.assertEqual((code, error.count("started again")), (0, 1), error)

    def test_a_host_that_cannot_start_its_workers_ends_the_job_for_good(self):
        no_folder = pathlib.Path(self.folder.name, "file", "logs")
        no_folder.parent.touch()
        for options in (("--log-dir", str(no_folder)), ()), ((), ("--log-dir", str(no_folder))):
            first = self.coordinator(IDLE, "--max-restarts", "3", *options[0])
            second = self.agent(IDLE, "--max-restarts", "3", *options[1])
            for agent in (first, second):
                code, _, error = self.end(agent)
                self.assertEqual((code, error.count("started again")), (1, 0), error)
                self.assertIn(f"cannot write {no_folder}/rank-", error)

    def test_a_program_that_only_one_host_has_ends_all(self):
        script = NOTE + "[ $RANK = 0 ] || exec /no/such/program; while :; do sleep 0.05; done"
        agents = [self.coordinator(script), self.agent(script)]
        for agent in agents:
            code, _, error = self.end(agent)
            self.assertEqual(code, 127)
            self.assertIn(f"rank 1 on {socket.gethostname()} failed: exit code 127", error)


class Arguments(unittest.TestCase):
    def refused(self, words, *arguments, **variables):
        environment = {name: value for name, value in os.environ.items() if name not in STARTERS}
        done = subprocess.run(
            [TRIREME, "run", "--nproc-per-node", "1", *arguments, "--", "true"],
            capture_output=True,
            text=True,
            timeout=LONG,
            env={**environment, **variables},
        )
        self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
        self.assertIn("trireme: ", done.stderr)
        self.assertIn(words, done.stderr)

    def test_what_is_wrong_or_means_nothing_is_refused(self):
        endpoint = ("--rdzv-endpoint", "127.0.0.1:1")
        for nodes in ("0", "-1", "two", "2:", ":2", "3:2", "1025", "1:1025", "1:2:3"):
            self.refused("--nnodes", f"--nnodes={nodes}", *endpoint)
        self.refused("--rdzv-endpoint: HOST:PORT is missing", "--nnodes", "2")
        for place in (":1", "host:", "host:0", "host:65536", "::1:5", "[]:5"):
            self.refused("--rdzv-endpoint", "--nnodes", "2", "--rdzv-endpoint", place)
        self.refused("is none of 2 nodes", "--nnodes", "2", "--node-rank", "2", *endpoint)
        self.refused("without --rdzv-endpoint", "--node-rank", "0")
        self.refused("without --rdzv-endpoint", "--rdzv-id", "x")
        self.refused("without --rdzv-endpoint", "--rdzv-conf", "join_timeout=1")
        for conf in (
            "x",
            "x=1",
            "join_timeout",
            "join_timeout=",
            "join_timeout=-1",
            "join_timeout=nan",
            "join_timeout=86401",
            "silence_timeout=0.5",
            "join_timeout=1,,",
        ):
            self.refused("--rdzv-conf", "--rdzv-conf", conf, *endpoint)
        self.refused("neither Slurm", "--nnodes", "auto", *endpoint)
        self.refused(
            "SLURM_NODEID", "--nnodes", "auto", *endpoint, SLURM_NNODES="2", SLURM_NODEID="2"
        )


if __name__ == "__main__":
    TRIREME = os.path.abspath(sys.argv.pop(1))
    default_signals()
    unittest.main(verbosity=2)
