"""Messages between stages of a pipeline that share memory."""

MAIL = "src/parallel/executor/mail.cpp"
LINKS = "src/parallel/executor/links.cpp"
PLACES = "src/parallel/executor/places.cpp"
PLAN = "src/parallel/executor/plan.cpp"
TEST = "api_test_pipeline_messages"

DEFECTS = [
    ("mail: memory is used again while its receiver reads", LINKS,
     "    status = mail_->await_taken(sending.message);", "", TEST),
    ("mail: a header is read before it has come", MAIL,
     "  TRIREME_RETURN_IF_ERROR(await(from.sent, Wake::receiver, sender));\n", "", TEST),
    ("mail: the cell of another micro-batch is read", MAIL,
     ".cells[cells_[message.lane] + message.micro_batch];",
     ".cells[cells_[message.lane] + message.micro_batch / 2];", TEST),
    ("mail: data are given back before the layers have read them", LINKS,
     "  if (!news->failed) return Status::success();\n  *data = nullptr;\n",
     "  if (news->failed) *data = nullptr;\n", TEST),
    ("mail: evaluation does not give back what it has read", "src/parallel/executor/pass.cpp",
     "  if (!trains_) TRIREME_RETURN_IF_ERROR(places_.give_back(here));\n", "", TEST),
    ("mail: a sleeping rank is not woken", MAIL,
     "  return link_.communicator->send_buffered(arguments, link_.deadline());",
     "  return Status::success();", TEST),
    ("mail: both directions share cells", MAIL,
     "    first += lanes.micro_batches();", "    if (lane % 2 == 1) first += lanes.micro_batches();", TEST),
    ("mail: W reads memory that its sender uses again", PLAN,
     "    if (half && shape->split) return;\n", "    static_cast<void>(half);\n", TEST),
    ("mail: the limit of memory leaves the sums out", "src/parallel/executor/pipeline_trainer.cpp",
     "  const std::uint64_t own = parameter_gradient_bytes() + exchange_bytes();",
     "  const std::uint64_t own = 0;", TEST),
]
