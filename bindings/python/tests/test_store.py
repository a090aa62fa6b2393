"""The job's store, over TCP and in a file."""

import os
import tempfile
import threading
import unittest
from unittest import mock

from support import PATIENCE, TestCase, trireme

TOKEN = "a token of the tests of the store"


class StoreTest(TestCase):
    def setUp(self):
        environment = mock.patch.dict(os.environ, TRIREME_TOKEN=TOKEN)
        environment.start()
        self.addCleanup(environment.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = f"file://{folder.name}/store"

    def both(self):
        """Two ends of a store over TCP, and of one in a file."""
        for url in ("tcp://127.0.0.1:0", self.file):
            open_store = trireme.Store.serve if url.startswith("tcp") else trireme.Store.connect
            with open_store(url, timeout=PATIENCE) as one:
                with trireme.Store.connect(one.address, timeout=PATIENCE) as two:
                    yield one, two

    def test_operations(self):
        for one, two in self.both():
            self.assertIsNone(two.get("k"))
            for value in (b"", b"a\0b", b"x" * 100_000):
                one.set("k", value)
                self.assertEqual(two.get("k"), value)
            one.set("text", "\u00e4")
            self.assertEqual(two.get("text"), b"\xc3\xa4")
            self.assertEqual([one.add("n"), two.add("n", -5), one.add("n", 0)], [1, -4, -4])
            self.assertTrue(one.compare_exchange("c", None, "1"))
            self.assertFalse(two.compare_exchange("c", None, "2"))
            self.assertFalse(two.compare_exchange("c", "", "2"))
            self.assertTrue(two.compare_exchange("c", b"1", b"2"))
            self.assertEqual(one.get("c"), b"2")
            self.assertEqual([one.delete("c"), two.delete("c")], [True, False])
            two.wait(["k", "text"], 0)

    def test_a_wait_ends_when_the_key_comes(self):
        for one, two in self.both():
            setter = threading.Timer(0.02, one.set, ("late", "value"))
            setter.start()
            two.wait("late", PATIENCE)
            self.assertEqual(two.get("late"), b"value")
            setter.join()

    def test_failures(self):
        for one, two in self.both():
            one.set("text", "no number")
            with self.assertRaisesRegex(trireme.InvalidStateError, '"text" is no number'):
                two.add("text")
            with self.assertRaisesRegex(trireme.TimeoutError, '"never" is not there'):
                two.wait(["text", "never"], 0.01)
            for call in (
                lambda: one.set("", "v"),
                lambda: one.set("k" * 1025, "v"),
                lambda: one.set("k", b"v" * ((1 << 20) + 1)),
                lambda: one.wait([""], 0),
            ):
                self.assertRaises(trireme.InvalidArgumentError, call)
            self.assertRaises(OverflowError, one.add, "n", 1 << 63)
            self.assertRaises(TypeError, one.set, "n", 5)  # no five bytes of 0
            self.assertIsNone(two.get("k"))
            one.close()
            self.assertRaises(trireme.InvalidHandleError, one.get, "text")

    def test_who_may_not_come_in(self):
        with trireme.Store.serve() as store:
            with mock.patch.dict(os.environ, TRIREME_TOKEN="the token of another job"):
                with self.assertRaises(trireme.AuthenticationError):
                    trireme.Store.connect(store.address)
            with mock.patch.dict(os.environ, TRIREME_TOKEN="short"):
                with self.assertRaises(trireme.AuthenticationError):
                    trireme.Store.connect(store.address)
            with mock.patch.dict(os.environ, TRIREME_STORE=store.address):
                with trireme.Store.connect() as named:
                    self.assertEqual(named.add("n"), 1)
            other = trireme.Store.connect(store.address)
        with self.assertRaises(trireme.PeerLostError):
            other.add("n")
        with self.assertRaises(trireme.TimeoutError):
            trireme.Store.connect(other.address, timeout=0.05)
        for url in ("", "http://a:1", "file://relative"):
            with self.assertRaises(trireme.InvalidArgumentError):
                trireme.Store.connect(url)


if __name__ == "__main__":
    unittest.main()
