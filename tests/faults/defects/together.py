"""Steps of several optimizers with one norm."""

TOGETHER = "api_test_step_together"
STEP = "src/optimizer/step_together.cpp"
NORMS = "src/optimizer/step_norms.cpp"

DEFECTS = [
    ("together: a model is left out of the norm", NORMS,
     "    for (std::size_t i = 0; i < first.norm_count(); ++i) first.squares_[i].add(",
     "    for (std::size_t i = 1; i < first.norm_count(); ++i) first.squares_[i].add(", TOGETHER),
    ("together: only the first model is clipped by the norm of all", NORMS,
     "    std::copy(first.squares_.begin(), first.squares_.end(), each->squares_.begin());\n", "",
     "gpt_test_axes"),
    ("together: a model does not skip the step of another", NORMS,
     "    each->overflow_.found = first.overflow_.found;\n", "", TOGETHER),
    ("together: a skipped step counts for parameters", NORMS,
     "if (!steps->skipped.empty() && !overflow_.found) count_skipped",
     "if (!steps->skipped.empty()) count_skipped", TOGETHER),
    ("together: ranks do not compare the optimizers", NORMS,
     "return partners_ == 0 ? agreement :", "return partners_ != 1 ? agreement :", TOGETHER),
    ("together: each rank comes in the order of the caller", STEP,
     "return one->made_ < other->made_;", "return &one < &other;", TOGETHER),
    ("together: the other models do not fail", STEP,
     "    for (Step& each : steps) static_cast<void>(each.break_off(status));\n",
     "    static_cast<void>(steps[reached].break_off(status));\n",
     TOGETHER),
    ("together: peers that wait in another model hear nothing", STEP,
     "        each->fail_groups(status.code(), status.message());\n", "        break;\n", TOGETHER),
    ("together: work of the caller on a device may still read parameters", STEP,
     "TRIREME_RETURN_IF_ERROR(shard.keep(shard.on_device()->begin()));", "",
     "api_test_device_model"),
    ("together: loss scales with other counts are taken", STEP,
     "one.state().clean_steps == other.state().clean_steps &&", "true &&", TOGETHER),
]
