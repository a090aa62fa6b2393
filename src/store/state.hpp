// Store state: the contents of the job's store, and its waiters. Pure: requests and moments go in,
// answers come out; no socket, no file, no clock. Each client has one request at a time under way.
// A request that changes the store is done once, even if it arrives again.
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

// Names a client, so that a request that is repeated on another connection is recognised.
using Lane = std::array<std::uint8_t, 16>;

enum class StoreOperation : std::uint8_t { set = 1, get, wait, add, compare_exchange, remove };

bool changes(StoreOperation operation);  // else it only looks

struct StoreRequest {
  StoreOperation operation{};
  Lane lane{};
  std::uint64_t number = 0;             // of the lane, ascending; a repeat has the same
  std::string key;                      // not of a wait
  std::optional<std::string> expected;  // compare_exchange; none: the key must be absent
  std::string value;                    // set; compare_exchange: the new value
  std::int64_t amount = 0;              // add
  std::vector<std::string> keys;        // wait
  std::uint64_t timeout_ns = 0;         // wait; 0 looks once
};

struct StoreReply {
  trireme_status code = TRIREME_OK;
  std::int64_t number = 0;           // add: the sum; compare_exchange, remove: 1 if it was done
  std::optional<std::string> value;  // get: the value, or none
  std::string message;               // of a failure
};

class StoreState {
 public:
  using Client = std::uint64_t;  // as the caller numbers them
  struct Answer {
    Client to;
    StoreReply reply;
  };

  // Appends to *answers: this client's answer, unless it has to wait, and the answers of waiters
  // whose wait it ends.
  void take(Client from, const StoreRequest& request, std::uint64_t now_ns,
            std::vector<Answer>* answers);
  // Drops the client's wait.
  void forget(Client client);
  void time_passed(std::uint64_t now_ns, std::vector<Answer>* answers);
  // The next moment at which time_passed() has work.
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
  std::list<Lane> lanes_;  // these lanes, the longest silent first
};

// Refuses a malformed request before it has any effect.
Status check_store_request(const StoreRequest& request);

}  // namespace trireme::cluster
