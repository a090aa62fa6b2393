#include "trainer/pass_exchange.hpp"

#include <bit>
#include <utility>

#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Parameter;

namespace {

constexpr std::uint64_t kMostNamed = 10;  // parameters in a message

// Indices of a rank's words; its losses follow them.
enum { kKind, kPhase, kAnswer, kLayer, kLeaf, kStop, kFirst, kTold, kElement };

}  // namespace

std::uint64_t PassExchange::planned_bytes() const {
  return std::uint64_t{world_size()} * words() * sizeof(std::int64_t);
}

Status PassExchange::allocate() {
  return shard_.link().communicator->allocate(planned_bytes(), &memory_);
}

std::int64_t* PassExchange::words_of(std::uint32_t rank) const {
  return static_cast<std::int64_t*>(memory_->data()) + rank * words();
}

Status PassExchange::run(std::uint64_t agreement, const LayerFailure& own,
                         const std::vector<double>& losses, bool stop) {
  static_assert(kElement + 1 == kAnswerWords);
  std::int64_t* const said = words_of(rank());
  said[kKind] = own.kind;
  said[kPhase] = own.phase;
  said[kAnswer] = own.answer;
  said[kLayer] = static_cast<std::int64_t>(own.layer);
  said[kLeaf] = own.leaf;
  said[kStop] = stop ? 1 : 0;
  said[kFirst] = static_cast<std::int64_t>(own.gaps.first);
  said[kTold] = static_cast<std::int64_t>(own.gaps.told);
  said[kElement] = static_cast<std::int64_t>(own.gaps.element);
  for (std::uint32_t i = 0; i < rounds_; ++i) {
    said[kAnswerWords + i] = std::bit_cast<std::int64_t>(losses[i]);
  }
  Operation operation = in_place(shard_.link(), shard_.link().gathers, OperationKind::all_gather,
                                 TRIREME_DTYPE_I64, memory_->data(), words(), memory_);
  operation.agreement = agreement;
  operation.agreement_name = "step counts, or trainer calls (step, evaluate)";
  TRIREME_FAILPOINT("trainer", "before_exchange");
  TRIREME_RETURN_IF_ERROR(shard_.link().run(std::move(operation)));
  TRIREME_FAILPOINT("trainer", "after_exchange");
  return Status::success();
}

bool PassExchange::anyone_stops() const {
  for (std::uint32_t r = 0; r < world_size(); ++r) {
    if (words_of(r)[kStop] != 0) return true;
  }
  return false;
}

double PassExchange::mean_loss() const {
  double sum = 0;
  for (std::uint32_t leaf = 0; leaf < total_; ++leaf) {
    sum += std::bit_cast<double>(words_of(leaf % world_size())[kAnswerWords + leaf / world_size()]);
  }
  return sum / total_;
}

// "2 of its 3 gradients: "w", "b"".
std::string PassExchange::gaps_of(std::uint64_t layer, std::int64_t missing,
                                  const LayerGaps& gaps) const {
  if (layer >= layers_.size()) return "gradients";
  const std::uint64_t parameter_count = layers_[layer].described.parameter_count;
  const auto parameter = [&](std::uint64_t k) -> const Parameter& {
    return layers_.parameters()[layers_.parameter_number(layer, k)];
  };
  std::uint64_t wanted = 0;
  for (std::uint64_t k = 0; k < parameter_count; ++k) {
    if (!parameter(k).frozen && parameter(k).elements > 0) ++wanted;
  }
  std::string text = std::to_string(missing) + " of its " + std::to_string(wanted) +
                     (wanted == 1 ? " gradient:" : " gradients:");
  std::int64_t named = 0;
  for (std::uint64_t bit = 0; bit < kToldGaps; ++bit) {
    const std::uint64_t k = gaps.first + bit;
    if ((gaps.told >> bit & 1) == 0 || k >= parameter_count) continue;
    if (named == static_cast<std::int64_t>(kMostNamed)) break;
    text += (named++ == 0 ? " " : ", ") + sharding::quoted(parameter(k).name);
  }
  if (missing > named) text += " and " + std::to_string(missing - named) + " more";
  return text;
}

