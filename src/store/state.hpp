// Store state: what the job's store holds and who waits for what. Pure: requests and moments go in,
// answers come out; no socket, no file, no clock. Each client has one request at a time under way,
// and one that changes something is done once even if it comes again.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/status.hpp"

namespace trireme::cluster {

constexpr std::size_t kMaxStoreKey = 1024;
constexpr std::size_t kMaxStoreValue = 1 << 20;
constexpr std::size_t kMaxStoreKeys = 1 << 16;     // of a store
constexpr std::size_t kMaxStoreBytes = 64u << 20;  // of all keys and values together
constexpr std::size_t kMaxWaitKeys = 4096;         // of one wait
constexpr std::size_t kMaxWaitBytes = 256 << 10;   // of the keys of one wait
constexpr std::size_t kMaxRememberedLanes = 1 << 16;

// By which a request that is repeated on another connection is known again.
using Lane = std::array<std::uint8_t, 16>;

enum class StoreOperation : std::uint8_t { set = 1, get, wait, add, compare_exchange, remove };

bool changes(StoreOperation operation);  // or only looks

struct StoreRequest {
  StoreOperation operation{};
  Lane lane{};
  std::uint64_t number = 0;             // of the lane, ascending; a repeat has the same
  std::string key;                      // not of a wait
  std::optional<std::string> expected;  // compare_exchange; none: the key must be absent
  std::string value;                    // set; what compare_exchange puts there
  std::int64_t amount = 0;              // add
  std::vector<std::string> keys;        // wait
  std::uint64_t timeout_ns = 0;         // wait; 0 looks once
};

struct StoreReply {
  trireme_status code = TRIREME_OK;
  std::int64_t number = 0;           // add: the sum; compare_exchange, remove: 1 if it was done
  std::optional<std::string> value;  // get: what is there, or none
  std::string message;               // of a failure
};

class StoreState {
 public:
  using Client = std::uint64_t;  // as the caller numbers them
  struct Answer {
    Client to;
    StoreReply reply;
  };

  // Appends to *answers: the client's own, unless it has to wait, and those of others whose wait
  // is over by it.
  void take(Client from, const StoreRequest& request, std::uint64_t now_ns,
            std::vector<Answer>* answers);
  // It is not waited for any more.
  void forget(Client client);
  void time_passed(std::uint64_t now_ns, std::vector<Answer>* answers);
  // When time_passed() has something to do.
  std::optional<std::uint64_t> next_moment_ns() const;

  std::size_t keys() const { return values_.size(); }
  std::size_t bytes() const { return bytes_; }
  std::size_t waiting() const { return waiters_.size(); }

 private:
  struct Waiter {
    std::vector<std::string> keys;
    std::size_t missing;  // place of the first one that was seen to be absent
    std::multimap<std::uint64_t, Client>::iterator deadline;
  };
  struct Remembered {
    std::uint64_t number;
    StoreReply reply;
    std::list<Lane>::iterator place;
  };

  StoreReply change(const StoreRequest& request, std::vector<Answer>* answers);
  Status put(const std::string& key, std::string value, std::vector<Answer>* answers);
  void remove(std::map<std::string, std::string, std::less<>>::iterator entry);
  void remember(const StoreRequest& request, const StoreReply& reply);
  bool answer_repeat(Client from, const StoreRequest& request, std::vector<Answer>* answers) const;
  void start_wait(Client from, const StoreRequest& request, std::uint64_t now_ns,
                  std::vector<Answer>* answers);
  // The place of the first key that is absent; how many there are, if none is.
  std::size_t first_missing(const std::vector<std::string>& keys) const;
  void appeared(const std::string& key, std::vector<Answer>* answers);

  std::map<std::string, std::string, std::less<>> values_;
  std::size_t bytes_ = 0;
  std::map<Client, Waiter> waiters_;
  std::multimap<std::string, Client> by_key_;  // each waiter under the one key it misses
  std::multimap<std::uint64_t, Client> by_deadline_;
  std::map<Lane, Remembered> remembered_;
  std::list<Lane> lanes_;  // of these, the one that was silent longest first
};

// What is wrong with a request, before anything is done for it.
Status check_store_request(const StoreRequest& request);

}  // namespace trireme::cluster
