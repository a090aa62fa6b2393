// The state of training of this rank as one piece of bytes.
//
// The saved bytes are a header; the steps of each parameter if parameters can be skipped; the loss
// scale if there is one; the parameters group by group; the optimizer's state; the masters if there
// are any; the state of ADAFACTOR. A hash covers everything that decides an element's place, so a
// part fits one rank of one layout only.
#include <bit>
#include <cstring>
#include <string>

#include "exchange/agreement.hpp"
#include "kernels/hash.hpp"
#include "kernels/rules.hpp"
#include "model/strategy.hpp"
#include "optimizer/optimizer.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Group;
using sharding::Range;

// The header: 13 numbers of 8 bytes in the byte order of the machine, which `magic` shows.
struct Optimizer::Saved {
  std::uint64_t magic = 0;
  std::uint64_t version = 0;
  std::uint64_t bytes = 0;     // of all, this header included
  std::uint64_t checksum = 0;  // of all that follows this field
  std::uint64_t layout = 0;    // a hash
  std::uint64_t strategy = 0, rank = 0, world_size = 0;
  std::uint64_t steps = 0;
  std::uint64_t learning_rate = 0, norm = 0;  // bits
  std::uint64_t parameter_bytes = 0, state_bytes = 0;
};

namespace {

constexpr std::uint64_t kMagic = 0x45544154'53495254;  // "TRISTATE" in memory
constexpr std::uint64_t kVersion = 1;

std::uint64_t steps_bytes(const ParameterSteps& steps) {
  return steps.steps_of.size() * sizeof steps.steps_of[0];
}

std::uint64_t scale_bytes(const optimizers::LossScale& scale) {
  return scale.on() ? sizeof(optimizers::LossScale::State) : 0;
}

}  // namespace

Optimizer::Saved Optimizer::describe_saved() const {
  const sharding::Spread& spread = shard_.layout().spread;
  std::string text;
  for (const std::uint64_t number :
       {std::uint64_t{spread.shard_ranks}, spread.bucket_bytes, spread.first_bucket_bytes,
        spread.minimum_unit_bytes, spread.persistent_unit_bytes, std::uint64_t{spread.shared},
        std::uint64_t{spread.shard_stride}, std::uint64_t{spread.whole_rows},
        std::uint64_t{parameter_steps_.steps_of.size()}, std::uint64_t{settings_.states}}) {
    text += std::to_string(number) + " ";
  }
  text += kernels::rule_name(settings_.rule.kind);
  for (const kernels::RuleFlag& flag : kernels::rule_traits(settings_.rule.kind).flags) {
    if (flag.in_state && (settings_.rule.flags & flag.bit) != 0)
      text += std::string(" ") + flag.name;
  }
  if (norms_.loss_scale().on()) text += " loss_scale";
  if (settings_.master_weights) text += " master_weights";
  text += rule_->places();
  for (const sharding::Fact& fact : shard_.registry().facts()) {
    text += "\n" + fact.subject + "\t" + fact.value;
  }
  Saved saved;
  saved.magic = kMagic;
  saved.version = kVersion;
  saved.layout = kernels::hash(text.data(), text.size(), 0);
  saved.strategy = static_cast<std::uint64_t>(spread.strategy);
  saved.rank = spread.rank;
  saved.world_size = spread.world_size;
  saved.steps = steps_;
  saved.learning_rate = std::bit_cast<std::uint64_t>(settings_.learning_rate);
  saved.norm = std::bit_cast<std::uint64_t>(norms_.last_norm());
  saved.parameter_bytes = shard_.layout().parameter_bytes;
  saved.state_bytes = state_.bytes() + rule_->own_bytes();
  saved.bytes = sizeof saved + steps_bytes(parameter_steps_) + scale_bytes(norms_.loss_scale()) +
                saved.parameter_bytes + saved.state_bytes;
  return saved;
}

std::uint64_t Optimizer::saved_bytes() const { return describe_saved().bytes; }

