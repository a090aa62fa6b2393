#!/usr/bin/env python3
"""The gates of rooms can fail: each is shown something broken and must say so."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import check_classes
import check_includes
import draw_rooms
import rooms
from rooms import Room

SOURCE = pathlib.Path("src/x.cpp")


class Rooms(unittest.TestCase):
    def problems(self, room, include):
        return check_includes.problems_of_source(SOURCE, room, f"#include {include}\n")

    def test_an_include_against_the_stream_is_noticed(self):
        self.assertEqual(self.problems("optimizer", '"model/model.hpp"'), [])
        for room, include in (
            ("model", '"optimizer/optimizer.hpp"'),
            ("sharding", '"model/model.hpp"'),
            ("platform", '"net/token.hpp"'),
            ("platform", "<net/token.hpp>"),
            ("backends/tcp", '"collectives/communicator.hpp"'),
            ("schedules", '"backends/backend.hpp"'),
            ("store", '"trireme/status.h"'),
            ("launch", '"store/store.hpp"'),
            ("cli", '"model/model.hpp"'),
        ):
            self.assertEqual(len(self.problems(room, include)), 1, (room, include))

    def test_an_include_between_rooms_of_one_room_is_noticed(self):
        self.assertEqual(self.problems("model", '"model/gradients/reducer.hpp"'), [])
        self.assertEqual(self.problems("backends/frames", '"backends/slots/group.hpp"'), [])
        for room, include in (
            ("model/gradients", '"model/model.hpp"'),
            ("model/gradients", '"model/units/unit_pool.hpp"'),
            ("optimizer/rules", '"optimizer/optimizer.hpp"'),
            ("backends/slots", '"backends/local/process_mesh.hpp"'),
            ("backends/wire", '"backends/mpi/plugin.hpp"'),
            ("backends", '"backends/tcp/mesh.hpp"'),
            ("cli/bench", '"cli/doctor/doctor.hpp"'),
        ):
            self.assertEqual(len(self.problems(room, include)), 1, (room, include))

    def test_a_room_that_the_table_does_not_name_is_noticed(self):
        self.assertEqual(len(self.problems("model", '"model/cellar/wine.hpp"')), 1)
        self.assertEqual(self.problems("backends/tcp", "<net/if.h>"), [])
        self.assertEqual(self.problems("backends/tcp", "<sys/socket.h>"), [])

    def test_a_circle_in_the_table_is_noticed(self):
        check = check_includes.problems_of_table
        self.assertEqual(check(), [])
        table = {"a": Room("", "public"), "b": Room("", "a")}
        self.assertEqual(check(table), [])
        self.assertEqual(len(check({**table, "a": Room("", "b")})), 1)
        self.assertEqual(len(check({**table, "b": Room("", "b")})), 1)
        self.assertEqual(len(check({"b": table["b"], "a": table["a"]})), 1)
        # a includes b, which includes a room inside of a.
        inner = {"a/i": Room("", "public"), "b": Room("", "a/i"), "a": Room("", "b")}
        self.assertEqual(len(check(inner)), 1)

    def test_a_permission_that_nobody_uses_is_noticed(self):
        table = {"a": Room("", "public"), "b": Room("", "a public")}
        self.assertEqual(check_includes.problems_of_unused({("b", "a")}, table), [])
        self.assertEqual(len(check_includes.problems_of_unused(set(), table)), 1)

    def test_a_friend_across_rooms_is_noticed(self):
        model = "class Model {\n  friend class Optimizer;\n};"
        sources = [(SOURCE, "model", model), (SOURCE, "optimizer", "class Optimizer {\n};")]
        check = check_includes.problems_of_friends
        self.assertEqual(len(check(sources)), 1)
        self.assertEqual(check([(SOURCE, "model", model + "\nclass Optimizer {\n};")]), [])
        within = [(SOURCE, "model", model), (SOURCE, "model/units", "class Optimizer {\n};")]
        self.assertEqual(len(check(within)), 1)

    def test_a_comment_that_names_a_method_of_another_class_is_noticed(self):
        link = "class Link {\n  void end();  // end() of a peer\n};"
        check = check_includes.problems_of_comments
        for text, problems in (
            ("// See Link::end().", 0),
            ("// See\n// Link::end().", 0),
            ("// See Link::begin().", 1),
            ("/* See Frame::end(). */", 1),
            ("Link::begin();", 0),
        ):
            sources = [(SOURCE, "model", link), (pathlib.Path("src/y.cpp"), "model", text)]
            self.assertEqual(len(check(sources)), problems, text)
        self.assertEqual(len(check([(SOURCE, "model", link + "// Link::begin()")])), 1)

    def test_a_picture_that_is_stale_is_noticed(self):
        pairs = rooms.edges()
        picture = draw_rooms.picture(pairs)
        self.assertEqual(draw_rooms.problems_of(pairs, picture), [])
        self.assertEqual(
            len(draw_rooms.problems_of(pairs - {("trainer", "optimizer")}, picture)), 1
        )
        self.assertEqual(len(draw_rooms.problems_of(pairs | {("launch", "store")}, picture)), 1)

    def test_a_page_that_names_what_is_no_more_is_noticed(self):
        text = (rooms.ROOT / "docs" / "architecture.md").read_text()
        self.assertEqual(draw_rooms.unknown_names(text), [])
        for old, new in (
            ("src/model/model.cpp", "src/model/cellar.cpp"),
            ("Model::gradient_ready()", "Model::drink()"),
            ("| `net` |", "| `cellar` |"),
        ):
            self.assertIn(old, text)
            self.assertTrue(draw_rooms.unknown_names(text.replace(old, new)), new)

    def test_arrows_that_follow_from_others_are_left_out(self):
        pairs = {("a", "b"), ("b", "c"), ("a", "c"), ("a", "d")}
        self.assertEqual(draw_rooms.reduced(pairs), pairs - {("a", "c")})


class Classes(unittest.TestCase):
    TEXT = """
        namespace n {
        enum class Kind { one, two };
        // class NotThis { int a; };
        template <class T>
        class Large final : public Base<T, int> {
         public:
          explicit Large(int a) : a_{a}, b_(a) {}
          ~Large() override;
          Large(const Large&) = delete;
          bool operator==(const Large&) const = default;
          std::map<int, std::string> map() const { return {}; }
          static Status create(const char* text = "};", int (*call)(int) = nullptr);

         private:
          friend class Other;
          using Words = std::array<int, 2>;
          enum class State { absent, there } state = State::absent;
          static constexpr int kMost = 4;
          struct Inner {
            int x = 0, y = 0;
            int sum() const { return x + y; }
          };
          const int a_, b_ = 2;
          std::array<Inner, 3> inner_{};
          std::function<void(int, int)> call_;
          Status (*table_)(int, int);
          std::atomic<int> count_{0};
        };
        }
    """

    def test_methods_and_fields_are_counted(self):
        found = {name: numbers for name, *numbers in check_classes.classes_of(self.TEXT)}
        self.assertEqual(found, {"Large": [6, 7], "Large::Inner": [1, 2]})

    def test_a_class_with_any_head_is_counted(self):
        body = " { int a, b; void f(); };"
        for head, name in (
            ("struct X", "X"),
            ("struct X<int>", "X"),
            ("template <class T> struct X<std::map<T, int>> final : Y<T>", "X"),
            ("struct X : B<decltype(f())>", "X"),
            ("struct X : B<decltype(f(g(1)))>, virtual C", "X"),
            ("struct alignas(sizeof(int)) X", "X"),
            ("class alignas(64) [[nodiscard]] X : B", "X"),
            ("class a::X : a::B", "a::X"),
        ):
            found = check_classes.classes_of(head + body)
            self.assertEqual(found, [(name, 1, 2)], head)
            outer = check_classes.classes_of("class O { " + head + body + " int c; };")
            self.assertEqual(outer[-1], ("O", 0, 1), head)
        for none in ("enum class X : int { a };", "template <class T> void f(T t) { t(); }"):
            self.assertEqual(check_classes.classes_of(none), [], none)

    def test_parts_that_sources_include_are_looked_at(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "src/kernels").mkdir(parents=True)
            for name in ("a.cpp", "b.hpp", "c.inc", "d.map"):
                (root / "src/kernels" / name).write_text("struct X { int a; };")
            self.assertEqual(len(check_classes.all_classes(root)), 3)

    def check(self, methods, fields):
        return check_classes.check([(pathlib.Path("src/a/b.hpp"), "C", methods, fields)])

    def test_a_class_that_is_too_large_is_noticed(self):
        self.assertEqual(self.check(40, 25), [])
        self.assertEqual(len(self.check(41, 1)), 1)
        self.assertEqual(len(self.check(1, 26)), 1)


if __name__ == "__main__":
    unittest.main()
