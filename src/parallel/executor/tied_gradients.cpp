#include "parallel/executor/tied_gradients.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "exchange/agreement.hpp"
#include "exchange/texts.hpp"
#include "kernels/reduce.hpp"
#include "model/tied_copies.hpp"
#include "platform/clock.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {

using sharding::kNone;
using sharding::Parameter;
using strategies::activation_piece;
using strategies::TiedParameter;

namespace {

constexpr char kMeetTies[] = "create of a trainer with a pipeline";
// Tags of stages are below.
constexpr std::uint64_t kTiedTag = std::uint64_t{1} << 63;

std::string told_of(const std::vector<std::uint64_t>& words) {
  return {reinterpret_cast<const char*>(words.data()), words.size() * sizeof words[0]};
}

}  // namespace

// In front of a holder's gradients. Behind it comes a word for each use: whether it has one.
struct TiedGradients::Header {
  std::uint64_t step = 0, pass = 0, rate = 0, loss_scale = 0, rates = 0;
};

std::uint64_t TiedGradients::head_bytes(std::uint64_t uses) {
  return activation_piece(sizeof(Header) + uses * sizeof(std::uint64_t));
}

std::uint64_t TiedGradients::part_bytes(const Tie& tie, std::size_t holder) const {
  return head_bytes(tie.uses_of[holder]) + tie.uses_of[holder] * tie.use_bytes;
}

// ---- before the first step ----

// For each tied parameter of the pipeline: its uses here, and where those are.
std::vector<std::uint64_t> TiedGradients::own_words() const {
  std::vector<std::uint64_t> words;
  for (const TiedParameter& tied : model_.shard().axes().tied()) {
    const std::size_t count = words.size();
    words.push_back(0);
    for (std::uint64_t i = 0; i < layers_.size() && tied.own != kNone; ++i) {
      for (std::uint64_t k = 0; k < layers_[i].described.parameter_count; ++k) {
        if (layers_.parameters()[layers_.parameter_number(i, k)].target != tied.own) continue;
        ++words[count];
        words.push_back(layers_[i].number);
        words.push_back(k);
      }
    }
  }
  return words;
}

// Ranks that read other holders here than the model knows have another order, or other axes.
Status TiedGradients::read_words(const std::vector<std::string>& told) {
  const std::vector<TiedParameter>& all = model_.shard().axes().tied();
  std::vector<std::vector<Use>> uses(all.size());
  for (std::uint32_t rank = 0; rank < told.size(); ++rank) {
    std::vector<std::uint64_t> words(told[rank].size() / sizeof(std::uint64_t));
    std::memcpy(words.data(), told[rank].data(), words.size() * sizeof(std::uint64_t));
    std::size_t at = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::uint64_t count = at < words.size() ? words[at++] : UINT64_MAX;
      if (count > (words.size() - at) / 2) {
        return Status::failure(
            TRIREME_ERROR_CORRUPT,
            "rank " + std::to_string(rank) + " of the pipeline tells no uses of tied parameters");
      }
      for (std::uint64_t k = 0; k < count; ++k, at += 2) {
        uses[i].push_back({words[at], words[at + 1], rank, k});
      }
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    Tie tie;
    tie.number = i;
    for (const Use& use : uses[i]) {
      if (tie.holders.empty() || tie.holders.back() != use.rank) {
        tie.holders.push_back(use.rank);
        tie.uses_of.push_back(0);
      }
      ++tie.uses_of.back();
    }
    if (tie.holders != all[i].holders) {
      return invalid_argument(
          "tied parameter " + sharding::quoted(all[i].name) +
          " lies on other ranks of options.pipeline.communicator than of the mesh's axis "
          "\"pipeline\"; take the communicator of this axis");
    }
    if (all[i].own == kNone || !is_trained(layers_.parameters()[all[i].own], all[i].own)) continue;
    const Parameter& parameter = layers_.parameters()[all[i].own];
    tie.parameter = all[i].own;
    tie.use_bytes =
        activation_piece(parameter.elements * dtype_size(gradient_dtype(parameter.dtype)));
    tie.uses = std::move(uses[i]);
    std::sort(tie.uses.begin(), tie.uses.end(), [](const Use& a, const Use& b) {
      return std::tie(a.layer, a.place) < std::tie(b.layer, b.place);
    });
    tie.own = static_cast<std::size_t>(
        std::find(tie.holders.begin(), tie.holders.end(), link_->rank()) - tie.holders.begin());
    ties_.push_back(std::move(tie));
  }
  return Status::success();
}

void TiedGradients::find_buckets() {
  const strategies::GradientIntake& intake = model_.shard().gradients().intake();
  buckets_.assign(model_.shard().layout().buckets.size(), false);
  for (const Tie& tie : ties_) buckets_[intake.bucket_of(tie.parameter)] = true;
  place_of_.assign(layers_.parameters().size(), kGoes);
  for (std::uint64_t i = 0; i < place_of_.size(); ++i) {
    const Parameter& parameter = layers_.parameters()[i];
    const std::uint64_t bucket = intake.bucket_of(i);
    if (parameter.frozen || bucket == kNone || !buckets_[bucket]) continue;
    const bool tied = std::any_of(ties_.begin(), ties_.end(), [&](const Tie& tie) {
      return tie.parameter == parameter.target;
    });
    if (!tied) loose_.push_back(i);
  }
}

