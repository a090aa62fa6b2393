#include "collectives/hosts.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "net/host_identity.hpp"

namespace trireme {
namespace {

// "?host=LABEL" divides a host.
std::string label_of(std::string_view rendezvous) {
  constexpr std::string_view kNetwork = "tcp://";
  constexpr std::string_view kLabel = "host=";
  if (rendezvous.substr(0, kNetwork.size()) != kNetwork) return "";
  std::size_t begin = rendezvous.find('?');
  while (begin != std::string_view::npos) {
    const std::size_t end = rendezvous.find('&', begin + 1);
    const std::string_view option = rendezvous.substr(begin + 1, end - begin - 1);
    if (option.substr(0, kLabel.size()) == kLabel) return std::string(option.substr(kLabel.size()));
    begin = end;
  }
  return "";
}

}  // namespace

Status gather_hosts(Communicator& ranks, std::uint32_t channel, Deadline deadline,
                    std::vector<std::uint32_t>* out) {
  const Digest own = host_identity(label_of(ranks.options().rendezvous));
  std::vector<Digest> all(static_cast<std::size_t>(ranks.world_size()));
  Operation operation;
  operation.channel = channel;
  operation.kind = OperationKind::all_gather;
  operation.dtype = TRIREME_DTYPE_BYTES;
  operation.send = own.data();
  operation.receive = all.data();
  operation.count = own.size();
  TRIREME_RETURN_IF_ERROR(ranks.run(std::move(operation), deadline));
  out->clear();
  for (const Digest& host : all) {
    out->push_back(
        static_cast<std::uint32_t>(std::find(all.begin(), all.end(), host) - all.begin()));
  }
  return Status::success();
}

}  // namespace trireme