Status Optimizer::save(char* state, std::uint64_t capacity) const {
  TRIREME_RETURN_IF_ERROR(shard_.check_sealed());
  if (shard_.gradients().step_under_way()) return invalid_state("a step is under way");
  Saved saved = describe_saved();
  if (capacity < saved.bytes) {
    return invalid_argument("capacity " + std::to_string(capacity) + ", but the state takes " +
                            std::to_string(saved.bytes) + " bytes");
  }
  if (shard_.on_device() != nullptr) {
    TRIREME_RETURN_IF_ERROR(shard_.on_device()->begin());
  }
  TRIREME_FAILPOINT("save", "before_copy");
  char* to = state + sizeof saved;
  const auto write = [&to](const void* from, std::uint64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    to += bytes;
  };
  write(parameter_steps_.steps_of.data(), steps_bytes(parameter_steps_));
  write(&norms_.loss_scale().state(), scale_bytes(norms_.loss_scale()));
  TRIREME_RETURN_IF_ERROR(shard_.expect_all());
  for (std::size_t number = 0; number < shard_.layout().groups.size(); ++number) {
    const Group& group = shard_.layout().groups[number];
    TRIREME_RETURN_IF_ERROR(shard_.visit(
        number, group.held, ParameterFile::Access::read,
        [&](const char* data, Range part) { write(data, part.count * dtype_size(group.dtype)); }));
  }
  TRIREME_RETURN_IF_ERROR(state_.save(to));
  to += state_.bytes();
  write(rule_->own_data(), rule_->own_bytes());
  constexpr std::uint64_t kChecked = offsetof(Saved, layout);
  std::memcpy(state, &saved, sizeof saved);
  saved.checksum = kernels::hash(state + kChecked, saved.bytes - kChecked, saved.bytes);
  std::memcpy(state, &saved, sizeof saved);
  TRIREME_FAILPOINT("save", "after_copy");
  return Status::success();
}

Status Optimizer::check_saved(const char* state, std::uint64_t bytes, Saved* out,
                              optimizers::LossScale::State* scale) const {
  if (state == nullptr) return invalid_argument("state is NULL");
  const auto corrupt = [](const std::string& what) {
    return Status::failure(TRIREME_ERROR_CORRUPT, what);
  };
  if (bytes < sizeof *out) {
    return corrupt(std::to_string(bytes) + " bytes are no saved state: its header alone has " +
                   std::to_string(sizeof *out));
  }
  std::memcpy(out, state, sizeof *out);
  if (out->magic == __builtin_bswap64(kMagic)) {
    return unsupported("the state was saved on a machine of another byte order");
  }
  if (out->magic != kMagic) return corrupt("the bytes are no saved state");
  if (out->version != kVersion) {
    return unsupported("the state has format " + std::to_string(out->version) +
                       ", this library reads format " + std::to_string(kVersion));
  }
  if (out->bytes != bytes) {
    return corrupt("the state has " + std::to_string(out->bytes) + " bytes, but " +
                   std::to_string(bytes) + " were given");
  }
  constexpr std::uint64_t kChecked = offsetof(Saved, layout);
  if (kernels::hash(state + kChecked, bytes - kChecked, bytes) != out->checksum) {
    return corrupt("the state is damaged: its checksum is another one");
  }
  const Saved here = describe_saved();
  const auto differs = [](const char* what, const std::string& saved, const std::string& now) {
    return invalid_argument(std::string("the state is of ") + what + " " + saved + ", this is " +
                            now);
  };
  if (out->strategy != here.strategy) {
    const auto name = [](std::uint64_t strategy) {
      return std::string(strategy_name(static_cast<trireme_strategy>(strategy)));
    };
    return differs("strategy", name(out->strategy), name(here.strategy));
  }
  if (out->world_size != here.world_size) {
    return differs("world size", std::to_string(out->world_size), std::to_string(here.world_size));
  }
  if (out->rank != here.rank) {
    return differs("rank", std::to_string(out->rank), std::to_string(here.rank));
  }
  if (out->layout != here.layout || out->bytes != here.bytes ||
      out->parameter_bytes != here.parameter_bytes || out->state_bytes != here.state_bytes) {
    return invalid_argument(
        "the state is of a model with other parameters, units, buckets, sharing or update rule");
  }
  // The checksum has no key: another program may have written these bytes.
  if (!optimizers::check_learning_rate(std::bit_cast<double>(out->learning_rate), {}).ok()) {
    return corrupt("the state's learning rate is no finite number from 0 on");
  }
  if (norms_.loss_scale().on()) {
    std::memcpy(scale, state + sizeof *out + steps_bytes(parameter_steps_), sizeof *scale);
    if (!optimizers::is_loss_scale(scale->scale)) {
      return corrupt("the state's loss scale is no power of two in [2^-64, 2^64]");
    }
  }
  return Status::success();
}

