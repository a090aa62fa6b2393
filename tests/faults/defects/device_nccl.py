"""Collectives by NCCL: the order on the device, the end at a deadline, and which way ranks choose."""

GROUP = "src/backends/nccl/group.cpp"
OFFER = "src/backends/nccl/offer.cpp"
MOVES = "src/collectives/device_moves.cpp"
TEST = "api_test_device_nccl"
FAILURES = "api_test_device_nccl_failures"

DEFECTS = [
    ("nccl: a kernel is queued before NCCL has queued what it sums", GROUP,
     "*kept_->stream));\n  return until_ready(deadline, trouble);",
     "*kept_->stream));\n  return Status::success();", TEST),
    ("nccl: a call returns before the device is done", GROUP,
     "  TRIREME_RETURN_IF_ERROR(until_done(deadline, trouble));\n", "", TEST),
    ("nccl: sums of floats are NCCL's own", "src/backends/nccl/plan.cpp",
     "return own_sums && !operation.reproducible ? How::sums : How::exchanges;",
     "return How::sums;", TEST),
    ("nccl: windows of a long sum are written over each other", GROUP,
     "const Share mine = window_of(shares[me], at, most);",
     "const Share mine = window_of(shares[me], 0, most);", TEST),
    ("nccl: a scattered sum of several windows has one place", GROUP,
     "(scatters ? at : mine.first)", "(scatters ? 0 : mine.first)", TEST),
    ("nccl: nothing aborts a group that has failed", GROUP,
     "[kept = kept_] { return kept->nccl.abort(); }", "[kept = kept_] { return Status::success(); }",
     FAILURES),
    ("nccl: an abort is waited for without end", GROUP,
     "aside.wait(Deadline::after(kEndNs));\n  }\n  if (ended",
     "aside.wait(Deadline::after(UINT64_MAX));\n  }\n  if (ended", FAILURES),
    ("nccl: a device that does not come back is used again", GROUP, "  taint(index);\n", "", FAILURES),
    ("nccl: a group that was there before works on a device that does not come back", MOVES,
     "  TRIREME_RETURN_IF_ERROR(nccl::check_taint(device_->place().index));\n", "", FAILURES),
    ("nccl: a wait for the device does not ask for lost peers", GROUP,
     "    TRIREME_RETURN_IF_ERROR(trouble());\n    TRIREME_RETURN_IF_ERROR(kept_->nccl.look(&ready));",
     "    TRIREME_RETURN_IF_ERROR(kept_->nccl.look(&ready));", FAILURES),
    ("nccl: an error that NCCL finds later is not asked for", GROUP,
     "    TRIREME_RETURN_IF_ERROR(trouble());\n    TRIREME_RETURN_IF_ERROR(kept_->nccl.look(&ready));",
     "    TRIREME_RETURN_IF_ERROR(trouble());", FAILURES),
    ("nccl: nobody ends a group that its caller leaves as it is made", GROUP,
     "      kept_ = mine;  // for abandon()\n", "", FAILURES),
    ("nccl: a meeting has no deadline of its own", GROUP,
     "if (ended.ok() && deadline.passed()) {", "if (false) {", FAILURES),
    ("nccl: ranks go by NCCL before they have compared their calls", MOVES,
     "  TRIREME_RETURN_IF_ERROR(compare(steps, called));\n", "", FAILURES),
    ("nccl: a dead peer is not waited for, and this rank blames itself", "src/collectives/device_ways.cpp",
     "while (news.ok() && !deadline.passed()) {", "while (false) {", FAILURES),
    ("nccl: peers with another version are taken", OFFER,
     "if (offer.version != offers[0].version) {", "if (false) {", FAILURES),
    ("nccl: two ranks of one device are taken", OFFER,
     "if (text_in(offers[other].uuid) != text_in(offer.uuid)) continue;", "continue;", FAILURES),
    ("nccl: a named algorithm of the host is NCCL's", MOVES,
     "if (group == nullptr || called.algorithm != 0)", "if (group == nullptr)", FAILURES),
    ("nccl: ranks need not agree about sums of NCCL", MOVES, "    one.agreement = 1;\n",
     "    one.agreement = call.communicator.rank() + 1;\n", FAILURES),
]
