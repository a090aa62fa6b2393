// The store's state: hundreds of clients in random order against a plain map, with waits, repeated
// requests and refusals.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "store/state.hpp"

extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using namespace trireme::cluster;
using Answers = std::vector<StoreState::Answer>;

Lane lane_of(std::uint64_t client) {
  Lane lane{};
  for (std::size_t i = 0; i < 8; ++i) lane[i] = static_cast<std::uint8_t>(client >> (8 * i));
  return lane;
}

// Requests of one client, numbered as they come.
struct Maker {
  std::uint64_t client;
  std::uint64_t number = 0;

  StoreRequest make(StoreOperation operation, std::string key, std::string value = "") {
    StoreRequest request;
    request.operation = operation;
    request.lane = lane_of(client);
    request.number = ++number;
    request.key = std::move(key);
    request.value = std::move(value);
    return request;
  }
  StoreRequest add(std::string key, std::int64_t amount) {
    StoreRequest request = make(StoreOperation::add, std::move(key));
    request.amount = amount;
    return request;
  }
  StoreRequest exchange(std::string key, std::optional<std::string> expected, std::string value) {
    StoreRequest request = make(StoreOperation::compare_exchange, std::move(key), std::move(value));
    request.expected = std::move(expected);
    return request;
  }
  StoreRequest wait(std::vector<std::string> keys, std::uint64_t timeout_ns) {
    StoreRequest request = make(StoreOperation::wait, "");
    request.keys = std::move(keys);
    request.timeout_ns = timeout_ns;
    return request;
  }
};

StoreReply ask(StoreState& state, std::uint64_t client, const StoreRequest& request,
               std::uint64_t now = 0) {
  Answers answers;
  state.take(client, request, now, &answers);
  assert_false(answers.empty());
  assert_int_equal(answers[0].to, client);
  return answers[0].reply;
}

// The model's record of a wait.
struct Wait {
  std::vector<std::string> keys;
  std::uint64_t moment;
};

