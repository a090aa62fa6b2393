// AxisSums: adds up the gradients of SHARED parameters along an axis of a mesh, before their bucket
// is reduced among the ranks of the model.
//
// Models along the axis may hold other parameters beside these, so their buckets may begin and end
// elsewhere. The ranks agree where any of them begins a bucket. Parameters between two such places
// are a set, which all ranks start in one order.
//
// A set starts when its gradients are in, even if its bucket is not complete: ranks that hand in
// gradients in one order then start it at the same call, and may wait for it. With a hook, which
// sees a bucket before any peer does, it starts after the hook, and no rank waits in a pass.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "model/gradients/bucket_memory.hpp"
#include "model/gradients/intake.hpp"
#include "sharding/layout.hpp"
#include "sharding/shared_gradients.hpp"

namespace trireme::strategies {

class AxisSums {
 public:
  // `after_hook`: sets start when their bucket has been shown to a hook.
  AxisSums(const sharding::Registry& registry, const sharding::Layout& layout, bool skips,
           bool after_hook, GradientIntake& intake, const BucketMemory& memory, Link& link);

  // ---- when the model is sealed ----
  // The axes along which gradients are summed.
  const std::vector<sharding::SharedAxis>& axes() const { return axes_; }
  // Whether gradient i of an axis begins a bucket here.
  std::vector<bool> cuts_of(std::size_t axis) const;
  Status allocate(std::size_t axis, std::shared_ptr<Communicator> ranks,
                  const std::shared_ptr<AllocatedBytes>& counter);
  // `cuts`: where any rank of the axis begins a bucket.
  void open(std::size_t axis, const std::vector<bool>& cuts);

  // ---- a backward pass ----
  bool any() const { return !axes_.empty(); }
  bool after_hook() const { return after_hook_; }
  // Whether all ranks of the sums make their passes at the same time. Along "tensor" they do. Along
  // another axis a rank's backward may need that of a peer, as between stages of a pipeline.
  bool at_once() const { return at_once_; }
  void begin_pass();
  // The hook has seen the bucket, if there is one.
  void note_prepared(std::uint64_t bucket) { prepared_[bucket] = true; }
  // Starts the sets whose gradients are in, in order; all: the others, too, without what is not in.
  Status start(bool all);
  // Brings the sums of a bucket into it. *done: whether they are there; they are if it waits.
  Status finish(std::uint64_t bucket, bool waits, bool* done);
  // Bytes that this rank gives its peers in one pass.
  std::uint64_t given_bytes() const;

 private:
  struct Set {
    std::size_t first = 0, end = 0;  // gradients of the axis
    std::uint64_t bucket = 0;
    trireme_dtype dtype = 0;
    std::uint64_t place = 0, elements = 0;
    std::vector<std::uint64_t> counts;  // by rank
    std::shared_ptr<Request> request;   // null: not started in this pass, or over
  };
  struct Line {
    std::shared_ptr<Communicator> ranks;
    Arena memory;
    std::vector<Set> sets;
    std::size_t next = 0;  // to start
    std::size_t done = 0;  // brought into their buckets
  };

  bool is_ready(const sharding::SharedAxis& axis, const Set& set) const;
  void fill(const sharding::SharedAxis& axis, const Set& set, char* memory) const;
  void bring(const sharding::SharedAxis& axis, const Set& set, const char* memory);
  Status start_set(std::size_t axis, Set& set);
  std::uint64_t given_bytes(const Line& line, const Set& set) const;

  const sharding::Registry& registry_;
  const sharding::Layout& layout_;
  const bool skips_;
  const bool after_hook_;
  GradientIntake& intake_;
  const BucketMemory& memory_;
  Link& link_;
  const std::vector<sharding::SharedAxis> axes_;
  const bool at_once_;
  std::vector<Line> lines_;     // by axis
  std::vector<bool> prepared_;  // by bucket, in this pass
};

// The failure of a group along an axis.
Status along_axis(const std::string& axis, const Status& status);

}  // namespace trireme::strategies