Status PassExchange::failure() const {
  FailureDetails details;
  for (std::uint32_t r = 0; r < world_size(); ++r) {
    if (words_of(r)[kKind] != LayerFailure::none) {
      details.blamed.push_back(static_cast<std::int32_t>(r));
    }
  }
  if (details.blamed.empty()) return Status::success();
  const auto first = static_cast<std::uint32_t>(details.blamed[0]);
  const std::int64_t* const told = words_of(first);
  if (told[kKind] == LayerFailure::no_rate) {
    details.communicator = shard_.link().communicator->name();
    return Status::failure(TRIREME_ERROR_CALLBACK,
                           "the schedule answered no factor, so there is no rate for the step on "
                           "rank " +
                               std::to_string(first))
        .with_details(std::move(details));
  }
  const auto layer = static_cast<std::uint64_t>(told[kLayer]);
  const LayerGaps gaps = {static_cast<std::uint64_t>(told[kFirst]),
                          static_cast<std::uint64_t>(told[kTold]),
                          static_cast<std::uint64_t>(told[kElement])};
  static constexpr const char* kPhases[] = {"",
                                            "forward",
                                            "recomputed forward",
                                            "backward",
                                            "forward of an evaluation",
                                            "backward for the input",
                                            "backward for the weights"};
  const auto phase = static_cast<std::uint64_t>(told[kPhase]);
  std::string message = phase < std::size(kPhases) ? kPhases[phase] : "a callback";
  message += " of " + layers_.name_of(layer);
  trireme_status code = TRIREME_ERROR_CALLBACK;
  const char* advice = "";
  switch (told[kKind]) {
    case LayerFailure::threw: message += " threw"; break;
    case LayerFailure::left_out:
      message += " left out " + gaps_of(layer, told[kAnswer], gaps);
      advice =
          "; write each of them, or create the model with TRIREME_UNUSED_ZERO or "
          "TRIREME_UNUSED_SKIP";
      break;
    case LayerFailure::refused:
      message += " set a place to memory of the model that lies elsewhere, for " +
                 gaps_of(layer, told[kAnswer], gaps);
      advice = "; leave the place as it was, or set it to memory of the caller";
      break;
    case LayerFailure::foreign:
      message += " set a place to memory that is not of the model's device, for " +
                 gaps_of(layer, told[kAnswer], gaps);
      advice = "; leave the place as it was, or set it to memory of the device";
      break;
    case LayerFailure::stream:
      message += " left its stream so that no work can be queued there";
      advice = "; end a recording into a graph, and the stream's life, after the step";
      break;
    case LayerFailure::unwritten:
      message += " did not write " + gaps_of(layer, told[kAnswer], gaps);
      if (told[kAnswer] == 1) {
        message += " (from element " + std::to_string(gaps.element) + " on)";
      }
      advice =
          "; write every element and add to none, or set the place to NULL where there is no "
          "gradient, or create the trainer with TRIREME_TRAINER_FLAG_ZERO_GRADIENTS";
      break;
    case LayerFailure::input:
      message += told[kAnswer] != 0 ? " did not write its input_gradient"
                                    : " did not write all of its input_gradient";
      message +=
          ", and the unwritten part has come to a gradient of " + layers_.name_of(gaps.first);
      advice =
          "; write every element that the layers before it read, or create the trainer with "
          "TRIREME_TRAINER_FLAG_ZERO_GRADIENTS";
      break;
    case LayerFailure::too_long:
      message += " used " + std::to_string(gaps.element) + " bytes of its output (output_used)";
      if (layer < layers_.size()) {
        message +=
            ", whose output_bytes are " + std::to_string(layers_[layer].described.output_bytes);
      }
      break;
    case LayerFailure::other_size:
      message += " set another output_used or output_shape than the first forward";
      break;
    case LayerFailure::read:
      message += " did not write all of its gradient for the output of layer " +
                 std::to_string(gaps.first) + ", which it reads";
      advice =
          "; write read_used bytes of each of read_gradients, or create the trainer with "
          "TRIREME_TRAINER_FLAG_ZERO_GRADIENTS";
      break;
    case LayerFailure::file:
    case LayerFailure::full:
      code = TRIREME_ERROR_SYSTEM;
      details.system_error = static_cast<int>(told[kAnswer]);
      message += told[kKind] == LayerFailure::full ? " waits for activations that cannot be written"
                                                   : " needs activations that cannot be read";
      break;
    case LayerFailure::corrupt:
      code = TRIREME_ERROR_CORRUPT;
      message += " needs activations, but the file gave bytes that are not what was written";
      break;
    default: message += " answered " + std::to_string(told[kAnswer]);
  }
  message += " on rank " + std::to_string(first) + " in micro-batch " + std::to_string(told[kLeaf]);
  message += advice;
  if (details.system_error != 0) {
    message = Status::system(details.system_error, message).message();
  }
  if (details.blamed.size() > 1) {
    message += "; " + std::to_string(details.blamed.size()) + " ranks have failed";
  }
  details.communicator = shard_.link().communicator->name();
  return Status::failure(code, std::move(message)).with_details(std::move(details));
}

}  // namespace trireme::strategies