void hundreds_of_clients_see_what_a_plain_map_says(void**) {
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u}) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned n) { return static_cast<unsigned>(random() % n); };
    constexpr unsigned kClients = 300;
    StoreState state;
    std::vector<Maker> makers;
    for (unsigned i = 0; i < kClients; ++i) makers.push_back({i});
    std::map<std::string, std::string> model;
    std::map<std::uint64_t, Wait> waits;
    std::uint64_t now = 1000;
    const auto key = [&] { return std::string("k").append(std::to_string(below(40))); };
    const auto all_there = [&](const std::vector<std::string>& keys) {
      for (const std::string& each : keys) {
        if (!model.contains(each)) return false;
      }
      return true;
    };
    for (int turn = 0; turn < 20'000; ++turn) {
      const std::uint64_t client = below(kClients);
      Answers answers;
      std::map<std::uint64_t, trireme_status> expected;  // whose wait ends, and how
      if (below(50) == 0) {
        now += below(200);
        for (const auto& [who, wait] : waits) {
          if (wait.moment <= now) expected[who] = TRIREME_ERROR_TIMEOUT;
        }
        state.time_passed(now, &answers);
      } else if (waits.contains(client)) {
        if (below(4) != 0) continue;
        state.forget(client);
        waits.erase(client);
      } else {
        Maker& maker = makers[client];
        StoreRequest request;
        StoreReply want;
        const std::string name = key();
        const auto entry = model.find(name);
        const bool there = entry != model.end();
        bool own = true;
        switch (below(6)) {
          case 0: {
            request = maker.make(StoreOperation::set, name, std::to_string(below(100)));
            model[name] = request.value;
            break;
          }
          case 1: {
            request = maker.make(StoreOperation::get, name);
            if (there) want.value = entry->second;
            break;
          }
          case 2: {
            request = maker.make(StoreOperation::remove, name);
            want.number = there;
            model.erase(name);
            break;
          }
          case 3: {
            request = maker.add(name, static_cast<int>(below(200)) - 100);
            want.number = (there ? std::stoll(entry->second) : 0) + request.amount;
            model[name] = std::to_string(want.number);
            break;
          }
          case 4: {
            const std::string guess = std::to_string(below(100));
            const bool absent = below(2) == 0;
            request = maker.exchange(name, absent ? std::nullopt : std::optional(guess), "7");
            if (absent ? !there : there && entry->second == guess) {
              want.number = 1;
              model[name] = "7";
            }
            break;
          }
          default: {
            std::vector<std::string> keys;
            for (unsigned i = below(4) + 1; i > 0; --i) keys.push_back(key());
            const std::uint64_t timeout = below(3) == 0 ? 0 : below(500);
            request = maker.wait(keys, timeout);
            own = all_there(keys);
            if (!own && timeout == 0) expected[client] = TRIREME_ERROR_TIMEOUT;
            if (!own && timeout > 0) waits[client] = {keys, now + timeout};
          }
        }
        const std::uint64_t again = below(5) == 0 && own ? 2 : 1;  // now and then it comes twice
        for (std::uint64_t i = 0; i < again; ++i) {
          Answers these;
          state.take(client, request, now, &these);
          if (!own) {
            answers = these;
            break;
          }
          assert_false(these.empty());
          assert_int_equal(these[0].to, client);
          assert_int_equal(these[0].reply.code, TRIREME_OK);
          assert_int_equal(these[0].reply.number, want.number);
          assert_true(these[0].reply.value == want.value);
          answers.insert(answers.end(), these.begin() + 1, these.end());
        }
        for (const auto& [who, wait] : waits) {
          if (who != client && all_there(wait.keys)) expected[who] = TRIREME_OK;
        }
      }
      assert_int_equal(answers.size(), expected.size());
      for (const StoreState::Answer& each : answers) {
        assert_true(expected.contains(each.to));
        assert_int_equal(each.reply.code, expected[each.to]);
        waits.erase(each.to);
        expected.erase(each.to);
      }
      assert_int_equal(state.waiting(), waits.size());
      assert_int_equal(state.keys(), model.size());
      std::size_t bytes = 0;
      for (const auto& [name, value] : model) bytes += name.size() + value.size();
      assert_int_equal(state.bytes(), bytes);
      std::optional<std::uint64_t> next;
      for (const auto& [who, wait] : waits) next = std::min(next.value_or(UINT64_MAX), wait.moment);
      assert_true(state.next_moment_ns() == next);
    }
  }
}

void a_repeat_is_done_once_and_an_old_one_never(void**) {
  StoreState state;
  Maker maker{1};
  const StoreRequest first = maker.add("n", 5);
  assert_int_equal(ask(state, 1, first).number, 5);
  assert_int_equal(ask(state, 9, first).number, 5);  // on another connection
  const StoreRequest second = maker.exchange("n", "5", "6");
  assert_int_equal(ask(state, 1, second).number, 1);
  assert_int_equal(ask(state, 1, second).number, 1);
  assert_int_equal(ask(state, 1, first).code, TRIREME_ERROR_INVALID_STATE);
  assert_string_equal(ask(state, 1, maker.make(StoreOperation::get, "n")).value->c_str(), "6");

  // One that failed has failed for good, too: its client may have heard of it.
  const StoreRequest failed = maker.exchange("n", "5", "8");
  assert_int_equal(ask(state, 1, failed).number, 0);
  Maker other{2};
  assert_int_equal(ask(state, 2, other.make(StoreOperation::set, "n", "5")).code, TRIREME_OK);
  assert_int_equal(ask(state, 1, failed).number, 0);
  const StoreRequest removal = maker.make(StoreOperation::remove, "n");
  assert_int_equal(ask(state, 1, removal).number, 1);
  assert_int_equal(ask(state, 1, removal).number, 1);
}

void a_timeout_names_what_is_missing(void**) {
  StoreState state;
  Maker maker{1}, other{2};
  ask(state, 2, other.make(StoreOperation::set, "a", ""));
  Answers answers;
  state.take(1, maker.wait({"a", "b\n", "c"}, 100), 50, &answers);
  assert_true(answers.empty());
  assert_int_equal(*state.next_moment_ns(), 150);
  state.time_passed(149, &answers);
  assert_true(answers.empty());
  state.time_passed(150, &answers);
  assert_int_equal(answers.size(), 1);
  assert_int_equal(answers[0].reply.code, TRIREME_ERROR_TIMEOUT);
  assert_string_equal(answers[0].reply.message.c_str(), "key \"b?\" is not there; 1 of 3 keys are");
  assert_int_equal(state.waiting(), 0);
  // A wait without end does not overflow the clock.
  answers.clear();
  state.take(1, maker.wait({"c"}, UINT64_MAX), 50, &answers);
  assert_int_equal(*state.next_moment_ns(), UINT64_MAX);
}

