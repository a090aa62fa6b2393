#!/usr/bin/env python3
"""Tests of the tests: builds the library with one defect at a time, which a named test must
catch.

    seeded_defects.py [--list] [NAME-PART...]

Takes all defects, or those whose name holds a NAME-PART; --list prints them and builds nothing.
Works on a copy of the tree in build/defects. Last line: "N passed, N failed, 0 skipped".
"""

import argparse
import filecmp
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "defects"
COPY = FOLDER / "source"
BUILD = FOLDER / "build"
SECONDS = 300  # a test that hangs has caught the defect, too

DOTNET = "dotnet "  # and what the names of the C# tests contain
QUICK = "api_test_collectives TRIREME_TEST_QUICK=1 TRIREME_TOKEN=a-token-for-tests-of-27-bytes "
OVER_GLOO = QUICK + "TRIREME_TESTS_NETWORK=gloo"
FLIPS = f"unit_test_faulty_network TRIREME_GLOO_LIBRARY={BUILD}/libtrireme_gloo.so"
OVER_HOSTS = QUICK + "TRIREME_TESTS_NETWORK=1 TRIREME_TESTS_HOSTS=aabb"

# name, file, what is there, what is put in its place, the test that must fail, and its environment
DEFECTS = [
    ("ranks are not compared", "src/backends/slots/run.cpp",
     "return same ? Status::success() : disagreement();", "return Status::success();",
     "faults_test_mismatch"),
    ("roots are not compared", "src/backends/fingerprint.hpp",
     "has_root(kind) ? operation.root : 0", "0", "faults_test_mismatch"),
    ("algorithms of ranks are not compared", "src/backends/fingerprint.cpp",
     "print.algorithm = static_cast<std::int16_t>(operation.algorithm);", "print.algorithm = 0;",
     "api_test_collectives"),
    ("a model is left out of the fingerprint", "src/backends/fingerprint.cpp",
     "print.model = operation.model;", "print.model = 0;", "unit_test_local_threads"),
    ("models of a communicator share channels", "src/collectives/channel_table.cpp",
     "std::uint32_t place = model - 1;", "std::uint32_t place = (model - 1) % 3;",
     "api_test_models"),
    ("a model forgets that its communicator was destroyed", "src/model/failure.cpp",
     "if (link_.communicator->failure().code() != TRIREME_ERROR_INVALID_STATE) break;",
     "break;", "api_test_models"),
    ("the wrong rank is blamed", "src/backends/local/process_mesh.cpp",
     "group_.presence().mark_lost(rank);\n  if (group_.presence().left(rank)) return;",
     "group_.presence().mark_lost(rank);\n  if (group_.presence().left(rank)) return;\n"
     "  rank = (rank + 1) % group_.world_size();",
     "faults_test_kill"),
    ("a forked child keeps descriptors", "src/platform/descriptors.cpp",
     "syscall(SYS_close, word * kBits + std::countr_zero(bits));", "continue;", "faults_test_fork"),
    ("a descriptor that is closed stays noted", "src/platform/system.cpp",
     "  forget_descriptor(descriptor);\n", "", "faults_test_fork"),
    ("a descriptor that could not be taken is the sender's fault", "src/net/unix_socket.cpp",
     "(message.msg_flags & MSG_CTRUNC) != 0 && count < kMostDescriptors;", "false;",
     "faults_test_limits"),
    ("threads have the stack of the first one", "src/platform/thread.cpp",
     "  pthread_attr_setstacksize(&attributes, kStackBytes);\n", "", "faults_test_limits"),
    ("extents of a parameter wrap", "src/sharding/registry.cpp",
     "if (extent > kMaxElements / elements) {", "if (false) {", "api_test_sizes"),
    ("the elements of a model are not limited", "src/sharding/registry.cpp",
     "if (parameter.elements > kMaxElements - elements_) {", "if (false) {", "api_test_sizes"),
    ("messages move at once before their ranks have met", "src/backends/slots/messages.cpp",
     "if (!state.lending.has_met(message.peer)) return false;", "", "api_test_lent_messages"),
    ("what was started forgets its deadline", "src/collectives/request.cpp",
     "return option_ == nullptr ? result_ : tell_deadline(result_, timeout_ns_, option_, passed_);",
     "return result_;", "api_test_advice"),
    ("shared memory does not look at the limit of files", "src/platform/system.cpp",
     "if (!file_may_have(bytes)) {", "if (false) {", "faults_test_limits"),
    ("all who call are taken in at once", "src/backends/local/process_mesh.cpp",
     "for (int turn = 0; turn < kMostCallers; ++turn) {", "while (true) {",
     "faults_test_host_meeting"),
    ("another token is as good", "src/backends/local/greetings.cpp",
     "return same_digest(theirs.proof, proof(theirs, answers));", "return true;",
     "faults_test_host_meeting"),
    ("bytes of an older message pass for a header", "src/backends/slots/messages_send.cpp",
     "  if (part == left) stamp_at(ring, capacity(), end).store(0, std::memory_order_relaxed);\n", "",
     "unit_test_message_rings"),
    ("a message is over before its last frame", "src/backends/slots/messages.cpp",
     "(!relayed() || ring.written.load(std::memory_order_acquire) >= next_cell(peer.read));",
     "true;", "api_test_messages TRIREME_TESTS_TRANSPORT=1"),
    ("lent bytes count although their sender has failed", "src/backends/slots/messages.cpp",
     "    if (group.failure().happened()) return Status::success();\n    peer.got += part;\n",
     "    peer.got += part;\n", "api_test_lent_messages"),
    ("a lent message that is withdrawn is still read", "src/backends/slots/messages_send.cpp",
     ".compare_exchange_strong(stamp, withdrawn_of(position), std::memory_order_seq_cst);",
     ".load() == stamp;", "api_test_lent_messages"),
    ("a sender does not wait for who reads its memory", "src/backends/slots/messages_send.cpp",
     "lent_until <= peer.taken", "lent_until <= peer.written", "api_test_lent_messages"),
    ("who waits for a message does not hear that it is cancelled", "src/collectives/message_queue.cpp",
     "  started.message.done = true;  // for a caller that carries it\n", "", "api_test_waits"),
    ("a small gather has all blocks in one place", "src/backends/slots/small_collective.cpp",
     "static_cast<std::byte*>(op.receive) + static_cast<std::uint64_t>(rank) * block",
     "static_cast<std::byte*>(op.receive)", "api_test_collectives"),
    ("a failure is not told to the peers", "src/backends/slots/group_failure.cpp",
     "      if (shared != nullptr) {\n        shared->record(", "      if (false) {\n        shared->record(", "api_test_communicator"),
    ("a planned rule has no state", "src/optimizer/counted_rule.cpp",
     "limit->states = settings.states;", "limit->states = 0;", "api_test_memory_limit"),
    ("ranks that would be enough are counted without state", "src/model/memory_limit.cpp",
     "return most_of(limit, registry, Layout(registry, spread)).all() <= limit.bytes;",
     "return most_of(limit, registry, Layout(registry, spread)).plan.all() <= limit.bytes;",
     "api_test_memory_limit"),
    ("a child is not failed with its parent", "src/collectives/subgroup.cpp",
     "children.back()->follow(parent);", "", "faults_test_children"),
    ("what waits behind a late operation blames its own rank", "src/collectives/channel.cpp",
     "std::vector<std::int32_t> awaited = backend.awaited(number_);",
     "std::vector<std::int32_t> awaited{records_.rank};", "faults_test_blame"),
    ("a rank that waits in another queue is blamed", "src/backends/slots/blame.cpp",
     "for (const std::int32_t other : behind(channel, rank)) {",
     "for (const std::int32_t other : behind(channel, seat_.rank())) {", "faults_test_blame"),
    ("a rank that waits in a smaller group is blamed", "src/backends/slots/blame.cpp",
     "bool any = waits_below(rank, awaited);", "bool any = false;",
     "faults_test_blame TRIREME_TESTS_NETWORK=1 TRIREME_TOKEN=a-token-for-tests-of-27-bytes"),
    ("a wait in vain hides the one before", "src/backends/slots/blame.cpp",
     "before | ranks.words()[i]", "ranks.words()[i]", "unit_test_blame"),
    ("an abort makes a wait vain", "src/backends/slots/arrivals.cpp",
     "status.code() == TRIREME_ERROR_TIMEOUT;", "!status.ok();", "unit_test_local_threads"),
    ("who was late once says so for ever", "src/backends/slots/membership.cpp",
     "  if (!asks_only) membership.note_missed({});\n", "", "api_test_communicator"),
    ("who leaves misses ranks that have come since", "src/backends/slots/membership.cpp",
     "std::erase_if(missed_, [this](std::int32_t rank) { return joined(rank); });", "",
     "unit_test_local_threads"),
    ("a rank that waits for a frozen one is blamed", "src/backends/local/processes.cpp",
     "return process_mesh_.stopped();", "return std::vector<std::int32_t>();", "faults_test_frozen"),
    ("a model that gives up leaves one of its groups", "src/model/failure.cpp",
     "if (group != failed && !lives) group->fail_with", "if (false) group->fail_with",
     "api_test_norm_ranks"),
    ("a rank that waits in a model is not told of", "src/backends/slots/arrivals.cpp",
     "return where_else(missing);", 'return "";',
     "faults_test_crossed_models TRIREME_TESTS_TRANSPORT=1"),
    ("calls that compare different facts do not name each other", "src/exchange/agreement.cpp",
     'std::string("the call\\t") + call;', 'std::string("the call\\t") + (call == nullptr ? "" : "any");',
     "faults_test_crossed_models"),
    ("a wait has no deadline", "src/backends/slots/arrivals.cpp",
     "const bool late = now >= call.deadline.moment_ns();", "const bool late = false;",
     "unit_test_local_threads"),
    ("nobody hears that a rank has left", "src/backends/slots/arrivals.cpp",
     "if (call_.group.presence().left(rank) && !arrived(rank)) gone.push_back(rank);", "",
     "api_test_communicator"),
    ("an average divides by one too many", "src/backends/slots/transfer.cpp",
     "count, n, op.scale);", "count, n + 1, op.scale);",
     "api_test_collectives"),
    ("a scatter gives the block before", "src/backends/parts.cpp",
     "? Part{block_begin(operation, destination), 0, block(operation, destination)}",
     "? Part{block_begin(operation, destination / 2), 0, block(operation, destination)}",
     "api_test_collectives"),
    ("expected counts are not compared", "src/collectives/composite.cpp",
     "if (sent == expected) continue;", "continue;", "faults_test_mismatch"),
    ("the scale of a call is lost", "src/api/operation_call.hpp",
     "operation->scale = options.scale;", "operation->scale = 1;",
     "api_test_batch"),
    ("tags do not matter", "src/backends/slots/messages_state.hpp",
     "(message.any_tag || message.tag == header.tag)", "true", "api_test_messages"),
    ("a receive overtakes a message that was set aside", "src/backends/slots/messages.cpp",
     "!peer.aside.empty() ||\n      message.fit", "message.fit", "api_test_messages"),
    ("a receive takes another length at once", "src/backends/slots/messages.cpp",
     "!fits || header.dtype != message.dtype", "header.dtype != message.dtype",
     "api_test_matching"),
    ("a message that is too long is cut", "src/backends/slots/messages.cpp",
     "receive.fit == Message::Fit::up_to && receive.count > header.count",
     "receive.fit == Message::Fit::up_to", "api_test_matching"),
    ("copies of buffered sends have no limit", "src/collectives/message_queue.cpp",
     "constexpr std::uint64_t kMostBuffered = 64u << 20;",
     "constexpr std::uint64_t kMostBuffered = UINT64_MAX;", "api_test_matching"),
    ("urgent operations share the queue", "src/api/operation_call.hpp",
     "operation->channel = kUrgentChannel;", "operation->channel = 0;", "api_test_collectives"),
    ("what a rank calls is not written down", "src/backends/slots/seat.hpp",
     "pack_call(kind, channel, model, sequence)", "0",
     "faults_test_last_calls"),
    ("nobody hears of a slow rank", "src/platform/stall.hpp",
     "if (next_ns_ == kNeverStalls || waited_ns_ < next_ns_) return false;", "return false;",
     "faults_test_slow"),
    ("a slow rank is told of without end", "src/platform/stall.hpp",
     "waited_ns_ * 2;", "waited_ns_;", "faults_test_slow"),
    ("what cannot be handed out is no failure of the group", "src/api/handles.hpp",
     "    fail_to_hand_out(communicator);\n", "", "faults_test_out_of_memory"),
    ("a watched process is not let go of", "src/backends/local/process_mesh.cpp",
     "    close_descriptor(&each.process);\n    each.state = State::closed;",
     "    each.state = State::closed;", "faults_test_hygiene"),
    ("what a peer says it contributes is believed", "src/backends/slots/sources.cpp",
     "    if (!gives) TRIREME_RETURN_IF_ERROR(check(rank, false));\n", "",
     "faults_test_hostile"),
    ("a thread can be cancelled inside a call", "src/platform/thread.hpp",
     "pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_);", "", "faults_test_lifecycle"),

    # between hosts
    ("network: a death after the meeting is told to nobody", "src/backends/tcp/directory.cpp",
     "if (guest.met == met) send(", "if (false) send(", "faults_test_meeting"),
    ("network: the rest of an answer at the meeting is never sent", "src/backends/tcp/directory.cpp",
     "if (guest.sent < first.size()) return;", "if (moved == 0) return;",
     "unit_test_directory"),
    ("a rank that ends after a failure has told nobody", "src/backends/local/process_mesh.cpp",
     "if (all_map || !started_) return;", "if (started_ || all_map) return;",
     "faults_test_meeting"),
    ("one host: a rank looks at itself alone", "src/backends/join/choice.cpp",
     "*all = answers.are_yes();", "*all = own;", "faults_test_tcp_memory"),
    ("one host: messages from before the choice are lost", "src/backends/join/network.cpp",
     "    list.remove(message);\n    chosen->post(message);\n", "    list.remove(message);\n",
     "faults_test_tcp_memory"),
    ("one host: buffers from before the meeting are not handed over",
     "src/backends/slots/memory.cpp",
     "    if (sink_.made) sink_.made(entry.id);\n", "", "faults_test_tcp_memory"),
    ("network: who waits at the meeting is missed with who never comes",
     "src/backends/slots/membership.cpp", "return both.empty() ? missing : both;", "return missing;",
     "faults_test_meeting"),
    ("network: who gave up at the meeting is forgotten", "src/backends/tcp/directory.cpp",
     "if (it->met == 0 && it->admitted && it->gave_up) {", "if (false) {", "faults_test_meeting"),
    ("network: who gave up is not missed by those who are there", "src/backends/tcp/meeting.cpp",
     "if (news_.left[static_cast<std::size_t>(rank)]) out.push_back(rank);", "", "faults_test_meeting"),
    ("network: a caller's proof is not compared", "src/net/handshake.cpp",
     "  if (!same_digest(digest_at(got_), made_of_both(kFromCaller))) return unauthenticated();\n", "",
     "unit_test_handshake"),
    ("network: the proof of one end stands for the other's", "src/net/handshake.cpp",
     'kFromCaller = "trireme caller"', 'kFromCaller = "trireme called"', "unit_test_handshake"),
    ("network: a recording is as good as a talk", "src/net/handshake.cpp",
     "if (!system_table().random_bytes(nonce.data(), nonce.size())) {",
     "nonce.fill(7);\n  if (false) {", "unit_test_handshake"),
    ("network: digests are compared by their first half", "src/net/hmac.cpp",
     "i < a.size()", "i < a.size() / 2", "unit_test_handshake"),
    ("network: the code of a frame is not compared", "src/net/handshake.cpp",
     "if (!same_digest(code, came)) {", "if (false) {", "unit_test_fuzz_network"),
    ("network: a frame fits at any place", "src/net/handshake.cpp",
     "put64(&place, sequence);", "put64(&place, 0);", "unit_test_fuzz_network"),
    ("network: a length is believed before it is capped", "src/net/handshake.cpp",
     "if (length_ > most_) {", "if (length_ > most_ && got_.size() > most_) {",
     "unit_test_handshake"),
    ("network: a newcomer may stay", "src/backends/tcp/admission.cpp",
     "step == Step::wait && now - it->since_ns < acceptor_.patience_ns()", "step == Step::wait",
     "faults_test_network"),
    ("network: newcomers are without number", "src/backends/tcp/admission.cpp",
     "    if (acceptor_.is_full(unauthenticated_.size())) unauthenticated_.pop_front();\n", "",
     "unit_test_fuzz_sessions"),
    ("network: a port is open at every address", "src/net/tcp_socket.cpp",
     "  if (system_table().bind(made.get(), endpoint.get(), endpoint.length) != 0 ||",
     "  Endpoint open = endpoint;\n"
     "  reinterpret_cast<sockaddr_in&>(open.address).sin_addr.s_addr = INADDR_ANY;\n"
     "  if (system_table().bind(made.get(), open.get(), open.length) != 0 ||",
     "faults_test_network"),
    ("network: a lost rank is told to nobody", "src/backends/tcp/losses.cpp",
     "  untold_.push_back(rank);\n", "", "unit_test_faulty_network"),
    ("network: the wrong rank is blamed", "src/backends/tcp/losses.cpp",
     "  details.blamed = {rank};\n",
     "  details.blamed = {(rank + 1) % static_cast<int>(codes_.size())};\n", "faults_test_network"),
    ("network: silence has no end", "src/backends/tcp/signs.cpp",
     "if (silence_ns < limit_ns) continue;", "continue;", "unit_test_faulty_network"),
    ("network: signs of life wait for who writes a frame", "src/backends/tcp/mesh.cpp",
     "    while (mesh->signs_.turn()) {\n",
     "    while (mesh->signs_.turn()) {\n"
     "      for (const auto& peer : mesh->peers_) const std::lock_guard lock(peer->mutex);\n",
     "faults_test_signs"),
    ("network: a rank's own lateness is a silence of its peers", "src/backends/tcp/signs.cpp",
     "elapsed_ns > 2 * tick_ns_ ? tick_ns_ : elapsed_ns", "elapsed_ns", "unit_test_signs"),
    ("network: gradients go in frames", "src/backends/frames/backend.cpp",
     "if (engine == nullptr) return std::nullopt;",
     "if (engine == nullptr || operation.kind == OperationKind::fold) return std::nullopt;",
     "api_test_gradient_wire"),
    ("network: gradients of a rank without data are awaited", "src/backends/slots/run.cpp",
     "gives->push_back(call_.contributes(rank));", "gives->push_back(true);",
     "api_test_gradient_wire"),
    ("network: a flipped bit is a number", "src/backends/tcp/mesh.cpp",
     " || !peer.received.fits(head, frame)", "", "unit_test_faulty_network"),
    ("network: who says goodbye is not known to have left", "src/backends/frames/frame_link.cpp",
     "    group_.presence().mark_left(leaver.rank);\n", "", "api_test_many_ranks"),
    ("network: who left in order is the first that went", "src/backends/tcp/losses.cpp",
     " || (left_[at] && code == TRIREME_ERROR_PEER_LOST)", "", "faults_test_meeting"),
    ("network: who has said everything ends before it is sent", "src/backends/frames/frame_link.cpp",
     " && (!waited_for || group_.failure().happened())", "", "faults_test_network"),
    ("a loss while ranks shrink is not told apart", "src/collectives/survivors.cpp",
     "std::move(blamed), 0, true};", "std::move(blamed), 0, false};", "faults_test_shrink"),
    ("launcher: the cause is not waited for", "src/launch/launch_state.cpp",
     "  } else if (ending.cause == Cause::own) {\n", "  } else if (true) {\n",
     "unit_test_launch_state"),
    ("launcher: a signal before the cause is known is none", "src/launch/launch_state.cpp",
     "  if (!is_ending()) received_signal_ = signal;\n",
     "  if (phase_ == Phase::running) received_signal_ = signal;\n", "unit_test_launch_state"),
    ("env:// ignores MASTER_ADDR", "src/collectives/rendezvous.cpp",
     "const bool loopback = is_loopback(address);", "const bool loopback = true;",
     "api_test_communicator"),
    ("network: two may be the same rank", "src/backends/tcp/directory.cpp",
     "if (it->request.rank == own.rank) {", "if (false) {", "api_test_network"),
    ("network: world sizes are not compared", "src/backends/tcp/directory.cpp",
     "if (it->request.world_size != own.world_size) {", "if (false) {", "api_test_network"),
    ("network: what may have been decided counts for nothing", "src/backends/frames/paxos.hpp",
     "if (accepted > best_) {", "if (false) {", "unit_test_consensus"),
    ("network: the smaller side goes on, too", "src/backends/frames/consensus.cpp",
     "return twice > members_.count() ||", "return twice > 0 ||", "unit_test_consensus"),

    ("what copies hide may be written", "src/model/units/unit_pool.hpp",
     "places_[group].present || (!parts_.empty() && parts_[group].good)", "false",
     "api_test_reshard"),

    # options that nest
    ("a group of parameters has no weight decay of its own", "src/api/optimizer_options.cpp",
     "decay != nullptr ? *decay : options.weight_decay", "options.weight_decay",
     "api_test_option_effects"),
    ("the alpha of RMSPROP goes nowhere", "src/kernels/rule_rmsprop.inc",
     "TRIREME_NUMBER(alpha, beta2,", "TRIREME_NUMBER(alpha, own[0],", "api_test_option_effects"),
    ("structs of a list lie as the library knows them", "src/api/boundary.hpp",
     "i * std::uint64_t{stride});", "i * sizeof(Struct));", "api_test_option_structs"),

    # bindings
    ("C#: a model that is distributed keeps old parameters after a load",
     "bindings/dotnet/src/OptimizerState.cs", "            Model.Changed?.Invoke();\n", "",
     DOTNET + "A_step_after_a_load_is_taken_at_the_loaded_parameters"),
    ("C#: a gradient is taken where the wrapped model was",
     "bindings/dotnet/src/Distributed.cs", "if (call.MicroBatch == 0)",
     "if (call.MicroBatch != 0)",
     DOTNET + "A_step_after_ranges_are_written_is_taken_there"),
    ("C#: nobody multiplies gradients by the loss scale", "bindings/dotnet/src/Distributed.cs",
     "call.LossScale, to);", "1, to);", DOTNET + "A_loss_scale_changes_no_number"),

    # ranks that share hosts
    ("hierarchical: every shard is the first one", "src/backends/hierarchical/run.cpp",
     "(first + part.first) * size_, made(place), part.count * size_);",
     "(first + part.first) * size_, made(0), part.count * size_);", OVER_HOSTS),
    ("hierarchical: an average divides by the ranks of a host", "src/backends/hierarchical/run.cpp",
     "const auto ranks = static_cast<std::uint32_t>(engine_.options_.world_size);",
     "const auto ranks = static_cast<std::uint32_t>(here_);", OVER_HOSTS),
    ("hierarchical: there are as many shards as the largest host has ranks",
     "src/backends/hierarchical/hosts.cpp",
     "shards = static_cast<int>(fewest->size());", "shards = static_cast<int>(most->size());",
     "unit_test_hierarchical"),
    ("hierarchical: a host's ranks are in another order",
     "src/backends/hierarchical/hosts.cpp", "all.push_back(static_cast<int>(rank));",
     "all.insert(all.begin(), static_cast<int>(rank));", "unit_test_hierarchical"),

    # plugins
    ("a plugin of another build is taken", "src/platform/plugin.cpp",
     "if (head->version != expected.version || head->library != expected.library ||\n"
     "      head->bytes != expected.bytes) {", "if (false) {", "unit_test_plugin"),

    # Gloo
    ("gloo: an average is a sum", "src/backends/gloo/engine.cpp",
     "if (is_reduced && takes && kernels::unfinished(operation.reduction) != operation.reduction) {",
     "if (false) {", OVER_GLOO),
    ("gloo: a ring begins with the wrong block", "src/backends/wire/ring.cpp",
     "cut(block_of(blocks, me_ - 1), false);", "cut(block_of(blocks, me_ + 1), false);",
     OVER_GLOO),

    # the wire of MPI's messages
    ("mpi: channels that share a communicator share tags", "src/backends/mpi/wire.cpp",
     "const std::uint64_t sharer = channel / kOwnChannels;", "const std::uint64_t sharer = 0;",
     "unit_test_mpi_wire"),
    ("mpi: the slots of an operation share a tag", "src/backends/mpi/wire.cpp",
     "* Wire::kSlots + slot);", "* Wire::kSlots + slot / 2);", "unit_test_mpi_wire"),
    ("mpi: a stage that MPI may still use is freed", "src/backends/mpi/wire.cpp",
     "  plugin_.abandon(&group_, piece->request);\n  keep_for_good(piece);",
     "  plugin_.abandon(&group_, piece->request);\n  delete piece;", "unit_test_mpi_wire"),
    ("mpi: MPI uses the memory of the caller", "src/backends/mpi/wire.cpp",
     "if (transfer.keeper != nullptr && !is_short(transfer)) {",
     "if (!is_short(transfer)) {\n    static const auto none = std::make_shared<std::byte[]>(1);\n"
     "    transfer.keeper = &none;", "unit_test_mpi_wire"),
    ("mpi: a dropped piece leaves the wire open", "src/backends/mpi/wire.cpp",
     "  if (piece == nullptr) return;\n  aborted_.store(true);\n", "  if (piece == nullptr) return;\n",
     "unit_test_mpi_wire"),
    ("mpi: a piece of another operation is a number", "src/backends/mpi/wire.cpp",
     "if (head.group == number_ && head.ticket != transfer.ticket) {", "if (false) {",
     "unit_test_mpi_wire"),
    ("mpi: an abort ends no wait", "src/backends/mpi/wire.cpp",
     "    if (aborted_.load()) return ended();\n    if (deadline", "    if (deadline",
     "unit_test_mpi_wire"),
    ("mpi: pieces overtake those that wait for MPI", "src/backends/mpi/wire.cpp",
     "lane.waiting.push_back(piece.get());", "lane.waiting.push_front(piece.get());",
     "unit_test_mpi_wire"),
    ("mpi: a thread that waits takes no calls", "src/backends/mpi/wire.cpp",
     "if (look_ != nullptr && looks % kLooks == kLooks - 1) {", "if (false) {",
     "unit_test_mpi_wire"),
    ("mpi: a long piece may be left behind in MPI", "src/backends/mpi/wire.cpp",
     "transfer.announced || !is_short(transfer)};", "transfer.announced};", "unit_test_mpi_wire"),
    ("wire: a sum is passed on unfinished", "src/backends/wire/ring.cpp",
     "last && !direct_ && copies() ? 2 : 1", "1", "unit_test_mpi_wire"),
    ("wire: a sum goes on before its place is free", "src/backends/wire/ring.cpp",
     "    TRIREME_RETURN_IF_ERROR(sends[part.number].wait(call.deadline));\n", "",
     "unit_test_mpi_wire"),
    ("wire: a rank rests though a call has come", "src/backends/tcp/exchange.cpp",
     "    if (taken_calls() != seen) return;\n", "", "unit_test_exchange"),
    ("wire: a line that breaks alone is told to nobody", "src/backends/frames/slot_frames.cpp",
     "fail_(engine_->loss_of(first));", "return;", "unit_test_faulty_network"),
    ("wire: a call of any length is taken", "src/backends/tcp/exchange_peer.cpp",
     "header.bytes > common_.most_call_bytes", "false", "unit_test_exchange"),
    ("wire: bytes that may wait leave at once", "src/backends/tcp/exchange_peer.cpp",
     "if (later && was_idle) return hold();", "if (later && was_idle) later = false;",
     "unit_test_exchange_calls"),
    ("wire: bytes that wait are forgotten", "src/backends/tcp/exchange_peer.cpp",
     "if (later || (!was_idle && !of_others)) return;",
     "if (later || !was_idle) return;", "unit_test_exchange_calls"),
    ("wire: who sends bytes of others does not wake them", "src/backends/tcp/exchange.cpp",
     "    to->refresh();\n  }\n  if (done) tell_done();\n}\n", "    to->refresh();\n  }\n}\n",
     "unit_test_exchange_calls"),
    ("wire: a chain runs ahead without end", "src/backends/wire/ring.cpp",
     "call.op.kind == OperationKind::broadcast ||", "false &&",
     "unit_test_hierarchical"),
    ("wire: a peer has any number of bytes kept", "src/backends/tcp/exchange_peer.cpp",
     "header.bytes > kMostEarlyBytes - early_bytes_", "false", "unit_test_exchange"),
    ("wire: the begin of a long part is lost", "src/backends/tcp/exchange_peer.cpp",
     "    incoming_.got -= whole;\n", "    incoming_.got = 0;\n", "unit_test_exchange_calls"),
    ("wire: a short piece goes to whoever asks next", "src/backends/tcp/exchange_peer.cpp",
     "return each->taker == nullptr && meet(transfer, each->piece.ticket, each->piece.slot);",
     "return each->taker == nullptr;", "unit_test_exchange"),
    ("wire: what came before its sender went is lost", "src/backends/tcp/exchange.cpp",
     "if (!ready.ok() && (failed_.load() || !from.has_early(transfer))) return ready;",
     "if (!ready.ok()) return ready;", "unit_test_exchange"),
    ("wire: a part of a piece that came before its sender went counts",
     "src/backends/tcp/exchange_peer.cpp",
     "return early != early_.end() && (*early)->piece.done.load();", "return early != early_.end();",
     "unit_test_exchange"),
    ("wire: of several ranks that are late one is blamed", "src/collectives/algorithm_run.cpp",
     "return late(section, waited);", "return waited;", "faults_test_slow"),
    ("wire: no rank warns of one that stalls in a gradient reduction",
     "src/collectives/algorithm_run.cpp",
     "      if (stall->due(now_ns())) warn(section, stall->waited_ns());\n    }\n",
     "      static_cast<void>(stall->due(now_ns()));\n    }\n",
     "faults_test_slow"),
    ("wire: a short piece of another length is taken", "src/backends/tcp/exchange_peer.cpp",
     "if ((*early)->piece.bytes != transfer.bytes) return corrupt(\"a piece of another length\");\n",
     "", "unit_test_exchange"),
    ("rounds: a rank that disagrees passes nothing on", "src/backends/tcp/exchange.cpp",
     "  if (to.has_ended()) return Status::success();  // see ended_ns()\n",
     "  if (to.has_ended() || failed_.load()) return Status::success();\n", "api_test_many_ranks"),
    ("wire: a message is used before it has come", "src/collectives/algorithm_run.cpp",
     "TRIREME_RETURN_IF_ERROR(wait(section, half->moving[i].transfer, &stall));", "",
     QUICK + "TRIREME_TESTS_NETWORK=1"),
    ("rounds: calls are not passed on", "src/backends/frames/slot_frames.cpp",
     "    fail_by_engine(rounds_->pass_on());\n", "", "api_test_many_ranks"),
    ("rounds: a rank listens only to those it sends to", "src/backends/tcp/exchange.cpp",
     "  TRIREME_RETURN_IF_ERROR(listen_to_all());\n", "", "unit_test_exchange"),
    ("rounds: every rank sends its call to all", "src/backends/frames/slot_frames.hpp",
     "return rounds_.has_value() && (always_in_rounds_ || engine_->is_on_one_host());",
     "return rounds_.has_value() && engine_->has_few_connections();", "api_test_many_ranks"),
    ("rounds: ranks of several hosts take as many steps as those of one",
     "src/backends/hierarchical/engine.cpp", "on_one_host_.store(hosts->count() == 1,",
     "on_one_host_.store(true,", "api_test_many_ranks"),
    ("rounds: the calls of other ranks go on one too few", "src/schedules/dissemination.hpp",
     "std::min(step, world_size - step)};", "std::min(step, world_size - step - 1)};",
     "unit_test_dissemination"),
    ("rounds: a rank that waits long tells nobody", "src/backends/frames/call_rounds.cpp",
     "  if (passing.told == passing.position) return Status::success();\n",
     "  return Status::success();\n", "api_test_many_ranks"),
    ("rounds: a rank that comes late does not tell those who wait long",
     "src/backends/frames/slot_frames.cpp",
     "rounds_->note_told(header.set, header.position);", "", "api_test_many_ranks"),
    ("rounds: a rank has left while its calls are on their way",
     "src/backends/frames/frame_link.cpp",
     "if (!slots_.has_all(leaver.rank, leaver.last) && !gives_up &&",
     "if (false && !gives_up &&", "api_test_many_ranks"),
    ("rounds: all calls of a message are taken for the first", "src/backends/frames/call_rounds.cpp",
     "while (end < round.count && are_alike(slot, slot_of(end))) ++end;", "end = round.count;",
     "api_test_many_ranks"),
    ("gloo: the code of a piece is not compared", "src/backends/tcp/exchange_peer.cpp",
     "!received_.fits(code, into->data + incoming_.arrived)) {", "false) {", FLIPS),
    ("gloo: a piece that nobody asked for is taken for another one",
     "src/backends/tcp/exchange_peer.cpp",
     "return transfer.ticket == ticket && transfer.slot == slot;", "return transfer.slot == slot;",
     "unit_test_exchange"),

    # groups with few connections
    ("large groups: a rank is near in one direction alone", "src/schedules/overlay.hpp",
     "((up & (up - 1)) == 0 || (down & (down - 1)) == 0)", "(up & (up - 1)) == 0",
     "unit_test_overlay"),
    ("large groups: a connection is made as often as it is needed", "src/backends/tcp/wanted.hpp",
     "if (std::exchange(known, true)) return;", "known = true;", "unit_test_wanted"),
    ("large groups: a far rank that has left is called for ever", "src/backends/tcp/mesh.cpp",
     "if (wanted->refusals >= kMostRefusals) {", "if (false) {", "api_test_few_connections"),
    ("large groups: silence ends before three signs are missing", "src/backends/tcp/signs.cpp",
     "limit_ns_(std::max(silence_ns, 3 * tick_ns_))", "limit_ns_(silence_ns)", "unit_test_signs"),
    ("large groups: a rank that hears of a death does not pass it on",
     "src/backends/frames/frame_link.cpp", "if (failed && !peer.said_failure) {",
     "if (failed && !peer.said_failure && !links_.are_few()) {", "faults_test_large_group"),
    ("large groups: a vote goes to the first leader alone", "src/backends/frames/consensus.cpp",
     "leader == me_ || leader == vote_sent_to_", "leader == me_ || vote_sent_to_ >= 0",
     "unit_test_consensus"),
    ("large groups: a rank that knows the choice does not tell it", "src/backends/join/answers.cpp",
     "(news || is_outcome(known_))", "news", "unit_test_answers"),
    ("large groups: the choice connects all ranks", "src/backends/join/choice.cpp",
     "Answers answers(options_.rank, options_.world_size, few_connections_);",
     "Answers answers(options_.rank, options_.world_size, false);", "api_test_choice"),
    ("large groups: each rank has a copy of all addresses at the meeting",
     "src/backends/tcp/directory.cpp", "guest.unsent.push_back(bytes);",
     "guest.unsent.push_back(std::make_shared<const std::vector<char>>(*bytes));",
     "unit_test_directory"),
    ("large groups: who loses the meeting waits for another one",
     "src/backends/tcp/directory.cpp", "  if (is_missed) {", "  if (false) {", "unit_test_directory"),
    ("large groups: ranks that are late are not asked", "src/backends/frames/consensus.cpp",
     "few_ ? members_.without(lost()) : members_).list()",
     "few_ ? members_.without(dropped()) : members_).list()",
     "api_test_survivors TRIREME_TESTS_NETWORK=1 TRIREME_TESTS_FEW_CONNECTIONS=1 "
     "TRIREME_TOKEN=a-token-for-tests-of-29-bytes"),
    ("large groups: a leader takes news for votes", "src/backends/frames/consensus.cpp",
     "    voted = RankSet();\n", "", "unit_test_consensus"),
    ("large groups: a vote waits for other news", "src/backends/frames/consensus.cpp",
     "  if (voted_.has(me_) && !told.voted.has(me_)) return true;\n", "", "unit_test_consensus"),
    ("large groups: who has voted is given up", "src/backends/frames/consensus.cpp",
     "!voted_.has(rank) || rank == leader", "true", "unit_test_consensus"),
    ("large groups: strangers take the room of ranks", "src/net/acceptor.hpp",
     "std::max(most_, kMostUnauthenticated + ranks)", "std::max(most_, ranks)",
     "unit_test_acceptor"),
    ("large groups: who waits for a line that cannot be made waits on",
     "src/backends/tcp/exchange_peer.cpp",
     "    if (line_.is_asked && lines.is_refused(rank_)) end(ECONNREFUSED);\n", "",
     "unit_test_exchange"),
    ("large groups: a set of ranks skips some beyond the first 64", "src/backends/rank_set.cpp",
     "    above = ~std::uint64_t{0};\n", "", "unit_test_lineage"),
    ("large groups: ranks whose votes look alike are blamed", "src/collectives/survivors.cpp",
     "if (is_sure) out.ranks.push_back(rank);", "out.ranks.push_back(rank);",
     "unit_test_confirmation"),
    ("large groups: a rank that cannot join has a column and no row",
     "src/collectives/survivors.cpp", "1ull << (kSide + rank / kSide)", "1ull << kSide",
     "api_test_survivors"),

    # the store
    ("store: what is repeated is done twice", "src/store/state.cpp",
     "  if (changes(request.operation) && answer_repeat(from, request, answers)) return;\n", "",
     "unit_test_store_state"),
    ("store: an exchange does not compare", "src/store/state.cpp",
     "if (!same) return reply;", "if (!same && !there) return reply;", "api_test_store"),
    ("store: one that was started anew is the same one", "src/store/server.cpp",
     "if (meant != 0 && meant != instance_) {", "if (false) {", "unit_test_store"),
    ("store: a newcomer may stay", "src/store/server.cpp",
     "if (now - oldest->second.since_ns < tcp::kUnauthenticatedNs) return;", "if (now > 0) return;",
     "unit_test_store_strangers"),
    ("store: a forked child gets one", "src/api/store.cpp",
     "  TRIREME_RETURN_IF_ERROR(api::detail::refuse_after_fork());\n", "", "api_test_store"),
    ("a shard forgets the passes before", "src/model/gradients/sink.cpp",
     "!in_place && pass > 0", "false", "unit_test_gradients"),
    ("tied gradients are added as they come", "src/model/gradients/intake.cpp",
     "if (place > merged_[number]) {", "if (false) {", "unit_test_gradients"),
    ("an overflow on the way is not noted", "src/model/gradients/encoding.cpp",
     "overflow.look(segment.parameter", "if (false) overflow.look(segment.parameter",
     "unit_test_gradients"),
    ("gradients are not marked before backward", "src/trainer/gaps.cpp",
     "kernels::mark_gap(memory, bytes, gap);", "", "api_test_unwritten"),
    ("a gradient that is missing is not looked for", "src/trainer/step.cpp",
     "if (computes()) look_for_gaps(layer);", "", "api_test_unwritten"),
    ("restored steps are forgotten", "src/optimizer/restore.cpp",
     "  steps_ = counters.steps;\n", "", "api_test_restore"),
    ("copies of restored state stay as they were", "src/optimizer/restore.cpp",
     "if (status.ok() && shard_.layout().spread.whole_state()) {",
     "if (false) {", "api_test_restore"),
    ("frozen parameters are not restored on all ranks", "src/model/give_updated.cpp",
     "if (!written && group.bucket == sharding::kNone) continue;",
     "if (group.bucket == sharding::kNone) continue;", "api_test_restore"),
    ("whole parameters are allocated for the ranks of a copy alone", "src/model/model.cpp",
     "return whole ? *link.communicator : link.holders();", "return link.holders();",
     "api_test_hybrid_processes"),
    ("a group without a weight decay has none", "src/api/optimizer_options.cpp",
     "decay != nullptr ? *decay : options.weight_decay", "decay != nullptr ? *decay : 0",
     "api_test_norm_groups"),
    ("a rule is taken from the struct of another", "src/api/optimizer_options.cpp",
     "if (options.kind != 0 && options.kind != given->kind) {", "if (false) {", "api_test_rules"),
    ("the learning rate is not compared with the copies", "src/optimizer/counters.cpp",
     '{"the learning rate", text_of(counters.learning_rate)},\n', "", "api_test_restore"),
    ("tensor: partial products are not added", "src/parallel/tensor/region.cpp",
     '{"reduce", Move::sum, Move::keep, false}', '{"reduce", Move::keep, Move::keep, false}',
     "api_test_tensor"),
    ("tensor: forward of a copy adds, too", "src/parallel/tensor/region.cpp",
     '{"copy", Move::keep, Move::sum, false}', '{"copy", Move::sum, Move::sum, false}',
     "api_test_tensor"),
    ("tensor: ranks hold blocks in the reverse order", "src/sharding/blocks.cpp",
     "return block_range(blocks, world_size, rank);",
     "return block_range(blocks, world_size, world_size - 1 - rank);", "unit_test_blocks"),
    ("tensor: sums are added one after the other", "src/sharding/blocks.cpp",
     "return node.first + std::bit_floor(node.width() - 1);", "return node.first + 1;",
     "api_test_tensor"),
    ("tensor: a gradient does not get its own part", "src/parallel/tensor/region.cpp",
     "split().take(rank_, parts[0], out);", "static_cast<void>(0);", "api_test_tensor"),
    ("tensor: an exchange sends rows as they lie", "src/parallel/tensor/region.cpp",
     "own.take(rank, part, scratch + own.before(rank) * whole_.size);",
     "kernels::copy(scratch + own.before(rank) * whole_.size, static_cast<const std::byte*>(part) +"
     " own.before(rank) * whole_.size, own.count(rank) * whole_.size);", "api_test_tensor"),
    ("tensor: regions are not compared", "src/parallel/tensor/region.cpp",
     "operation.agreement = hash | 1;", "operation.agreement = 1;", "api_test_tensor_refusals"),
    ("tensor: sums of 16 bits are rounded on their way", "src/parallel/tensor/tree_sum.cpp",
     "wire_(plan_.only_leaves ? dtype : sum_dtype(dtype))", "wire_(dtype)", "api_test_tensor"),
    ("tensor: later summands of a rank are forgotten", "src/parallel/tensor/tree_sum.cpp",
     "if (round + 1 < plan_.rounds) {", "if (round + 2 < plan_.rounds) {", "api_test_tensor"),
    ("tensor: units are cut like single columns", "src/parallel/tensor/tensor.hpp",
     "return {units.first * unit, units.count * unit};",
     "return units.count > 0 || unit > 0 ? range(extent, rank) : units;", "api_test_tensor"),
    ("tensor: units of ranks are not compared", "src/parallel/tensor/region.cpp",
     "options_.row_unit, options_.column_unit,", "", "api_test_tensor_refusals"),
    ("tensor: a region keeps its name until its last pass ends", "src/api/tensor.cpp",
     "found->drop_name();", "static_cast<void>(0);", "api_test_tensor_refusals"),
    ("tensor: names are cut in the middle of a letter", "src/parallel/tensor/region.cpp",
     "whole_characters(options_.name, room)", "room", "api_test_tensor_refusals"),
    ("tensor: a pass without memory leaves its peers waiting", "src/parallel/tensor/region.cpp",
     'tensor_->communicator().fail(TRIREME_ERROR_OUT_OF_MEMORY, "no memory left for a pass");', "",
     "faults_test_out_of_memory"),
    ("tensor: backward needs no forward", "src/parallel/tensor/region.cpp",
     "passes_[1] >= passes_[0]", "false", "api_test_tensor_refusals"),
    ("neighbours of a copy are next to each other on every mesh", "src/sharding/placement.cpp",
     "made.shard_stride_ = mesh_stride_;", "made.shard_stride_ = 1;", "unit_test_placement"),
    ("a parameter that is whole on an axis counts once a rank", "src/sharding/placement.cpp",
     "models *= size_of(axis);", "models *= 1;", "api_test_mesh_models"),
    ("models of a mesh clip by their own norms", "src/optimizer/optimizer.cpp",
     "norm_ranks = axes.all_ranks();", "norm_ranks = nullptr;", "api_test_mesh_models"),
    ("two models of a mesh meet by the order of their calls", "src/model/model_axes.cpp",
     "          all_.link->gathers};", "          0};", "api_test_mesh_models"),
    ("a seal that fails is told along its axes alone", "src/model/model_axes.cpp",
     '  if (all_.link->gathers != 0) status = agree_on_mesh(model, "seal", {}, own);\n', "",
     "api_test_mesh_failures"),
    ("an optimizer without memory is waited for by other models", "src/optimizer/optimizer.cpp",
     "if (std::uncaught_exceptions() > thrown_) {", "if (false) {",
     "faults_test_out_of_memory_training"),
    ("a model that cannot compare is waited for by other models", "src/model/model_axes.cpp",
     "    Status status = compare_along(line, registry, sums, summed);\n",
     "    if (!summed.ok()) break;\n"
     "    Status status = compare_along(line, registry, sums, summed);\n",
     "api_test_mesh_failures"),
    ("copies along an axis count by sum alone", "src/model/model_axes.cpp",
     "(element + 1) * 0x9e3779b97f4a7c15 ^ bits;", "bits;", "api_test_mesh_models"),
    ("rows of a part are numbered by its own columns", "src/kernels/random.cpp",
     "(part.first_row + row) * part.all_columns", "(part.first_row + row) * part.columns",
     "api_test_random"),
    ("2^64 elements are none", "src/api/random.cpp",
     "if (__builtin_mul_overflow(options.rows, options.columns, bytes) ||",
     "*bytes = options.rows * options.columns;\n  if (", "api_test_random"),
    ("dropout multiplies by the rate as it is given", "src/kernels/random.cpp",
     "0x1p32 / (0x1p32 - limit)", "1 / (1 - rate)", "api_test_random"),
    ("dropout draws the words of uniform values", "src/kernels/random.cpp",
     "words.draw(part, kDropout,", "words.draw(part, kUniform,", "api_test_random"),
    ("a key of the generator stays as it is", "src/kernels/loops_random.inc",
     "high += 0xbb67ae85;", "", "unit_test_random"),
    ("a dropped element is multiplied by 0", "src/kernels/loops_random.inc",
     "words[i] < limit ? typename Type::Stored{} : kept;",
     "words[i] < limit ? Type::store(Type::load(from[i].value) * 0) : kept;", "api_test_random"),
    ("equal products are compared at the same addresses", "src/parallel/tensor/gemm_trial.cpp",
     "apart : {1, 3, 0}", "apart : {0}", "unit_test_gemm"),
    ("wrong products of a loaded BLAS pass", "src/parallel/tensor/gemm_trial.cpp",
     "if (tries.back().is_right(results.back())) continue;", "continue;", "unit_test_gemm"),
    ("parts of a long sum replace each other", "src/parallel/tensor/loaded_gemm.cpp",
     "call.add || k > 0 ? T(1) : T(0)", "call.add ? T(1) : T(0)", "unit_test_gemm"),
    ("a BLAS keeps the threads that others set", "src/parallel/tensor/loaded_gemm.cpp",
     "    functions_.set_threads(info_.threads);\n", "", "unit_test_gemm"),
    ("two numbers of threads of one BLAS are taken", "src/parallel/tensor/loaded_gemm.cpp",
     "} else if (shared.threads != threads) {", "} else if (false) {", "unit_test_gemm"),
    ("a refused BLAS keeps the number of threads", "src/parallel/tensor/loaded_gemm.cpp",
     "if (!opened_) functions_.set_threads(at->second.before);", "", "unit_test_gemm"),
    ("the search for a BLAS ends at the first that is refused",
     "src/parallel/tensor/loaded_gemm.cpp",
     "    tried += \"; tried \"", "    return opened;\n    tried += \"; tried \"",
     "unit_test_gemm"),
    ("64-bit numbers of BLIS go unnoticed", "src/parallel/tensor/loaded_gemm.cpp",
     "bits() != 32;", "false;", "unit_test_gemm"),
    ("64-bit numbers of a BLAS go unnoticed", "src/parallel/tensor/loaded_gemm.cpp",
     'info->version.find("USE64BITINT") != std::string::npos', "false", "unit_test_gemm"),
    ("a product adds nothing to what was there", "src/parallel/tensor/gemm.cpp",
     "product.added = call.add ? call.result : nullptr;", "product.added = nullptr;",
     "unit_test_gemm"),
    ("the optimizer's state is not compared", "src/model/replicas.cpp",
     "std::vector<std::int32_t> blamed = blamed_for(parameters + i);\n    if (blamed.empty())",
     "std::vector<std::int32_t> blamed = blamed_for(parameters + i);\n    if (true)",
     "api_test_restore"),
    ("hierarchical: a reduction to one rank begins with the root", "src/backends/wire/ring.cpp",
     "at(me_ - op.root - 1)", "at(me_ - op.root)", "unit_test_hierarchical"),
    ("hierarchical: a reduction goes by hosts at any size", "src/backends/hierarchical/engine.cpp",
     "return 128 * kKiB;", "return 0;", "api_test_hierarchical"),
    ("tuning: a rule begins behind its bytes", "src/schedules/tuning.cpp",
     "rule.from <= bytes", "rule.from < bytes", "unit_test_tuning"),
    ("tuning: rules may go downwards", "src/schedules/tuning.cpp",
     "before.pattern == rule.pattern && before.from >= rule.from", "false", "unit_test_tuning"),
    ("tuning: one lucky round is worth a rule", "src/schedules/tuning.cpp",
     "faster * 4 < rounds * 3", "faster == 0", "unit_test_tuning"),
    ("tuning: rules of other groups count", "src/schedules/tuning.cpp",
     "if (group.ranks == ranks && group.backend == backend) return &group;",
     "if (group.ranks == ranks) return &group;", "api_test_tuning"),
    ("tuning: ranks do not tell their tables", "src/collectives/channel.cpp",
     "own.agreement = tuning.digest();", "", "api_test_tuning"),
    ("tuning: small operations take no rules", "src/collectives/channel.cpp",
     "tuning.leaves(operation, records_.world_size)", "true", "api_test_tuning"),
    ("tuning: an algorithm by name loses", "src/collectives/tuning.cpp",
     "rules == nullptr || operation.algorithm != 0 ||", "rules == nullptr ||", "api_test_tuning"),
    ("tuning: models take rules for their sums", "src/collectives/tuning.cpp",
     "operation.model != 0 && keeps", "false", "api_test_tuning"),
    ("tuning: a way that the backend lacks is taken", "src/collectives/tuning.cpp",
     "chosen == Algorithm::native && !backend.has_native(operation)", "false", "api_test_tuning"),
    ("tuning: children have no table", "src/collectives/communicator.cpp",
     "    GroupOptions own = options_;\n", "    GroupOptions own = options_;\n    own.tuning = nullptr;\n",
     "api_test_tuning"),
    ("tuning: rules hold beyond what was measured", "src/schedules/tuning.cpp",
     "if (last && has_more &&", "if (last && has_more && false &&", "unit_test_tuning"),
    ("tuning: a table is blamed for another call", "src/backends/fingerprint.cpp",
     "if (name == kTuningTables) name.clear();", "", "unit_test_tuning"),
    ("tuning: a long table is cut", "src/collectives/tuning.cpp",
     "TuningTable::kMostBytes + 1", "TuningTable::kMostBytes", "api_test_tuning"),
]


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, **options)


