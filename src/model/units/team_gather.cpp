#include "model/units/team_gather.hpp"

#include <memory>
#include <utility>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

void make_team_gather(Operation* operation, std::vector<TeamPlace> places, std::uint32_t rank) {
  operation->kind = OperationKind::all_to_all_v;
  operation->count = 0;  // ranks have different counts
  operation->counts.clear();
  const auto called = std::make_shared<const Operation>(*operation);
  operation->program = [called, places = std::move(places), rank](Steps& steps) -> Status {
    const std::uint64_t bytes = places[rank].count * dtype_size(called->dtype);
    std::uint64_t team = 0;
    for (const TeamPlace& place : places) team += place.team == places[rank].team ? 1 : 0;
    std::byte* copies = nullptr;
    TRIREME_RETURN_IF_ERROR(steps.scratch(team * bytes, &copies));
    for (std::uint64_t i = 0; i < team && bytes > 0; ++i) {
      kernels::copy(copies + i * bytes, called->send, bytes);
    }
    Operation move;
    move.channel = called->channel;
    move.kind = OperationKind::all_to_all_v;
    move.dtype = called->dtype;
    move.agreement = called->agreement;
    move.agreement_name = called->agreement_name;
    move.called = called.get();
    move.send = copies;
    move.receive = called->receive;
    for (const TeamPlace& source : places) {
      for (const TeamPlace& destination : places) {
        move.counts.push_back(source.team == destination.team ? source.count : 0);
      }
    }
    return steps.run(move);
  };
}

}  // namespace trireme::strategies
