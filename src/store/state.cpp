#include "store/state.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "platform/utf8.hpp"

namespace trireme::cluster {
namespace {

std::string quoted(std::string_view key) {
  constexpr std::size_t kMost = 80;
  const std::size_t part = whole_characters(key, kMost);
  return std::string("\"").append(clean_text(key.substr(0, part))) +
         (part < key.size() ? "...\"" : "\"");
}

StoreReply refusal(const Status& status) { return {status.code(), 0, {}, status.message()}; }

bool read_number(std::string_view text, std::int64_t* out) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && stop == text.data() + text.size();
}

Status check_key(std::string_view key) {
  if (key.empty()) return invalid_argument("a key is empty");
  if (key.size() > kMaxStoreKey) {
    return invalid_argument("key " + quoted(key) + " has " + std::to_string(key.size()) +
                            " bytes, above " + std::to_string(kMaxStoreKey));
  }
  return Status::success();
}

}  // namespace

bool changes(StoreOperation operation) {
  return operation != StoreOperation::get && operation != StoreOperation::wait;
}

Status check_store_request(const StoreRequest& request) {
  if (request.operation != StoreOperation::wait) {
    TRIREME_RETURN_IF_ERROR(check_key(request.key));
    const std::size_t most =
        std::max(request.value.size(), request.expected ? request.expected->size() : 0);
    if (most <= kMaxStoreValue) return Status::success();
    return invalid_argument("a value for key " + quoted(request.key) + " has " +
                            std::to_string(most) + " bytes, above " +
                            std::to_string(kMaxStoreValue));
  }
  std::size_t bytes = 0;
  for (const std::string& each : request.keys) {
    TRIREME_RETURN_IF_ERROR(check_key(each));
    bytes += each.size();
  }
  if (request.keys.size() > kMaxWaitKeys || bytes > kMaxWaitBytes) {
    return invalid_argument("a wait for " + std::to_string(request.keys.size()) + " keys of " +
                            std::to_string(bytes) + " bytes, above " +
                            std::to_string(kMaxWaitKeys) + " keys or " +
                            std::to_string(kMaxWaitBytes) + " bytes");
  }
  return Status::success();
}

void StoreState::take(Client from, const StoreRequest& request, std::uint64_t now_ns,
                      std::vector<Answer>* answers) {
  if (const Status status = check_store_request(request); !status.ok()) {
    answers->push_back({from, refusal(status)});
    return;
  }
  if (request.operation == StoreOperation::wait) {
    start_wait(from, request, now_ns, answers);
    return;
  }
  if (changes(request.operation) && answer_repeat(from, request, answers)) return;
  // First the caller, then the waiters whose wait it ends.
  const std::size_t place = answers->size();
  answers->push_back({from, {}});
  StoreReply reply = change(request, answers);
  if (changes(request.operation)) remember(request, reply);
  (*answers)[place].reply = std::move(reply);
}

bool StoreState::answer_repeat(Client from, const StoreRequest& request,
                               std::vector<Answer>* answers) const {
  const auto known = remembered_.find(request.lane);
  if (known == remembered_.end() || request.number > known->second.number) return false;
  StoreReply reply = known->second.reply;
  if (request.number < known->second.number) {
    // It waited in a connection that its client has given up since.
    reply = refusal(invalid_state("a request that was repeated, and answered, long ago"));
  }
  answers->push_back({from, std::move(reply)});
  return true;
}

StoreReply StoreState::change(const StoreRequest& request, std::vector<Answer>* answers) {
  StoreReply reply;
  const auto entry = values_.find(request.key);
  const bool there = entry != values_.end();
  switch (request.operation) {
    case StoreOperation::get:
      if (there) reply.value = entry->second;
      return reply;
    case StoreOperation::set:
      if (Status status = put(request.key, request.value, answers); !status.ok()) {
        return refusal(status);
      }
      return reply;
    case StoreOperation::remove:
      reply.number = there ? 1 : 0;
      if (there) remove(entry);
      return reply;
    case StoreOperation::compare_exchange: {
      const bool same = there ? request.expected == entry->second : !request.expected;
      if (!same) return reply;
      if (Status status = put(request.key, request.value, answers); !status.ok()) {
        return refusal(status);
      }
      reply.number = 1;
      return reply;
    }
    case StoreOperation::add: {
      std::int64_t sum = 0;
      if (there && !read_number(entry->second, &sum)) {
        return refusal(invalid_state("the value of key " + quoted(request.key) +
                                     " is no number, so nothing can be added to it"));
      }
      if (__builtin_add_overflow(sum, request.amount, &sum)) {
        return refusal(invalid_state("the sum in key " + quoted(request.key) +
                                     " would leave the numbers of 64 bits"));
      }
      if (Status status = put(request.key, std::to_string(sum), answers); !status.ok()) {
        return refusal(status);
      }
      reply.number = sum;
      return reply;
    }
    case StoreOperation::wait: break;
  }
  return refusal(Status::failure(TRIREME_ERROR_CORRUPT, "an operation that no store has"));
}