def files_below(folder):
    ignored = {"build", ".git", "__pycache__", "target", "bin", "obj"}
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in ignored]
        yield from (pathlib.Path(path, name).relative_to(folder) for name in files)


def copy_tree():
    """Writes only what differs: a file that had the last defect of an earlier run is younger than
    what was built from it, and must stay so."""
    wanted = set(files_below(ROOT))
    for file in set(files_below(COPY)) - wanted:
        (COPY / file).unlink()
    for file in wanted:
        there = COPY / file
        if there.is_file() and filecmp.cmp(ROOT / file, there, shallow=False):
            continue
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, there)
        shutil.copymode(ROOT / file, there)


def build(tests):
    programs = {test.split()[0] for test in tests if not test.startswith(DOTNET)}
    if any(test.startswith(DOTNET) for test in tests):
        script = COPY / "bindings" / "dotnet" / "build.sh"
        if run(["bash", script, BUILD / "dotnet"]).returncode != 0:
            return False
    return run(["cmake", "--build", BUILD, "--target", "trireme", *programs]).returncode == 0


def caught(test):
    # As every day: the long sweeps would come to the end of their time, with a defect or without.
    usual = {name: value for name, value in os.environ.items() if name != "TRIREME_TEST_LONG"}
    program, *more = test.split()
    if test.startswith(DOTNET):
        command = ["mono", "--debug", BUILD / "dotnet" / "Trireme.Tests.exe", *more]
        usual["LD_LIBRARY_PATH"] = str(BUILD)
        usual["TRIREME_LIBRARY"] = str(BUILD / "libtrireme.so.1")
        usual["TRIREME_SOURCE"] = str(COPY)
    else:
        command = [BUILD / "tests" / program]
        usual.update(word.split("=", 1) for word in more)
    try:
        return run(command, timeout=SECONDS, env=usual).returncode != 0
    except subprocess.TimeoutExpired:
        return True


