// TilePasses: the passes of a layer's call through one region, a tile of rows at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/tensor/region.hpp"
#include "parallel/tensor/workspace.hpp"

namespace trireme::parallel {

class TilePasses {
 public:
  // With `starts` a pass goes on while the thread computes; else begin() makes it whole. Peers may
  // do the other one: the order of passes is the same. `use` ends passes that this object has not
  // ended.
  TilePasses(Workspace::Use& use, Region& region, const char* name, bool starts, Deadline deadline)
      : use_(use), region_(region), name_(name), starts_(starts), deadline_(deadline) {}

  Status begin(sharding::Range rows, std::vector<const void*> parts, void* out);
  // Waits for the pass with this number, in the order of begin().
  Status end(std::size_t number) const;
  Status end_all() const;

 private:
  Workspace::Use& use_;
  Region& region_;
  const char* const name_;
  const bool starts_;
  const Deadline deadline_;
  std::vector<std::shared_ptr<Request>> started_;
};

}  // namespace trireme::parallel
