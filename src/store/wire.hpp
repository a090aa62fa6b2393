// Store wire: requests and answers of the store as bytes, in a frame or in a file. A reader knows
// that a member of the job wrote them, and still trusts no length in them.
#pragma once

#include <string>
#include <string_view>

#include "net/handshake.hpp"
#include "store/state.hpp"

namespace trireme::cluster {

// The number of a store: each store draws it when it starts. 0: any store.
using StoreInstance = std::uint64_t;

constexpr std::size_t kMaxStoreRequestBytes = 2 * kMaxStoreValue + kMaxStoreKey + 64;
constexpr std::size_t kMaxStoreReplyBytes = kMaxStoreValue + 4096;

std::string encode(const StoreRequest& request, StoreInstance instance);
bool decode(std::string_view bytes, StoreRequest* request, StoreInstance* instance);
std::string encode(const StoreReply& reply, StoreInstance instance);
bool decode(std::string_view bytes, StoreReply* reply, StoreInstance* instance);

// The terms by which both ends of a connection know that it is for the store.
HandshakeTerms store_terms();

}  // namespace trireme::cluster