void what_is_too_large_or_no_number_is_refused_and_changes_nothing(void**) {
  StoreState state;
  Maker maker{1};
  const auto code = [&](const StoreRequest& request) { return ask(state, 1, request).code; };
  assert_int_equal(code(maker.make(StoreOperation::set, "")), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(code(maker.make(StoreOperation::set, std::string(kMaxStoreKey + 1, 'k'))),
                   TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(code(maker.make(StoreOperation::set, "k", std::string(kMaxStoreValue + 1, 'v'))),
                   TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(code(maker.exchange("k", std::string(kMaxStoreValue + 1, 'v'), "")),
                   TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(code(maker.wait({"a", ""}, 0)), TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(code(maker.wait(std::vector<std::string>(kMaxWaitKeys + 1, "k"), 0)),
                   TRIREME_ERROR_INVALID_ARGUMENT);
  assert_int_equal(state.keys(), 0);
  for (const char* const text : {"", " 1", "1 ", "0x1", "9223372036854775808", "one", "1.0"}) {
    assert_int_equal(code(maker.make(StoreOperation::set, "k", text)), TRIREME_OK);
    assert_int_equal(code(maker.add("k", 1)), TRIREME_ERROR_INVALID_STATE);
    assert_string_equal(ask(state, 1, maker.make(StoreOperation::get, "k")).value->c_str(), text);
  }
  assert_int_equal(code(maker.make(StoreOperation::set, "k", "9223372036854775807")), TRIREME_OK);
  assert_int_equal(code(maker.add("k", 1)), TRIREME_ERROR_INVALID_STATE);
  assert_int_equal(ask(state, 1, maker.add("k", INT64_MIN)).number, -1);
}

void a_full_store_says_so_and_has_room_again(void**) {
  StoreState state;
  Maker maker{1};
  const std::string large(kMaxStoreValue, 'v');
  int stored = 0;
  while (
      ask(state, 1,
          maker.make(StoreOperation::set, std::string("k").append(std::to_string(stored)), large))
          .code == TRIREME_OK) {
    ++stored;
  }
  assert_int_equal(stored, kMaxStoreBytes / kMaxStoreValue - 1);  // the keys need room, too
  const std::size_t bytes = state.bytes();
  assert_int_equal(ask(state, 1, maker.make(StoreOperation::set, "x", large)).code,
                   TRIREME_ERROR_OUT_OF_MEMORY);
  assert_int_equal(state.bytes(), bytes);
  assert_int_equal(ask(state, 1, maker.make(StoreOperation::remove, "k0")).number, 1);
  assert_int_equal(ask(state, 1, maker.make(StoreOperation::set, "x", large)).code, TRIREME_OK);
}

void lanes_that_are_remembered_are_bounded(void**) {
  StoreState state;
  for (std::uint64_t client = 0; client <= kMaxRememberedLanes; ++client) {
    Maker maker{client};
    ask(state, client, maker.add("n", 1));
  }
  // The first is forgotten, the second is not.
  Maker second{1}, first{0};
  assert_int_equal(ask(state, 1, second.add("n", 1)).number, 2);
  assert_int_equal(ask(state, 0, first.add("n", 1)).number, kMaxRememberedLanes + 2);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(hundreds_of_clients_see_what_a_plain_map_says),
      cmocka_unit_test(a_repeat_is_done_once_and_an_old_one_never),
      cmocka_unit_test(a_timeout_names_what_is_missing),
      cmocka_unit_test(what_is_too_large_or_no_number_is_refused_and_changes_nothing),
      cmocka_unit_test(a_full_store_says_so_and_has_room_again),
      cmocka_unit_test(lanes_that_are_remembered_are_bounded),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
