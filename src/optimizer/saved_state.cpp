// The state of training as ranges that this rank owns, and as one piece of bytes that it holds.
//
// Saved: a header, the steps of each parameter if parameters can be skipped, the loss scale if
// there is one, the parameters group by group, the optimizer's state, the masters if there are any,
// what ADAFACTOR keeps.
// Everything that decides where an element lies is in a hash, so a part fits one rank of one layout
// only.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <tuple>

#include "exchange/agreement.hpp"
#include "kernels/hash.hpp"
#include "kernels/reduce.hpp"
#include "model/strategy.hpp"
#include "optimizer/optimizer.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Group;
using sharding::Parameter;
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

std::uint64_t state_size(const optimizers::Piece& piece) {  // of one vector
  return piece.count * dtype_size(gradient_dtype(piece.dtype));
}

}  // namespace

// Parameters of all groups, then the vectors of the rule. With data_parallel every rank has all of
// them, but still owns its share alone.
void Optimizer::place_ranges() {
  const Model& model = *model_;
  const sharding::Layout& layout = *model.layout_;
  for (const Group& group : layout.groups) {
    const std::uint64_t size = dtype_size(group.dtype);
    for (const std::uint64_t unit : group.units) {
      for (const std::uint64_t number : model.registry_.units()[unit].parameters) {
        const Parameter& parameter = model.registry_.parameters()[number];
        const std::uint64_t first = layout.first_in_group(parameter);
        const Range part = intersect(group.owned, {first, parameter.elements});
        if (part.count == 0) continue;
        char* const data = group.in_file ? nullptr
                                         : model.storage_->parameters.data() + group.offset +
                                               (part.first - group.kept.first) * size;
        ranges_.push_back(
            {TRIREME_STATE_KIND_PARAMETER, 0, number, part.first - first, part.count, data, 0, 0});
      }
    }
  }
  for (std::uint32_t vector = 0; vector < all_vectors(); ++vector) {
    for (std::uint64_t number = 0; number < pieces_.size(); ++number) {
      const optimizers::Piece& piece = pieces_[number];
      if (!keeps(number, vector)) continue;
      const Parameter& parameter = model.registry_.parameters()[piece.parameter];
      const Range owned = layout.group_of_parameter(parameter).owned;
      const std::uint64_t first = layout.first_in_group(parameter);
      const Range part = intersect(owned, {first + piece.first, piece.count});
      if (part.count == 0) continue;  // another rank's
      ranges_.push_back(
          stretch_of(number, vector, {part.first - first - piece.first, part.count}));
    }
  }
  if (factored_ != nullptr) place_factored_ranges();
  // Buckets come in another order.
  std::sort(ranges_.begin(), ranges_.end(), [](const OwnedRange& a, const OwnedRange& b) {
    return std::tie(a.kind, a.vector, a.parameter, a.first) <
           std::tie(b.kind, b.vector, b.parameter, b.first);
  });
}

bool Optimizer::keeps(std::uint64_t number, std::uint32_t vector) const {
  const optimizers::Piece& piece = pieces_[number];
  if (vector == settings_.states) return piece.rounded_dtype != 0;
  // Of a matrix there are rows and columns, or fewer vectors.
  if (factored_ != nullptr && piece.states[vector] == nullptr) return false;
  return vector < settings_.states_of(piece.matrix);
}

Optimizer::OwnedRange Optimizer::stretch_of(std::uint64_t number, std::uint32_t vector,
                                            Range in_piece) const {
  const optimizers::Piece& piece = pieces_[number];
  const bool is_master = vector == settings_.states;
  char* const states = static_cast<char*>(is_master ? piece.parameters : piece.states[vector]);
  const std::uint64_t skipped = in_piece.first * dtype_size(gradient_dtype(piece.dtype));
  return {TRIREME_STATE_KIND_OPTIMIZER, vector, piece.parameter, piece.first + in_piece.first,
          in_piece.count, states == nullptr ? nullptr : states + skipped, number, in_piece.first};
}