// A record has the parts of this rank for all ties, and then what else waits.
void TiedGradients::place_records() {
  for (Tie& tie : ties_) {
    tie.record = record_bytes_;
    record_bytes_ += part_bytes(tie, tie.own);
    std::uint64_t received = 0;
    for (std::size_t holder = 0; holder < tie.holders.size(); ++holder) {
      tie.received.push_back(received);
      if (holder != tie.own) received += part_bytes(tie, holder);
    }
    received_bytes_ = std::max(received_bytes_, received);
    std::uint64_t at = tie.record + head_bytes(tie.uses_of[tie.own]);
    for (std::uint64_t i = 0; i < layers_.size(); ++i) {
      for (std::uint64_t k = 0; k < layers_[i].described.parameter_count; ++k) {
        const std::uint64_t number = layers_.parameter_number(i, k);
        if (layers_.parameters()[number].target != tie.parameter) continue;
        place_of_[number] = std::exchange(at, at + tie.use_bytes);
      }
    }
  }
  for (const std::uint64_t number : loose_) {
    const Parameter& parameter = layers_.parameters()[number];
    place_of_[number] = record_bytes_;
    record_bytes_ +=
        activation_piece(parameter.elements * dtype_size(gradient_dtype(parameter.dtype)));
  }
}

Status TiedGradients::meet(strategies::Link& link, std::uint32_t passes) {
  if (model_.shard().axes().tied().empty()) return Status::success();
  link_ = &link;
  std::vector<std::string> told;
  TRIREME_FAILPOINT("pipeline", "before_ties");
  TRIREME_RETURN_IF_ERROR(strategies::exchange_texts(link, kMeetTies, told_of(own_words()), &told));
  TRIREME_RETURN_IF_ERROR(strategies::agree(link, kMeetTies, {}, read_words(told)));
  if (ties_.empty()) return Status::success();
  passes_ = passes;
  has_.assign(passes, std::vector<bool>(layers_.parameters().size()));
  find_buckets();
  place_records();
  return Status::success();
}

Status TiedGradients::check_copies() {
  if (checked_) return Status::success();
  TRIREME_RETURN_IF_ERROR(strategies::check_tied_copies(model_.shard()));
  checked_ = true;
  return Status::success();
}

// ---- a step ----

void TiedGradients::begin() {
  if (!ties_.empty()) model_.shard().gradients().hold_back(buckets_);
}

void TiedGradients::keep(std::uint64_t parameter, std::uint32_t pass, const void* gradient) {
  const Parameter& described = layers_.parameters()[parameter];
  has_[pass][parameter] = gradient != nullptr;
  if (gradient == nullptr) return;
  std::memcpy(record(pass) + place_of_[parameter], gradient,
              described.elements * dtype_size(gradient_dtype(described.dtype)));
}

// Of this rank in its record, of another one where it is received.
char* TiedGradients::part(const Tie& tie, std::size_t holder, std::uint32_t pass) const {
  return holder == tie.own ? record(pass) + tie.record : record(passes_) + tie.received[holder];
}

char* TiedGradients::gradient(const Tie& tie, const Use& use, std::uint32_t pass) const {
  const auto holder = static_cast<std::size_t>(
      std::find(tie.holders.begin(), tie.holders.end(), use.rank) - tie.holders.begin());
  char* const begin = part(tie, holder, pass);
  std::uint64_t has = 0;
  std::memcpy(&has, begin + sizeof(Header) + use.at * sizeof has, sizeof has);
  return has == 0 ? nullptr : begin + head_bytes(tie.uses_of[holder]) + use.at * tie.use_bytes;
}

