#!/usr/bin/env python3
"""The gates can fail: each is shown something broken and must say so."""

import contextlib
import io
import pathlib
import shutil
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "abi"), str(HERE.parent / "faults")]
sys.path[:0] = [str(HERE.parents[1] / "tools"), str(HERE.parent / "exercise")]

import abi_dotnet
import abi_headers
import abi_python
import abi_rust_rules
import bindgen
import check_circles
import check_comments
import check_failpoints
import check_headers
import check_includes
import check_layout
import check_prose
import check_symbols
import format as layout_of_text
import headers
import new_rule
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
        found = seeded_defects.places(text, old)
        self.assertTrue(found, old)
        path.write_text(text[: found[0].start()] + new + text[found[0].end() :])

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

    def test_a_struct_that_grows_and_never_may_is_noticed(self):
        def grow(header, end):
            self.change(header, end, "    uint64_t more;\n" + end)
            return [line for line in self.layout_differences() if not line.startswith("not in")]

        self.assertEqual(grow("model_options.h", "} trireme_unit_info; /* since 1.0 */"), [])
        gone = grow("types.h", "} trireme_stream; /* since 1.0, never grows */")
        self.assertIn("gone or changed: fixed trireme_stream size 16", gone)

    def test_a_struct_that_may_grow_from_now_on_is_noticed(self):
        end = "} trireme_device; /* since 1.0, never grows */"
        self.change("types.h", end, "} trireme_device; /* since 1.0 */")
        self.assertEqual(len(self.layout_differences()), 1)

    def test_a_first_size_that_is_not_that_of_the_first_release_is_noticed(self):
        now = check_layout.current()
        self.assertEqual(check_layout.first_problems(now), [])
        line = "first trireme_trainer_info size"
        small = now.replace(f"{line} 120", f"{line} 112")
        self.assertEqual(len(check_layout.first_problems(small)), 1)
        self.assertEqual(len(check_layout.differences(now, small)), 2)
        self.assertEqual(len(check_layout.first_problems(now.replace(f"{line} 120\n", ""))), 1)

        # A later release may have a larger struct, whose first size stays.
        self.change("version.h", "TRIREME_VERSION_MINOR 0", "TRIREME_VERSION_MINOR 1")
        end = "} trireme_trainer_info; /* since 1.0 */"
        self.change("trainer.h", end, "    uint64_t more;\n" + end)
        later = check_layout.current(self.include)
        self.assertIn(f"{line} 120\n", later)
        self.assertEqual(check_layout.first_problems(later, self.include), [])

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

    def test_a_large_struct_without_a_reason_is_noticed(self):
        def problems(count, comment):
            fields = "".join(f"    uint64_t field{i};\n" for i in range(count))
            struct = f"/** {comment} */\ntypedef struct s {{\n{fields}}} s;\n"
            (self.include / "trireme" / "large.h").write_text(struct)
            return check_comments.problems_of_structs(self.include)

        reason = "Numbers. More than 16 fields: no field goes without the others."
        self.assertEqual(problems(16, "Numbers."), [])
        self.assertEqual(problems(17, reason), [])
        self.assertEqual(len(problems(17, "Numbers.")), 1)

    def test_a_header_that_needs_another_is_noticed(self):
        self.change("buffer.h", "#include <trireme/device.h>\n", "")
        self.change("buffer.h", "#include <trireme/types.h>\n", "")
        self.change("buffer.h", "#include <trireme/status.h>\n", "")
        self.assertTrue(check_headers.problems_of(self.include / "trireme/buffer.h", self.include))

    def test_harm_to_the_host_is_noticed(self):
        check = check_includes.problems_of_source
        for harm in (
            "exit(1);",
            "std::abort();",
            "std::cout << 1;",
            'printf("x");',
            "signal(1, f);",
            'fprintf(stderr, "x");',
            'std::fputs("x", stderr);',
            "std::clog << 1;",
            'dprintf(2, "x");',
            "vfprintf(stderr, a, b);",
            "std::terminate();",
            "std::quick_exit(1);",
            "_Exit(1);",
            "raise(SIGABRT);",
            "::kill(getpid(), 9);",
            "alarm (1);",
            "fesetround(FE_UPWARD);",
            "feenableexcept(FE_INVALID);",
        ):
            self.assertEqual(len(check("x.cpp", "kernels", harm)), 1, harm)
            self.assertEqual(check("x.cpp", "launch", harm), [], harm)
        for harmless in ("// exit(1)", "group.abort(x);", 'f("exit(1)");', "snprintf(a, 1, b);"):
            self.assertEqual(check("x.cpp", "kernels", harmless), [], harmless)
        self.assertEqual(check("x.cpp", "kernels", "vsnprintf(a, 1, b, c);"), [])

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
        root = pathlib.Path(self.folder.name)
        for name, text in (
            (check_failpoints.LIST, listed),
            ("src/kernels/a.inc", sources),
            ("tests/api/a.inc", tests),
        ):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        self.assertEqual(check_failpoints.check_tree(root), [])
        (root / "src/kernels/a.inc").write_text(sources + 'failpoint("a", "b")')
        self.assertEqual(check_failpoints.check_tree(root), ["a.b is not in the list"])

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

    def add_a_rule(self):
        self.change(
            "rules.h",
            "/** Flags of MUON. */",
            """/** NEW. */
typedef struct trireme_new_options {
    /** The rule and the size of this struct. */
    trireme_rule_options base;
    /** A decay. Default: 0.25. */
    double decay;
} trireme_new_options; /* since 1.1 */

/** Options of NEW with all defaults. */
#define TRIREME_NEW_OPTIONS_INIT TRIREME_INIT_KIND(trireme_new_options, TRIREME_RULE_NEW)

/** Flags of MUON. */""",
        )
        self.change(
            "rules.h", "TRIREME_RULE_MUON = 11", "TRIREME_RULE_MUON = 11, TRIREME_RULE_NEW = 12"
        )

    def test_a_new_rule_has_its_struct_in_rust_without_other_changes(self):
        self.add_a_rule()
        made = abi_rust_rules.files(abi_headers.Headers(self.include / "trireme"))["mod.rs"]
        for words in (
            "    RuleKind::New => sys::TRIREME_RULE_NEW,",
            "pub struct New {\n    /// A decay. Default: 0.25.\n    pub decay: f64,\n}",
            "{ decay: self.decay, ..sys::TRIREME_NEW_OPTIONS_INIT }",
            "impl From<New> for Rule {",
        ):
            self.assertIn(words, made)
        self.change("rules.h", "double decay;", "const char *decay;")
        with self.assertRaisesRegex(abi_headers.HeaderError, "decay: Rust has no such option"):
            abi_rust_rules.files(abi_headers.Headers(self.include / "trireme"))

    def test_the_flags_of_a_struct_are_those_of_each_rule_that_has_it(self):
        self.change(
            "rules.h",
            "/** Flags of MUON. */",
            """/** Flags of ADAM and ADAMW. */
enum {
    /** The largest v so far. */
    TRIREME_ADAM_FLAG_AMSGRAD = 1
};

/** Flags of MUON. */""",
        )
        self.change(
            "rules.h",
            "} trireme_adam_options;",
            "    /** 0 or a sum of TRIREME_ADAM_FLAG_*. Default: 0. */\n"
            "    uint32_t flags;\n} trireme_adam_options;",
        )
        headers = self.include / "trireme"
        made = abi_rust_rules.files(abi_headers.Headers(headers))["mod.rs"]
        self.assertEqual(made.count("/// The largest v so far. Default: false."), 2)
        self.assertEqual(made.count("u32::from(self.amsgrad) * sys::TRIREME_ADAM_FLAG_AMSGRAD"), 2)
        self.change("rules.h", "TRIREME_ADAM_FLAG_AMSGRAD = 1", "TRIREME_ADAM_BIT_AMSGRAD = 1")
        with self.assertRaisesRegex(abi_headers.HeaderError, r"flags: .*TRIREME_ADAM_FLAG_\*"):
            abi_rust_rules.files(abi_headers.Headers(headers))
        self.change("rules.h", "0 or a sum of TRIREME_ADAM_FLAG_*. Default: 0.", "Must be 0.")
        abi_rust_rules.files(abi_headers.Headers(headers))

    def test_a_new_schedule_has_its_class_in_each_binding_without_other_changes(self):
        self.change(
            "schedule.h",
            "/** ONE_CYCLE. */",
            """/** STEPS. */
typedef struct trireme_steps_schedule_options {
    /** The kind and the size of this struct. */
    trireme_schedule_options base;
    /** A fall. Default: 0.5. */
    double gamma;
} trireme_steps_schedule_options; /* since 1.1 */

/** Options of STEPS with all defaults. */
#define TRIREME_STEPS_SCHEDULE_OPTIONS_INIT \\
    TRIREME_INIT_KIND(trireme_steps_schedule_options, TRIREME_SCHEDULE_KIND_STEPS)

/** ONE_CYCLE. */""",
        )
        before = "TRIREME_SCHEDULE_KIND_USER = 5"
        self.change("schedule.h", before, f"{before}, TRIREME_SCHEDULE_KIND_STEPS = 6")
        made = bindgen.generated(self.include / "trireme")
        for name, words in (
            ("rust/trireme/src/schedules/mod.rs", "pub struct StepsSchedule {"),
            ("rust/trireme/src/schedules/mod.rs", "    Steps(StepsSchedule),"),
            ("python/trireme/_abi/schedule_options.py", "class StepsSchedule(ScheduleOptions):"),
            (
                "dotnet/src/Abi/ScheduleKinds.cs",
                "public StepsSchedule() : base(ScheduleKind.Steps)",
            ),
        ):
            self.assertIn(words, made[f"bindings/{name}"])

    def test_a_new_rule_or_option_has_its_class_in_python_without_other_changes(self):
        self.add_a_rule()
        made = abi_python.files(abi_headers.Headers(self.include / "trireme"))["rule_options.py"]
        for words in (
            "class New(Rule):",
            '"new": TRIREME_RULE_NEW,',
            "_kind = TRIREME_RULE_NEW",
            "decay: A decay. Default: 0.25.",
            "def __init__(self, *, decay: float | None = None) -> None:",
        ):
            self.assertIn(words, made)
        for words, error in (
            ("A decay.", "trireme_new_options.decay: neither a default nor Required"),
            ("A decay. Default: a letter.", "trireme_new_options.decay: Python has no such option"),
        ):
            header = self.include / "trireme/rules.h"
            before = header.read_text()
            self.change("rules.h", "A decay. Default: 0.25.", words)
            if "letter" in words:
                self.change("rules.h", "double decay;", "int64_t decay;")
            with self.assertRaisesRegex(abi_headers.HeaderError, error):
                abi_python.files(abi_headers.Headers(self.include / "trireme"))
            header.write_text(before)

    def test_an_option_that_points_to_something_new_is_an_error_in_python(self):
        for declared in (
            "const uint64_t *decay;",
            "const void *decay;",
            "const trireme_rule_options *decay;",
            "const double **decay;",
            "double decay[2];",
        ):
            self.add_a_rule()
            self.change("rules.h", "double decay;", declared)
            with self.assertRaisesRegex(
                abi_headers.HeaderError, "trireme_new_options.decay: Python has no such option"
            ):
                abi_python.files(abi_headers.Headers(self.include / "trireme"))
            shutil.copy(headers.INCLUDE / "trireme/rules.h", self.include / "trireme")

    def test_flags_are_found_by_their_struct_whatever_the_comment_says(self):
        header = self.include / "trireme"
        before = bindgen.generated(header)
        for old in ("or TRIREME_SGD_FLAG_NESTEROV.", "or TRIREME_MUON_FLAG_NESTEROV."):
            self.change("rules.h", old, "or a flag.")
        self.change(
            "optimizer_options.h",
            "0, or for MUON TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE.",
            "0, or for MUON a sum of TRIREME_PARAMETER_GROUP_FLAG_*.",
        )
        made = bindgen.generated(header)
        for name in ("rule_options.py", "options.py"):
            name = f"bindings/python/trireme/_abi/{name}"
            self.assertEqual(made[name], before[name])

    def test_flags_that_nothing_declares_are_an_error(self):
        for name in ("= 1", ". Default: 0."):
            self.change("rules.h", f"TRIREME_SGD_FLAG_NESTEROV{name}", f"TRIREME_X_FLAG_Y{name}")
        made = abi_headers.Headers(self.include / "trireme")
        for language in (abi_python, abi_dotnet):
            with self.assertRaisesRegex(
                abi_headers.HeaderError, "trireme_sgd_options.flags: no TRIREME_SGD_FLAG_"
            ):
                language.files(made)

    def test_an_exception_for_a_function_that_has_another_name_is_noticed(self):
        for name, old, new in (
            ("batch.h", "CALLCONV\ntrireme_broadcast_to_buffer(", "CALLCONV\ntrireme_x("),
            ("trainer.h", "CALLCONV\ntrireme_trainer_step(", "CALLCONV\ntrireme_x("),
        ):
            before = (self.include / "trireme" / name).read_text()
            self.change(name, old, new)
            with self.assertRaisesRegex(abi_headers.HeaderError, "abi_dotnet.py names trireme_"):
                bindgen.generated(self.include / "trireme")
            (self.include / "trireme" / name).write_text(before)

    def test_a_function_that_calls_back_and_is_not_known_to_do_so_is_noticed(self):
        self.change(
            "model.h",
            " * @param unit  Number of the unit.\n * @retval TRIREME_OK\n",
            " * @param unit  Number of the unit.\n * @retval TRIREME_OK\n"
            " * @retval TRIREME_ERROR_CALLBACK  The rule failed.\n",
        )
        with self.assertRaisesRegex(abi_headers.HeaderError, "CALLING_BACK .* lacks it"):
            bindgen.generated(self.include / "trireme")

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
            ("The file belongs to the user, and nobody else may read it.\n", 1),
            ("Who is it?\n\n```\n" + long + "\n```\n| " + long + " |\n", 0),
        ):
            self.assertEqual(len(check_prose.of_page(page, "p")), count, page)
        for header, count in (
            ("/** Sends. */\nint f(void);\n", 0),
            ("/** Options of which only the path is missing. */\n", 1),
            (f"/** {long} */\n", 2),  # too long for a line, too
            ("/** A.\n *\n * @param x  " + long.replace("very ", "so ", 12) + "\n */\n", 2),
            ("struct s {\n    /**\n" + "     * One.\n" * 5 + "     */\n    int x;\n};\n", 1),
            ("struct s {\n    /**\n" + "     * One.\n" * 4 + "     */\n    int x;\n};\n", 0),
        ):
            self.assertEqual(len(check_prose.of_header(header, "h")), count, header)

    def test_comments_of_sources_that_are_not_plain_are_noticed(self):
        long = "The library " + "very " * 24 + "much."
        half = " ".join(long.split()[:14]), " ".join(long.split()[14:])
        for source, count in (
            ('// A rank sends. Then it waits.\nint a;  // Bytes.\nf("Which // nobody");\n', 0),
            (f"int a;\n// {half[0]}\n// {half[1]}\n", 1),
            (f"int a;  // {half[0]}\nint b;  // {half[1]}\n", 0),  # two comments
            (f"// A drawing:\n//\n//   {half[0]}\n//   {half[1]}\n", 0),
            (f"/*\n * A table:\n *\n *   {half[0]}\n *   {half[1]}\n */\n", 0),
            ("// A list:\n// - one\n// - Which of them is the next.\n", 1),
            ("/* What it has nothing for. */\n", 1),
            ("// A rank that nobody waits for.\n", 1),
            ("// The ranks, of which this is the first.\n", 1),
            ("// Told by who waits.\nint a; /* whom it names */\n", 2),
        ):
            self.assertEqual(len(check_prose.of_source(source, "s")), count, source)

    def test_comments_of_python_that_are_not_plain_are_noticed(self):
        check = check_prose.of_source
        for source, count in (
            ('"""Reads."""\n# Plain.\nx = "What nobody has"  # a text\n', 0),
            ('"""What it reads."""\n', 1),
            ('def f():\n    """Told by who waits."""\n', 1),
            ("# A rank that\n# nobody waits for.\n", 1),
            (
                'class C:\n    """C."""\n\n    async def f():\n        """Which of them is next."""\n',
                1,
            ),
            ('"""Adds:\n\n>>> f("What nobody has")\n\nMore.\n"""\n', 0),
            ('"""Adds:\n\n>>> f()\n1\n\nWho adds first is named.\n"""\n', 1),
        ):
            self.assertEqual(len(check(source, "s", check_prose.python_comments)), count, source)

    def test_comments_of_rust_that_are_not_plain_are_noticed(self):
        check = check_prose.of_source
        long = "The library " + "very " * 24 + "much."
        half = " ".join(long.split()[:14]), " ".join(long.split()[14:])
        for source, count in (
            ("//! Sends.\n\n/// Reads.\nfn f<'a>(x: &'a str) {} // Plain.\n", 0),
            ("//! What it sends.\n", 1),
            ("/// Told by who waits.\nfn f() {}\n", 1),
            (f"    /// {half[0]}\n    /// {half[1]}\n    a: u8,\n", 1),
            (f"/// {half[0]}.\n///\n/// {half[1]}\n", 0),  # two paragraphs
            (f"/// Adds:\n///\n/// ```\n/// // {long}\n/// ```\n", 0),
            ("/// Adds:\n///\n/// ```\n/// f();\n/// ```\n/// What it adds.\n", 1),
            ("/// Sends to [`Which`] of [the rank](Rank::who).\n", 0),
            # A lifetime opens no text, and a text may hold slashes, quotes or lines.
            ("fn f<'a>(x: &'a str) {} // What nobody has.\n", 1),
            ('let a = "// What \\" // nobody";\nlet b = r#"a "// Who" b"#;\n', 0),
            ("let a = '\"'; // What it has.\nlet b = '\"';\n", 1),
            ('let a = "one\n// What nobody has";\n', 0),
        ):
            self.assertEqual(len(check(source, "s", check_prose.rust_comments)), count, source)

    def test_comments_of_csharp_that_are_not_plain_are_noticed(self):
        check = check_prose.of_source
        long = "The library " + "very " * 24 + "much."
        half = " ".join(long.split()[:14]), " ".join(long.split()[14:])
        tags = '<see cref="A.B(int,\n///   long)"/> <c>Which nobody</c> ' * 10
        for source, count in (
            ("/// <summary>Sends.</summary>\nint a; // Plain, of List<int>.\n", 0),
            ("/// <summary>What it sends.</summary>\n", 1),
            ("/// <summary>\n/// Told by who waits.\n/// </summary>\n", 1),
            (f"/// <summary>\n/// {half[0]}\n/// {half[1]}\n/// </summary>\n", 1),
            (f"/// <summary>{half[0]}</summary>\n/// <returns>{half[1]}</returns>\n", 0),
            ('/// <summary>Sends</summary>\n/// <param name="to">Which rank.</param>\n', 1),
            (f"/// <summary>Sends {tags}.</summary>\n", 0),
            (f"/// <code>\n/// // {long}\n/// </code>\n", 0),
            ("// A rank that nobody waits for.\n", 1),
            ('var a = "// What \\" // nobody"; var b = @"\\"; // Which it is.\n', 1),
            ("var a = '\"'; // What it has.\nvar b = '\"';\n", 1),
        ):
            self.assertEqual(len(check(source, "s", check_prose.csharp_comments)), count, source)

    def test_a_generated_file_alone_is_left_out_of_the_prose(self):
        root = pathlib.Path(self.folder.name)
        for name, text in (
            ("bindings/dotnet/A.cs", "// What it is.\n"),
            ("bindings/dotnet/B.cs", "// Generated by x.\n// What it is.\n"),
            ("bindings/dotnet/obj/C.cs", "// What it is.\n"),
            ("examples/a/b.cpp", "// What it is.\n"),
            ("src/kernels/a.inc", "// What it is.\n"),
            ("tests/api/a.inc", "/* What it is. */\n"),
            ("bindings/python/a/b.py", "# What it is.\n"),
            ("bindings/rust/a/src/b.rs", "use a;\n// Generated by x.\n// What it is.\n"),
            ("bindings/rust/target/c.rs", "// What it is.\n"),
        ):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found, texts = check_prose.of_sources(root)
        folders = ["bindings/dotnet", "bindings/python/a", "bindings/rust/a/src"]
        folders += ["examples/a", "src/kernels", "tests/api"]
        self.assertEqual(
            ({k: len(v) for k, v in found.items()}, texts), (dict.fromkeys(folders, 1), 6)
        )

    def test_a_long_file_is_noticed_unless_it_is_generated(self):
        root = pathlib.Path(self.folder.name)
        long = "int a;\n" * (check_includes.MOST_LINES + 1)
        for name, text in (
            ("src/kernels/long.cpp", long),
            ("src/kernels/short.cpp", long[len("int a;\n") :]),
            ("bindings/rust/a/made.rs", "// Generated by x.\n" + long),
            ("bindings/rust/a/claims.rs", "use a;\n// Generated by x.\n" + long),
            ("bindings/rust/target/built.rs", long),
        ):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        problems = check_includes.problems_of_lengths(root)
        named = [problem.split(":")[0] for problem in problems]
        self.assertEqual(named, ["src/kernels/long.cpp", "bindings/rust/a/claims.rs"])

    def test_a_ceiling_of_prose_follows_down_and_not_up(self):
        found = {"src/a": ["one", "two"], "src/b": []}
        check = check_prose.against_ceilings
        self.assertEqual(check(found, {"src/a": 2}), [])
        self.assertEqual(len(check(found, {})), 3)
        self.assertEqual(len(check(found, {"src/a": 1})), 3)
        self.assertEqual(len(check(found, {"src/a": 3})), 1)
        self.assertEqual(len(check(found, {"src/a": 2, "src/gone": 1})), 1)

    def test_an_update_rule_that_needs_more_files_is_noticed(self):
        tree = pathlib.Path(self.folder.name)
        before = new_rule.texts(tree)
        for name in ("types.h", "rules.h", "model.h", "optimizer.h"):
            new_rule.replace(self.include / "trireme" / name, r"\Z", "\n")
        files = new_rule.changed(before, new_rule.texts(tree))
        new_rule.check_by_hand(files)
        new_rule.check_generated(["bindings/rust/new.rs", "tests/abi/golden-1.0.txt"])
        for check, names in (
            (new_rule.check_by_hand, [*files, "src/new.inc"]),
            (new_rule.check_generated, files),
        ):
            self.assertRaises(SystemExit, check, names)

    def test_every_seeded_defect_fits_its_source(self):
        for name, source, before, *_ in seeded_defects.DEFECTS:
            text = (seeded_defects.ROOT / source).read_text()
            self.assertEqual(len(seeded_defects.places(text, before)), 1, name)

    def test_a_source_that_is_laid_out_in_another_way_is_noticed(self):
        bad = {
            "clang-format": ("bad.cpp", "int  f( ){return 1;}\n"),
            "ruff": ("bad.py", "x = {  'a':1 }\n"),
            "rustfmt": ("bad.rs", "fn f( ) {}\n"),
        }
        root = pathlib.Path(self.folder.name)
        shutil.copytree(headers.INCLUDE, root / "include", dirs_exist_ok=True)
        for name in (".clang-format", ".ruff.toml", "include/.clang-format"):
            shutil.copy(seeded_defects.ROOT / name, root / name)
        there = [each for each in layout_of_text.FORMATTERS if layout_of_text.is_there(each)]
        if not there:
            self.skipTest("no formatter is installed")
        for formatter in there:
            name, text = bad[formatter.name]
            (root / name).write_text(text)
            self.assertTrue(layout_of_text.differences(formatter, [name], root), formatter.name)

    def test_a_check_without_its_formatter_is_skipped(self):
        gone = layout_of_text.FORMATTERS[0]._replace(name="no-such-formatter")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(layout_of_text.run([gone], True), layout_of_text.SKIPPED)
        self.assertRegex(said.getvalue(), "skipped: .* of no-such-formatter: not installed")
        for each in layout_of_text.FORMATTERS:
            self.assertTrue(layout_of_text.sources(each, layout_of_text.ROOT), each.name)


if __name__ == "__main__":
    unittest.main()