Status Optimizer::range(std::uint64_t index, trireme_state_range* out) const {
  if (index >= ranges_.size()) {
    return invalid_argument("range " + std::to_string(index) + " of " +
                            std::to_string(ranges_.size()));
  }
  const OwnedRange& range = ranges_[index];
  const Parameter& parameter = model_->registry_.parameters()[range.parameter];
  out->kind = range.kind;
  out->dtype =
      range.kind == TRIREME_STATE_KIND_PARAMETER ? parameter.dtype : gradient_dtype(parameter.dtype);
  out->vector = range.vector;
  out->parameter = range.parameter;
  out->name = parameter.name.c_str();
  out->shape = parameter.shape.empty() ? nullptr : parameter.shape.data();
  out->dimensions = static_cast<std::uint32_t>(parameter.shape.size());
  if (range.kind == TRIREME_STATE_KIND_ROWS || range.kind == TRIREME_STATE_KIND_COLUMNS) {
    out->shape = factored_->shape(range.parameter, range.kind == TRIREME_STATE_KIND_COLUMNS);
    out->dimensions = 1;
  }
  out->first = range.first;
  out->count = range.count;
  out->data = range.data;
  return Status::success();
}

// Between the range and memory of the caller: `read`, or `written` to the range.
Status Optimizer::copy_range(const OwnedRange& range, char* read, const char* written) const {
  const Parameter& parameter = model_->registry_.parameters()[range.parameter];
  const bool state = range.kind != TRIREME_STATE_KIND_PARAMETER;
  const std::uint64_t size = dtype_size(state ? gradient_dtype(parameter.dtype) : parameter.dtype);
  const auto copy = [&](void* there, std::uint64_t first, std::uint64_t count) {
    if (read != nullptr) {
      std::memcpy(read + first * size, there, count * size);
    } else {
      std::memcpy(there, written + first * size, count * size);
    }
  };
  if (range.data != nullptr) {
    copy(range.data, 0, range.count);
    return Status::success();
  }
  if (!state) {
    const sharding::Layout& layout = *model_->layout_;
    const std::uint64_t begin = layout.first_in_group(parameter) + range.first;
    const Status copied = model_->for_each_stretch(
        layout.group_of[parameter.unit], {begin, range.count},
        read != nullptr ? ParameterFile::Access::read : ParameterFile::Access::update,
        [&](char* data, Range part) { copy(data, part.first - begin, part.count); });
    const Status closed = model_->parameter_file_->close_window();
    return copied.ok() ? Status(closed) : Status(copied);
  }
  const Range wanted = {range.skipped, range.count};
  return offload_->sweep_piece(
      read != nullptr ? Offload::Access::read : Offload::Access::update, range.piece, wanted,
      [&](Offload::Visited* visited) {
        const Range part = intersect(wanted, {visited->skipped, visited->piece.count});
        if (part.count == 0) return true;
        copy(static_cast<char*>(visited->piece.states[range.vector]) +
                 (part.first - visited->skipped) * size,
             part.first - wanted.first, part.count);
        visited->changed = read == nullptr;
        return true;
      });
}

Status Optimizer::check_range(std::uint64_t index, const void* data, std::uint64_t bytes) const {
  TRIREME_RETURN_IF_ERROR(model_->check_sealed());
  trireme_state_range described = {};
  TRIREME_RETURN_IF_ERROR(range(index, &described));
  if (data == nullptr) return invalid_argument("data is NULL");
  const std::uint64_t wanted = described.count * dtype_size(described.dtype);
  if (bytes != wanted) {
    return invalid_argument("bytes is " + std::to_string(bytes) + ", but range " +
                            std::to_string(index) + " has " + std::to_string(wanted));
  }
  if (model_->reducer_->step_under_way()) return invalid_state("a step is under way");
  return Status::success();
}

Status Optimizer::read_range(std::uint64_t index, void* data, std::uint64_t bytes) const {
  TRIREME_RETURN_IF_ERROR(check_range(index, data, bytes));
  return copy_range(ranges_[index], static_cast<char*>(data), nullptr);
}

// A gather would answer with the copy, and the peers have copies, too, of which this rank alone
// cannot rid them.
Status Optimizer::check_no_copy(const OwnedRange& range) const {
  const Model& model = *model_;
  if (range.kind != TRIREME_STATE_KIND_PARAMETER || model.pool_ == nullptr) return Status::success();
  const std::uint64_t unit = model.registry_.parameters()[range.parameter].unit;
  if (!model.pool_->has_copy(model.layout_->group_of[unit])) return Status::success();
  return invalid_state("unit " + std::to_string(unit) + " (" +
                       sharding::quoted(model.registry_.units()[unit].name) +
                       ") was gathered since the last step, load or broadcast_parameters, and copies of "
                       "it may stay; write parameters right after one of these");
}