def places(text, old):
    """Where `old` stands in a source, however the lines of both are broken."""
    words = re.findall(r"\w+|[^\w\s]", old)
    return list(re.finditer(r"\s*".join(re.escape(word) for word in words), text))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="print the defects, build nothing")
    parser.add_argument("parts", nargs="*", metavar="NAME-PART", help="part of a defect's name")
    asked = parser.parse_args()
    chosen = [d for d in DEFECTS if not asked.parts or any(a in d[0] for a in asked.parts)]
    if not chosen:
        parser.error(f"no defect's name holds {' or '.join(asked.parts)}")
    if asked.list:
        print("\n".join(f"{name}, by {test}" for name, _, _, _, test in chosen))
        return 0
    copy_tree()
    command = ["cmake", "--preset", "release", "-B", BUILD]
    if shutil.which("ccache"):
        command += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")]
    if run(command, cwd=COPY).returncode != 0:
        print("the tree cannot be configured\n0 passed, 1 failed, 0 skipped")
        return 1
    skipped = 0
    if not (shutil.which("mcs") and shutil.which("mono")):
        there = [defect for defect in chosen if not defect[4].startswith(DOTNET)]
        skipped = len(chosen) - len(there)
        chosen = there
        print("skipped: defects of the C# binding: Mono is missing")
    if run(["cmake", "--build", BUILD, "--target", "trireme_gloo"]).returncode != 0:
        there = [defect for defect in chosen if defect[4] not in (OVER_GLOO, FLIPS)]
        skipped += len(chosen) - len(there)
        chosen = there
        print("skipped: defects that are seen over Gloo: it is not installed")
    tests = sorted({defect[4] for defect in chosen})
    if not build(tests):
        print("the tree does not build\n0 passed, 1 failed, 0 skipped")
        return 1
    # A test that fails anyway, or is skipped here, catches nothing.
    sound = {test for test in tests if not caught(test)}
    for test in tests:
        if test not in sound:
            print(f"FAILED: {test} does not pass without a defect")
    passed = 0
    for name, file, old, new, test in chosen:
        path = COPY / file
        text = path.read_text()
        found = places(text, old)
        if len(found) != 1:
            print(f"FAILED  {name}: its place in {file} is found {len(found)} times")
            continue
        path.write_text(text[: found[0].start()] + new + text[found[0].end() :])
        if not build([test]):
            print(f"FAILED  {name}: does not build")
        elif test in sound and caught(test):
            passed += 1
            print(f"caught: {name}, by {test}")
        else:
            print(f"FAILED  {name}: {test} tells nothing of it")
        sys.stdout.flush()
        path.write_text(text)
    print(f"{passed} passed, {len(chosen) - passed} failed, {skipped} skipped")
    return 0 if passed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