// Ring by ring: each holder sends to the k-th one after it and receives from the k-th one before.
Status TiedGradients::exchange(const Tie& tie, const Moment& moment, std::uint32_t pass) {
  char* const own = part(tie, tie.own, pass);
  const Header header = {moment.step, pass, std::bit_cast<std::uint64_t>(moment.rate),
                         std::bit_cast<std::uint64_t>(moment.loss_scale), moment.rates};
  std::memcpy(own, &header, sizeof header);
  std::uint64_t at = 0;
  for (std::uint64_t i = 0; i < layers_.size(); ++i) {
    for (std::uint64_t k = 0; k < layers_[i].described.parameter_count; ++k) {
      const std::uint64_t named = layers_.parameter_number(i, k);
      if (layers_.parameters()[named].target != tie.parameter) continue;
      const std::uint64_t has = has_[pass][named] ? 1 : 0;
      std::memcpy(own + sizeof header + at++ * sizeof has, &has, sizeof has);
    }
  }
  const std::size_t holders = tie.holders.size();
  for (std::size_t round = 1; round < holders; ++round) {
    const std::size_t next = (tie.own + round) % holders;
    const std::size_t before = (tie.own + holders - round) % holders;
    MessageArguments sends, receives;
    sends.kind = OperationKind::send;
    receives.kind = OperationKind::receive;
    sends.dtype = receives.dtype = TRIREME_DTYPE_BYTES;
    sends.peer = static_cast<std::int32_t>(tie.holders[next]);
    receives.peer = static_cast<std::int32_t>(tie.holders[before]);
    sends.data = own;
    receives.data = part(tie, before, pass);
    sends.count = part_bytes(tie, tie.own);
    receives.count = part_bytes(tie, before);
    sends.tag = receives.tag = kTiedTag | tie.number;
    sends.owner = receives.owner = owner_;
    TRIREME_FAILPOINT("pipeline", "before_tied");
    const std::uint64_t started = now_ns();
    const Status met = link_->communicator->run_messages(sends, receives, link_->timeout_ns);
    link_->exposed_ns += now_ns() - started;
    if (!met.ok()) return name_tie(tie, met);
    TRIREME_RETURN_IF_ERROR(check_header(tie, before, moment, pass));
  }
  return Status::success();
}

Status TiedGradients::name_tie(const Tie& tie, const Status& failure) const {
  Status named = Status::failure(
      failure.code(), "gradients of tied parameter " +
                          sharding::quoted(layers_.parameters()[tie.parameter].name) + ": " +
                          failure.message());
  return failure.details() == nullptr ? std::move(named)
                                      : std::move(named).with_details(*failure.details());
}

Status TiedGradients::check_header(const Tie& tie, std::size_t holder, const Moment& moment,
                                   std::uint32_t pass) const {
  Header header;
  std::memcpy(&header, part(tie, holder, pass), sizeof header);
  if (header.step == moment.step && header.pass == pass && header.rates == moment.rates &&
      header.loss_scale == std::bit_cast<std::uint64_t>(moment.loss_scale)) {
    return Status::success();
  }
  const auto text = [](std::uint64_t step, std::uint64_t number, double rate, double scale) {
    return "step " + std::to_string(step) + ", micro-batch " + std::to_string(number) +
           ", learning rate " + text_of(rate) + " and loss scale " + text_of(scale);
  };
  const bool same_rate = header.rate == std::bit_cast<std::uint64_t>(moment.rate);
  std::string why = "tied parameter " + sharding::quoted(layers_.parameters()[tie.parameter].name) +
                    ": rank " + std::to_string(link_->rank()) + " of the pipeline has " +
                    text(moment.step, pass, moment.rate, moment.loss_scale) + ", and rank " +
                    std::to_string(tie.holders[holder]) + " has " +
                    text(header.step, header.pass, std::bit_cast<double>(header.rate),
                         std::bit_cast<double>(header.loss_scale));
  if (same_rate && header.rates != moment.rates) {
    why += "; their groups of parameters have other rate factors";
  }
  link_->communicator->fail(TRIREME_ERROR_MISMATCH, why);
  static_cast<void>(link_->communicator->failure());  // the peers know it before the call returns
  return Status::failure(TRIREME_ERROR_MISMATCH, why);
}

const void* TiedGradients::add_up(const Tie& tie, std::uint32_t pass) const {
  const Parameter& parameter = layers_.parameters()[tie.parameter];
  char* sum = nullptr;
  for (const Use& use : tie.uses) {
    char* const more = gradient(tie, use, pass);
    if (more == nullptr) continue;
    if (sum == nullptr) {
      sum = more;
    } else {
      kernels::add(gradient_dtype(parameter.dtype), sum, more, parameter.elements);
    }
  }
  return sum;
}

Status TiedGradients::hand_in(const Moment& moment, std::uint32_t passes) {
  if (ties_.empty()) return Status::success();
  strategies::Reducer& reducer = model_.shard().gradients();
  const auto take = [&](std::uint64_t number, const void* data, bool with_aliases) {
    const trireme_dtype dtype = gradient_dtype(layers_.parameters()[number].dtype);
    return reducer.ready_held_back(number, {data, dtype}, with_aliases);
  };
  for (std::uint32_t pass = 0; pass < passes; ++pass) {
    reducer.begin_held_back();
    for (const Tie& tie : ties_) {
      TRIREME_RETURN_IF_ERROR(exchange(tie, moment, pass));
      const void* const sum = add_up(tie, pass);
      if (sum != nullptr) TRIREME_RETURN_IF_ERROR(take(tie.parameter, sum, true));
    }
    for (std::size_t i = loose_.size(); i-- > 0;) {
      const std::uint64_t number = loose_[i];
      if (!has_[pass][number]) continue;
      TRIREME_RETURN_IF_ERROR(take(number, record(pass) + place_of_[number], false));
    }
    TRIREME_RETURN_IF_ERROR(reducer.end_held_back());
  }
  return Status::success();
}

}  // namespace trireme::parallel
