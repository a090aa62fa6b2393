"""Schedules of pipelines."""

CHECK = "src/parallel/pipeline/check.cpp"

DEFECTS = [
    ("pipeline: W may come before I", CHECK,
     'return after((own & bit(TRIREME_PIPELINE_KIND_I)) != 0, text(s, "I")) &&', "return",
     "unit_test_pipeline_check"),
    ("pipeline: crossed messages pass", CHECK,
     "if (taken == sent) continue;", "continue;", "unit_test_pipeline_check"),
    ("pipeline: buffers are not counted", "src/parallel/pipeline/walk.hpp",
     "if (buffers_ != 0) ++waiting_[link(action)];", "", "unit_test_pipeline_check"),
    ("pipeline: a limit may be passed by the first byte", CHECK,
     "if (peak > limit) {", "if (peak > limit + 1) {", "unit_test_pipeline_check"),
    ("pipeline: a link carries two messages at once", "src/parallel/pipeline/simulate.cpp",
     "busy = std::max(busy, end) + transfer(costs_, size_of);",
     "busy = end + transfer(costs_, size_of);", "unit_test_pipeline_figures"),
    ("pipeline: the banker forgets stages to come", "src/parallel/pipeline/list.cpp",
     "if (needs > free) return false;", "", "unit_test_pipeline_figures"),
    ("pipeline: B and W of old files stay as they are", "src/parallel/pipeline/text.cpp",
     "action.kind = TRIREME_PIPELINE_KIND_I;", "", "unit_test_pipeline_text"),
    ("pipeline: a partition looks at one stage of a rank alone", "src/parallel/pipeline/partition.cpp",
     "const double now = seconds + time(first, first + count);",
     "const double now = std::max(seconds, time(first, first + count));",
     "unit_test_pipeline_search"),
    ("pipeline: a search takes schedules beyond the limits", "src/parallel/pipeline/best.cpp",
     "if (!fits(schedule, rank)) return;", "", "unit_test_pipeline_search"),
]
