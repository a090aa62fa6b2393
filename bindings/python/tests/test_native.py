"""The low-level layer mirrors the ABI."""

import ctypes
import re
import unittest

from support import REPOSITORY, TestCase, run_script, trireme

native = trireme._native


def golden():
    text = (REPOSITORY / "tests/abi/golden-1.0.txt").read_text()
    return [line.split() for line in text.splitlines() if line]


class LayoutTest(TestCase):
    def test_structs_have_the_released_sizes_and_offsets(self):
        structs, fields = {}, {}
        for words in golden():
            if words[0] == "struct":
                structs[words[1]] = int(words[3])
            elif words[0] == "field":
                fields[words[1]] = (int(words[3]), int(words[5]))
        self.assertGreater(len(structs), 10)
        for name, size in structs.items():
            mine = getattr(native, name)
            self.assertEqual(ctypes.sizeof(mine), size, name)
            theirs = {f.split(".")[1] for f in fields if f.startswith(name + ".")}
            self.assertEqual({field for field, *_ in mine._fields_}, theirs, name)
        for path, (offset, size) in fields.items():
            struct, field = path.split(".")
            found = getattr(getattr(native, struct), field)
            self.assertEqual((found.offset, found.size), (offset, size), path)

    def test_constants_have_the_released_values(self):
        constants = {words[1]: int(words[2]) for words in golden() if words[0] == "constant"}
        self.assertGreater(len(constants), 50)
        for name, value in constants.items():
            self.assertEqual(getattr(native, name), value, name)

    def test_every_exported_symbol_has_a_prototype_and_no_other_has(self):
        text = (REPOSITORY / "src/api/trireme.map").read_text()
        exported = set(re.findall(r"^\s+(trireme_\w+);", text, re.M))
        self.assertGreater(len(exported), 50)
        self.assertEqual(set(native.PROTOTYPES), exported)

    def test_every_prototype_is_used_by_the_layer_above(self):
        text = "".join(
            path.read_text()
            for path in (REPOSITORY / "bindings/python/trireme").glob("*.py")
            if path.name != "_native.py"
        )
        for name in native.PROTOTYPES:
            self.assertIn(f"library.{name}", text)

    def test_every_prototype_has_the_declared_number_of_arguments(self):
        headers = "".join(p.read_text() for p in (REPOSITORY / "include/trireme").glob("*.h"))
        headers = re.sub(r"/\*.*?\*/", "", headers, flags=re.S)
        found = re.findall(r"TRIREME_CALLCONV\s+(trireme_\w+)\s*\(([^)]*)\);", headers)
        self.assertEqual({name for name, _ in found}, set(native.PROTOTYPES))
        for name, arguments in found:
            count = 0 if arguments.strip() == "void" else arguments.count(",") + 1
            self.assertEqual(len(native.PROTOTYPES[name][1]), count, name)


class LoadTest(TestCase):
    def test_a_missing_library_is_an_import_error_that_names_it(self):
        done = run_script("import trireme", environment={"TRIREME_LIBRARY": "/nowhere/libx.so"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("ImportError: trireme: /nowhere/libx.so cannot be used", done.stderr)

    def test_a_library_without_the_symbols_is_an_import_error_that_names_one(self):
        done = run_script("import trireme", environment={"TRIREME_LIBRARY": "libc.so.6"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("ImportError: trireme: libc.so.6 cannot be used", done.stderr)
        self.assertIn("trireme_status_name", done.stderr)


if __name__ == "__main__":
    unittest.main()
