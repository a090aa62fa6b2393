#!/usr/bin/env python3
"""The gates can fail: each is shown something broken and must say so."""

import pathlib
import shutil
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "abi"), str(HERE.parent / "faults")]
sys.path[:0] = [str(HERE.parents[1] / "tools")]

import abi_headers
import bindgen
import check_circles
import check_comments
import check_failpoints
import check_headers
import check_includes
import check_layout
import check_prose
import check_symbols
import headers
import seeded_defects


class Gates(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.include = pathlib.Path(self.folder.name, "include")
        shutil.copytree(headers.INCLUDE, self.include)

    def change(self, name, old, new):
        path = self.include / "trireme" / name
        text = path.read_text()
        self.assertIn(old, text)
        path.write_text(text.replace(old, new, 1))

    def layout_differences(self):
        return check_layout.differences(check_layout.current(), check_layout.current(self.include))

    def test_a_field_put_in_the_middle_is_noticed(self):
        self.assertEqual(self.layout_differences(), [])
        field = "    int32_t gradients;"
        self.change("model_options.h", field, "    uint64_t extra;\n    int32_t gradients;")
        self.assertTrue(self.layout_differences())

    def test_a_renumbered_constant_is_noticed(self):
        constant = "TRIREME_ERROR_TIMEOUT           = -6"
        self.change("status.h", constant, "TRIREME_ERROR_TIMEOUT = -60")
        self.assertTrue(self.layout_differences())

    def test_a_field_at_the_end_must_enter_the_golden_file(self):
        now = check_layout.current()
        more = now + "field trireme_x.new offset 0 size 4\n"
        self.assertTrue(check_layout.differences(now, more))

    def test_a_symbol_that_one_place_lacks_is_noticed(self):
        self.assertEqual(check_symbols.compare({"a": {"f"}, "b": {"f"}}), [])
        self.assertEqual(len(check_symbols.compare({"a": {"f", "g"}, "b": {"f"}})), 1)

    def test_a_comment_without_a_slot_is_noticed(self):
        self.assertEqual(check_comments.check(), [])
        self.change("log.h", " * @param user_data  Handed to the callback.\n", "")
        self.change("buffer.h", " * @since 1.0\n", "")
        phrase = "Thread safety: any thread, also concurrently.\n * @since"
        self.change("request.h", phrase, "Thread safety: mostly.\n * @since")
        self.assertEqual(len(check_comments.check(self.include)), 3)

    def test_a_header_that_needs_another_is_noticed(self):
        self.change("buffer.h", "#include <trireme/types.h>\n", "")
        self.change("buffer.h", "#include <trireme/status.h>\n", "")
        self.assertTrue(check_headers.problems_of(self.include / "trireme/buffer.h", self.include))

    def test_harm_to_the_host_is_noticed(self):
        check = check_includes.problems_of_source
        for harm in (
            "exit(1);", "std::abort();", "std::cout << 1;", 'printf("x");', "signal(1, f);"
        ):
            self.assertEqual(len(check("x.cpp", "kernels", harm)), 1, harm)
        for harmless in ("// exit(1)", "group.abort(x);", 'f("exit(1)");', "snprintf(a, 1, b);"):
            self.assertEqual(check("x.cpp", "kernels", harmless), [], harmless)

    def test_a_failpoint_without_a_place_in_the_list_or_a_test_is_noticed(self):
        listed = """
            kCollectives[] = {"all_reduce"}; kCollectivePoints[] = {"mid_move"};
            kOthers[] = {"join.before_hello"}; kNetwork[] = {"mesh.before_dial"}; kTraining[] = {};
        """
        sources = (
            'failpoint(name_, "mid_move"); TRIREME_FAILPOINT("join", "before_hello");'
            'failpoint("mesh", "before_dial");'
        )
        tests = '"mid_move", "join.before_hello", "mesh.before_dial"'
        self.assertEqual(check_failpoints.check(listed, sources, tests), [])
        for less in (("", tests), (sources, ""), (sources + 'failpoint("a", "b")', tests)):
            self.assertTrue(check_failpoints.check(listed, *less))

    def bindgen_differences(self):
        wanted = bindgen.generated(self.include / "trireme")
        return bindgen.differences(wanted, bindgen.present())

    def test_a_ground_layer_that_a_header_has_left_behind_is_noticed(self):
        self.assertEqual(self.bindgen_differences(), [])
        self.change("transport.h", "/** Handed to every function; may be NULL. */", "/** New. */")
        self.change("log.h", "TRIREME_LOG_ERROR   = 1", "TRIREME_LOG_ERROR   = 9")
        self.change("buffer.h", "communicator, uint64_t bytes,", "communicator, uint32_t bytes,")
        self.assertEqual(len(self.bindgen_differences()), 9)

    def test_a_generated_file_of_no_header_or_none_of_a_header_is_noticed(self):
        for wanted, found in (({}, {"a/x.py": ""}), ({"a/x.py": ""}, {})):
            self.assertEqual(len(bindgen.differences(wanted, found)), 1)

    def test_a_header_that_the_generator_does_not_understand_is_an_error_at_its_line(self):
        for old, new, place in (
            ("TRIREME_LOG_ERROR   = 1,", "TRIREME_LOG_ERROR   = 1 << 0,", r"log\.h:\d+: "),
            ("const char *message", "const wchar_t *message", r"log\.h: .*unknown type wchar_t"),
            ("typedef int32_t trireme_log_level;", "int x;", r"log\.h:\d+: "),
            ("/** Numbers of the levels. */", "", r"log\.h:\d+: .*no comment"),
            ("= 3,", "= 3, /**< @warning x */", r"log\.h:\d+: @warning"),
        ):
            before = (self.include / "trireme/log.h").read_text()
            self.change("log.h", old, new)
            with self.assertRaisesRegex(abi_headers.HeaderError, place):
                bindgen.generated(self.include / "trireme")
            (self.include / "trireme/log.h").write_text(before)

    def test_an_exception_for_a_function_that_has_another_name_is_noticed(self):
        for name, old, new in (
            ("batch.h", "CALL\ntrireme_broadcast_to_buffer(", "CALL\ntrireme_x("),
            ("trainer.h", "CALL\ntrireme_trainer_step(", "CALL\ntrireme_x("),
        ):
            before = (self.include / "trireme" / name).read_text()
            self.change(name, old, new)
            with self.assertRaisesRegex(abi_headers.HeaderError, "abi_dotnet.py names trireme_"):
                bindgen.generated(self.include / "trireme")
            (self.include / "trireme" / name).write_text(before)

    def test_modules_that_import_each_other_are_noticed(self):
        a, b, c = "from ._b import x", "from . import _c", "if TYPE_CHECKING:\n  from ._a import y"
        line = {"t": "from ._a import x", "t._a": a, "t._b": b, "t._c": ""}
        self.assertEqual(check_circles.circles(line), [])
        self.assertEqual(check_circles.circles({**line, "t._c": c}), [("t._a", "t._b", "t._c")])

    def test_prose_that_is_not_plain_is_noticed(self):
        long = "The library " + "very " * 24 + "much."
        for page, count in (
            ("A rank sends its part. Then it waits.\n", 0),
            (long, 1),
            (f"- {long}\n- Short.\n", 1),
            ("What it has nothing for goes out before.\n", 1),
            ("Who is it?\n\n```\n" + long + "\n```\n| " + long + " |\n", 0),
        ):
            self.assertEqual(len(check_prose.of_page(page, "p")), count, page)
        for header, count in (
            ("/** Sends. */\nint f(void);\n", 0),
            (f"/** {long} */\n", 2),  # too long for a line, too
            ("/** A.\n *\n * @param x  " + long.replace("very ", "so ", 12) + "\n */\n", 2),
            ("struct s {\n    /**\n" + "     * One.\n" * 5 + "     */\n    int x;\n};\n", 1),
            ("struct s {\n    /**\n" + "     * One.\n" * 4 + "     */\n    int x;\n};\n", 0),
        ):
            self.assertEqual(len(check_prose.of_header(header, "h")), count, header)

    def test_every_seeded_defect_fits_its_source(self):
        for name, source, before, *_ in seeded_defects.DEFECTS:
            self.assertEqual((seeded_defects.ROOT / source).read_text().count(before), 1, name)


if __name__ == "__main__":
    unittest.main()