Status StoreState::put(const std::string& key, std::string value, std::vector<Answer>* answers) {
  const auto entry = values_.find(key);
  const bool fresh = entry == values_.end();
  const std::size_t before = fresh ? 0 : key.size() + entry->second.size();
  const std::size_t after = key.size() + value.size();
  if (bytes_ - before + after > kMaxStoreBytes || (fresh && values_.size() >= kMaxStoreKeys)) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                           "the store is full: it holds " + std::to_string(values_.size()) +
                               " keys and " + std::to_string(bytes_) + " bytes, of " +
                               std::to_string(kMaxStoreKeys) + " and " +
                               std::to_string(kMaxStoreBytes));
  }
  if (fresh) {
    values_.emplace(key, std::move(value));
  } else {
    entry->second = std::move(value);
  }
  bytes_ = bytes_ - before + after;
  if (fresh) appeared(key, answers);
  return Status::success();
}

void StoreState::remove(std::map<std::string, std::string, std::less<>>::iterator entry) {
  bytes_ -= entry->first.size() + entry->second.size();
  values_.erase(entry);
}

void StoreState::remember(const StoreRequest& request, const StoreReply& reply) {
  const auto [entry, fresh] = remembered_.try_emplace(request.lane);
  if (fresh) {
    entry->second.place = lanes_.insert(lanes_.end(), request.lane);
  } else {
    lanes_.splice(lanes_.end(), lanes_, entry->second.place);
  }
  entry->second.number = request.number;
  entry->second.reply = reply;
  if (remembered_.size() > kMaxRememberedLanes) {
    remembered_.erase(lanes_.front());
    lanes_.pop_front();
  }
}

std::size_t StoreState::first_missing(const std::vector<std::string>& keys) const {
  const auto absent = [&](const std::string& key) { return !values_.contains(key); };
  return static_cast<std::size_t>(std::find_if(keys.begin(), keys.end(), absent) - keys.begin());
}

void StoreState::start_wait(Client from, const StoreRequest& request, std::uint64_t now_ns,
                            std::vector<Answer>* answers) {
  const std::size_t missing = first_missing(request.keys);
  if (missing == request.keys.size()) {
    answers->push_back({from, {}});
    return;
  }
  forget(from);
  const std::uint64_t moment =
      request.timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + request.timeout_ns;
  const auto deadline = by_deadline_.emplace(moment, from);
  by_key_.emplace(request.keys[missing], from);
  waiters_.emplace(from, Waiter{request.keys, missing, deadline});
  if (request.timeout_ns == 0) time_passed(now_ns, answers);
}

void StoreState::appeared(const std::string& key, std::vector<Answer>* answers) {
  const auto [begin, end] = by_key_.equal_range(key);
  std::vector<Client> concerned;
  for (auto it = begin; it != end; ++it) concerned.push_back(it->second);
  by_key_.erase(begin, end);
  for (const Client client : concerned) {
    Waiter& waiter = waiters_.at(client);
    waiter.missing = first_missing(waiter.keys);
    if (waiter.missing < waiter.keys.size()) {
      by_key_.emplace(waiter.keys[waiter.missing], client);
      continue;
    }
    by_deadline_.erase(waiter.deadline);
    waiters_.erase(client);
    answers->push_back({client, {}});
  }
}

void StoreState::forget(Client client) {
  const auto waiter = waiters_.find(client);
  if (waiter == waiters_.end()) return;
  const auto [begin, end] = by_key_.equal_range(waiter->second.keys[waiter->second.missing]);
  by_key_.erase(
      std::find_if(begin, end, [&](const auto& entry) { return entry.second == client; }));
  by_deadline_.erase(waiter->second.deadline);
  waiters_.erase(waiter);
}

void StoreState::time_passed(std::uint64_t now_ns, std::vector<Answer>* answers) {
  while (!by_deadline_.empty() && by_deadline_.begin()->first <= now_ns) {
    const Client client = by_deadline_.begin()->second;
    const Waiter& waiter = waiters_.at(client);
    const auto there = static_cast<std::size_t>(
        std::count_if(waiter.keys.begin(), waiter.keys.end(),
                      [&](const std::string& key) { return values_.contains(key); }));
    StoreReply reply{TRIREME_ERROR_TIMEOUT, 0, {}, {}};
    reply.message = "key " + quoted(waiter.keys[waiter.missing]) + " is not there";
    if (waiter.keys.size() > 1) {
      reply.message +=
          "; " + std::to_string(there) + " of " + std::to_string(waiter.keys.size()) + " keys are";
    }
    forget(client);
    answers->push_back({client, std::move(reply)});
  }
}

std::optional<std::uint64_t> StoreState::next_moment_ns() const {
  if (by_deadline_.empty()) return std::nullopt;
  return by_deadline_.begin()->first;
}

}  // namespace trireme::cluster