Status Optimizer::write_range(std::uint64_t index, const void* data, std::uint64_t bytes) {
  TRIREME_RETURN_IF_ERROR(check_range(index, data, bytes));
  TRIREME_RETURN_IF_ERROR(check_no_copy(ranges_[index]));
  const Status status = copy_range(ranges_[index], nullptr, static_cast<const char*>(data));
  count_offload();
  return status;
}

Optimizer::Saved Optimizer::describe_saved() const {
  const Model& model = *model_;
  const sharding::Spread& spread = model.layout_->spread;
  std::string text;
  for (const std::uint64_t number :
       {std::uint64_t{spread.shard_ranks}, spread.bucket_bytes, spread.first_bucket_bytes,
        spread.minimum_unit_bytes, spread.persistent_unit_bytes, std::uint64_t{spread.shared},
        std::uint64_t{spread.shard_stride}, std::uint64_t{spread.whole_rows},
        std::uint64_t{steps_of_.size()}, std::uint64_t{settings_.states}}) {
    text += std::to_string(number) + " ";
  }
  text += optimizer_kind_name(settings_.rule.kind);
  // The only option that gives the same number of vectors another meaning.
  if (settings_.rule.centered) text += " centered";
  if (loss_scale_.on()) text += " loss_scale";
  if (settings_.master_weights) text += " master_weights";
  if (matrices_ != nullptr) {
    for (const Matrix& matrix : matrices_->matrices) {
      text += ' ';
      text += std::to_string(matrix.parameter);
    }
  }
  for (const sharding::Fact& fact : model.registry_.facts()) {
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
  saved.norm = std::bit_cast<std::uint64_t>(norm_);
  saved.parameter_bytes = model.layout_->parameter_bytes;
  saved.state_bytes =
      state_bytes_ + masters_.bytes() + (factored_ != nullptr ? factored_->bytes() : 0);
  saved.bytes = sizeof saved + steps_of_.size() * sizeof steps_of_[0] + scale_bytes() +
                saved.parameter_bytes + saved.state_bytes;
  return saved;
}

std::uint64_t Optimizer::saved_bytes() const { return describe_saved().bytes; }

// Where one vector of a stretch lies in the saved state.
std::uint64_t Optimizer::saved_place(const Offload::Visited& visited, std::uint32_t vector) const {
  const SavedPlace& place = saved_places_[visited.number];
  return place.offset + vector * place.stride +
         visited.skipped * dtype_size(gradient_dtype(visited.piece.dtype));
}

Status Optimizer::save(char* state, std::uint64_t capacity) const {
  const Model& model = *model_;
  TRIREME_RETURN_IF_ERROR(model.check_sealed());
  if (model.reducer_->step_under_way()) return invalid_state("a step is under way");
  Saved saved = describe_saved();
  if (capacity < saved.bytes) {
    return invalid_argument("capacity " + std::to_string(capacity) + ", but the state takes " +
                            std::to_string(saved.bytes) + " bytes");
  }
  TRIREME_FAILPOINT("save", "before_copy");
  char* to = state + sizeof saved;
  const auto write = [&to](const void* from, std::uint64_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    to += bytes;
  };
  write(steps_of_.data(), steps_of_.size() * sizeof steps_of_[0]);
  write(&loss_scale_.state(), scale_bytes());
  if (model.parameter_file_ != nullptr) {
    TRIREME_RETURN_IF_ERROR(model.parameter_file_->expect_all());
  }
  for (std::size_t number = 0; number < model.layout_->groups.size(); ++number) {
    const Group& group = model.layout_->groups[number];
    TRIREME_RETURN_IF_ERROR(model.for_each_stretch(
        number, group.held, ParameterFile::Access::read,
        [&](const char* data, Range part) { write(data, part.count * dtype_size(group.dtype)); }));
  }
  if (offload_ == nullptr) {
    write(state_.data(), state_bytes_);
    write(masters_.data(), masters_.bytes());
    if (factored_ != nullptr) write(factored_->data(), factored_->bytes());
  } else {
    // As it would lie in memory, with what is between the pieces.
    if (saved.state_bytes > 0) std::memset(to, 0, saved.state_bytes);
    TRIREME_RETURN_IF_ERROR(offload_->sweep(Offload::Access::read, [&](Offload::Visited* visited) {
      for (std::uint32_t vector = 0; vector < settings_.states; ++vector) {
        std::memcpy(to + saved_place(*visited, vector), visited->piece.states[vector],
                    state_size(visited->piece));
      }
      return true;
    }));
  }
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
  // The checksum has no key: whoever wrote these may be no trireme.
  if (!optimizers::check_learning_rate(std::bit_cast<double>(out->learning_rate), {}).ok()) {
    return corrupt("the state's learning rate is no finite number from 0 on");
  }
  if (loss_scale_.on()) {
    std::memcpy(scale, state + sizeof *out + steps_of_.size() * sizeof steps_of_[0], sizeof *scale);
    if (!optimizers::is_loss_scale(scale->scale)) {
      return corrupt("the state's loss scale is no power of two in [2^-64, 2^64]");
    }
  }
  return Status::success();
}

Status Optimizer::load(const char* state, std::uint64_t bytes) {
  Model& model = *model_;
  TRIREME_RETURN_IF_ERROR(model.check_sealed());
  if (model.reducer_->step_under_way()) return invalid_state("a step is under way");
  TRIREME_RETURN_IF_ERROR(model.check_released("state is loaded"));
  if (model.pool_ != nullptr) TRIREME_RETURN_IF_ERROR(model.keep(model.pool_->drop_unused()));
  TRIREME_FAILPOINT("load", "before_agree");
  Saved saved;
  optimizers::LossScale::State scale;
  Status status = check_saved(state, bytes, &saved, &scale);
  // Nobody changes anything before everybody can. Afterwards nobody reads parameters any more.
  status =
      agree(model.link_,
            {{"the number of steps", std::to_string(saved.steps)},
             {"the learning rate's bits", std::to_string(saved.learning_rate)},
             {"the loss scale's bits", std::to_string(std::bit_cast<std::uint64_t>(scale.scale))},
             {"the number of skipped steps", std::to_string(scale.skipped_steps)},
             {"the number of steps since the scale changed", std::to_string(scale.clean_steps)},
             {"the number of overflows since the scale grew", std::to_string(scale.overflows)}},
            std::move(status));
  if (!status.ok()) {
    return model.link_.communicator->failure().ok() ? status : model.keep(std::move(status));
  }
  if (Status visit = failpoint("load", "before_copy"); !visit.ok()) {
    return model.keep(std::move(visit));
  }
  const char* from = state + sizeof saved;
  const auto read = [&from](void* to, std::uint64_t size) {
    if (size > 0) std::memcpy(to, from, size);
    from += size;
  };
  read(steps_of_.data(), steps_of_.size() * sizeof steps_of_[0]);
  read(&scale, scale_bytes());
  if (loss_scale_.on()) loss_scale_.restore(scale);
  overflow_ = {};
  for (std::size_t number = 0; number < model.layout_->groups.size(); ++number) {
    const Group& group = model.layout_->groups[number];
    const Status written = model.tell_disk(model.for_each_stretch(
        number, group.held, ParameterFile::Access::write,
        [&](char* data, Range part) { read(data, part.count * dtype_size(group.dtype)); }));
    if (!written.ok()) {
      model.give_up(written);
      return written;
    }
  }
  if (model.parameter_file_ != nullptr) {
    const Status closed = model.tell_disk(model.parameter_file_->close_window());
    if (!closed.ok()) {
      model.give_up(closed);
      return closed;
    }
  }
  if (offload_ == nullptr) {
    read(state_.data(), state_bytes_);
    read(masters_.data(), masters_.bytes());
    if (factored_ != nullptr) read(factored_->data(), factored_->bytes());
  } else {
    const Status written = offload_->sweep(Offload::Access::write, [&](Offload::Visited* visited) {
      for (std::uint32_t vector = 0; vector < settings_.states; ++vector) {
        std::memcpy(visited->piece.states[vector], from + saved_place(*visited, vector),
                    state_size(visited->piece));
      }
      visited->changed = true;
      return true;
    });
    count_offload();
    if (!written.ok()) {
      model.fail_groups(written.code(), written.message());
      model.give_up(written);
      return written;
    }
  }
  steps_ = saved.steps;
  settings_.learning_rate = std::bit_cast<double>(saved.learning_rate);
  norm_ = std::bit_cast<double>(saved.norm);
  has_group_norms_ = false;
  if (Status visit = failpoint("load", "after_copy"); !visit.ok()) {
    return model.keep(std::move(visit));
  }
  return model.layout_->spread.shared ? model.keep(model.link_.meet()) : Status::success();
}

}  // namespace trireme::strategies
