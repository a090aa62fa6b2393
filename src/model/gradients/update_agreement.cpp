#include "model/gradients/update_agreement.hpp"

#include <cstring>
#include <string>
#include <utility>

#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

namespace {

// A rank tells this in 32 bytes of the exchange.
struct Told {
  std::uint64_t goes_on;
  std::uint64_t rates;
  double rate;
  std::uint64_t reserved;
};

}  // namespace

Status UpdateAgreement::ask() {
  if (asked_ != nullptr) return Status::success();
  auto* const all = reinterpret_cast<Told*>(storage_->working.data());
  Told* const own = all + link_.rank();
  *own = {has_rate_ && !refuses_ ? std::uint64_t{1} : 0, rates_, rate_, 0};
  Operation operation =
      in_place(link_, link_.reductions, OperationKind::all_gather, TRIREME_DTYPE_U64, all,
               sizeof(Told) / sizeof(std::uint64_t), storage_->hold());
  TRIREME_FAILPOINT("bucket", "before_ask");
  return link_.communicator->start(std::move(operation), link_.deadline(), &asked_);
}

Status UpdateAgreement::look() {
  if (answer_ != Answer::unknown) return Status::success();
  TRIREME_RETURN_IF_ERROR(link_.wait(*asked_));
  const auto* const all = reinterpret_cast<const Told*>(storage_->working.data());
  answer_ = Answer::yes;
  FailureDetails details;
  details.communicator = link_.communicator->name();
  const auto refuse = [&](std::uint32_t rank, const std::string& why) {
    answer_ = Answer::no;
    details.blamed = {static_cast<std::int32_t>(rank)};
    verdict_ = Status::failure(TRIREME_ERROR_MISMATCH, why).with_details(std::move(details));
  };
  for (std::uint32_t rank = 0; rank < link_.world_size(); ++rank) {
    if (all[rank].goes_on != 0) continue;
    refuse(rank, "rank " + std::to_string(rank) +
                     " has failed in this step or discarded it, and others have not");
    return Status::success();
  }
  for (std::uint32_t rank = 1; rank < link_.world_size(); ++rank) {
    if (all[rank].rates == all[0].rates) continue;
    const std::string who = std::to_string(rank);
    if (std::memcmp(&all[rank].rate, &all[0].rate, sizeof(double)) == 0) {
      refuse(rank,
             "the learning rate of a group of parameters differs between rank 0 and rank " + who);
    } else {
      refuse(rank, "learning rate is " + text_of(all[0].rate) + " on rank 0 and " +
                       text_of(all[rank].rate) + " on rank " + who);
    }
    return Status::success();
  }
  return Status::success();
}

void UpdateAgreement::clear() {
  has_rate_ = refuses_ = false;
  asked_.reset();
  answer_ = Answer::unknown;
  verdict_ = Status::success();
}

}  // namespace trireme::strategies
