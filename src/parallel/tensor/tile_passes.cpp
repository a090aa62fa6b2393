#include "parallel/tensor/tile_passes.hpp"

#include <utility>

#include "collectives/request.hpp"

namespace trireme::parallel {

Status TilePasses::begin(sharding::Range rows, std::vector<const void*> parts, void* out) {
  Region::TilePass pass = {name_, rows, std::move(parts), out};
  if (!starts_) return region_.pass_tile(std::move(pass), deadline_, nullptr);
  // A request is known by the address of the communicator's whole object. There, a wait for a
  // started pass would be refused while the pass uses the caller's arrays.
  const Communicator& communicator = region_.tensor().communicator();
  if (inside_callback_of(dynamic_cast<const void*>(&communicator))) {
    return region_.named(name_, refuse_blocking_in_callback());
  }
  started_.emplace_back();
  std::shared_ptr<Request>* const kept = use_.add_pass();  // before peers can be in the pass
  TRIREME_RETURN_IF_ERROR(region_.pass_tile(std::move(pass), deadline_, kept));
  started_.back() = *kept;
  return Status::success();
}

Status TilePasses::end(std::size_t number) const {
  if (!starts_) return Status::success();
  return region_.named(name_, Workspace::wait(*started_[number]));
}

Status TilePasses::end_all() const {
  for (std::size_t number = 0; number < started_.size(); ++number) {
    TRIREME_RETURN_IF_ERROR(end(number));
  }
  return Status::success();
}

}  // namespace trireme::parallel
