// The caller's hook, which is shown buckets before and after they are reduced.
#pragma once

#include <trireme/model.h>

#include <cstdint>

#include "exchange/storage.hpp"
#include "model/gradients/bucket_memory.hpp"
#include "model/gradients/update_agreement.hpp"
#include "sharding/layout.hpp"

namespace trireme::strategies {

// The first answer of a hook that was not 0.
struct HookAnswer {
  std::int32_t answer = 0;
  std::uint64_t bucket = 0;
};

class BucketHook {
 public:
  // No `call`: there is no hook.
  BucketHook(trireme_bucket_callback call, void* data, const sharding::Layout& layout,
             const BucketMemory& memory, Link& link, UpdateAgreement& agreement)
      : call_(call),
        data_(data),
        layout_(layout),
        memory_(memory),
        link_(link),
        agreement_(agreement) {}

  // The contribution of this rank in a pass.
  void before(std::uint64_t bucket, char* contribution, std::uint32_t pass) {
    run(TRIREME_HOOK_BEFORE, bucket, contribution, pass);
  }
  // The gradients by which this rank updates.
  void after(std::uint64_t bucket, char* reduced) { run(TRIREME_HOOK_AFTER, bucket, reduced, 0); }
  void after_all();
  const HookAnswer& answer() const { return answer_; }
  // The step is over.
  void clear() { answer_ = {}; }

 private:
  void run(std::int32_t moment, std::uint64_t bucket, char* data, std::uint32_t pass);

  const trireme_bucket_callback call_;
  void* const data_;
  const sharding::Layout& layout_;
  const BucketMemory& memory_;
  Link& link_;
  UpdateAgreement& agreement_;
  HookAnswer answer_;
};

}  // namespace trireme::strategies