Status Optimizer::load(const char* state, std::uint64_t bytes) {
  TRIREME_RETURN_IF_ERROR(shard_.check_sealed());
  if (shard_.gradients().step_under_way()) return invalid_state("a step is under way");
  TRIREME_RETURN_IF_ERROR(shard_.check_released("state is loaded"));
  TRIREME_RETURN_IF_ERROR(shard_.keep(shard_.drop_gathered()));
  if (shard_.on_device() != nullptr) {
    TRIREME_RETURN_IF_ERROR(shard_.keep(shard_.on_device()->begin()));
  }
  TRIREME_FAILPOINT("load", "before_agree");
  Saved saved;
  optimizers::LossScale::State scale;
  Status status = check_saved(state, bytes, &saved, &scale);
  // No rank changes its state before all ranks can. Afterwards no rank reads parameters any more.
  status =
      agree(shard_.link(), "load of the optimizer",
            {{"the number of steps", std::to_string(saved.steps)},
             {"the learning rate's bits", std::to_string(saved.learning_rate)},
             {"the loss scale's bits", std::to_string(std::bit_cast<std::uint64_t>(scale.scale))},
             {"the number of skipped steps", std::to_string(scale.skipped_steps)},
             {"the number of steps since the scale changed", std::to_string(scale.clean_steps)},
             {"the number of overflows since the scale grew", std::to_string(scale.overflows)}},
            std::move(status));
  if (!status.ok()) {
    return shard_.link().communicator->failure().ok() ? status : shard_.keep(std::move(status));
  }
  if (Status visit = failpoint("load", "before_copy"); !visit.ok()) {
    return shard_.keep(std::move(visit));
  }
  const char* from = state + sizeof saved;
  const auto read = [&from](void* to, std::uint64_t size) {
    if (size > 0) std::memcpy(to, from, size);
    from += size;
  };
  read(parameter_steps_.steps_of.data(), steps_bytes(parameter_steps_));
  read(&scale, scale_bytes(norms_.loss_scale()));
  for (std::size_t number = 0; number < shard_.layout().groups.size(); ++number) {
    const Group& group = shard_.layout().groups[number];
    const Status written = shard_.report_disk(shard_.visit(
        number, group.held, ParameterFile::Access::write,
        [&](char* data, Range part) { read(data, part.count * dtype_size(group.dtype)); }));
    if (!written.ok()) {
      shard_.give_up(written);
      return written;
    }
  }
  const Status closed = shard_.report_disk(shard_.close_window());
  if (!closed.ok()) {
    shard_.give_up(closed);
    return closed;
  }
  const Status written = state_.load(from);
  if (!written.ok()) {
    shard_.fail_groups(written.code(), written.message());
    shard_.give_up(written);
    return written;
  }
  from += state_.bytes();
  read(rule_->own_data(), rule_->own_bytes());
  steps_ = saved.steps;
  settings_.learning_rate = std::bit_cast<double>(saved.learning_rate);
  norms_.restore(scale, std::bit_cast<double>(saved.norm));
  if (Status visit = failpoint("load", "after_copy"); !visit.ok()) {
    return shard_.keep(std::move(visit));
  }
  return shard_.layout().spread.shared ? shard_.keep(shard_.link().meet()) : Status::success();
}

}  // namespace trireme::strategies
