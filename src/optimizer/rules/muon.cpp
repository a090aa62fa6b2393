#include "optimizer/rules/muon.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "optimizer/rules/orthogonal.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/plan.hpp"
#include "sharding/whole_numbers.hpp"

namespace trireme::strategies {

using optimizers::Piece;
using sharding::Segment;

namespace {

// The factor of a matrix's rate.
double rate_factor(const optimizers::Settings& settings, const Matrix& matrix) {
  const auto rows = static_cast<double>(matrix.rows);
  const auto columns = static_cast<double>(matrix.columns);
  return settings.match_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                              : std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

MuonRule::MuonRule(const RuleParts& parts)
    : UpdateRule(parts), plan_(shard_.registry(), shard_.layout(), settings_) {}

RuleBytes MuonRule::plan(const optimizers::Settings& settings, const sharding::Registry& registry,
                         const sharding::Layout& layout, std::uint32_t rank) {
  const MatrixPlan plan(registry, layout, settings);
  RuleBytes bytes;
  bytes.state = plan.bytes[rank].state;
  bytes.working = plan.bytes[rank].working();
  bytes.given = plan.bytes[rank].given;
  return bytes;
}

Status MuonRule::allocate() {
  place_states();
  matrix_pieces_.resize(plan_.matrices.size());
  for (std::size_t i = 0; i < matrix_pieces_.size(); ++i) {
    for (std::size_t piece = 0; piece < pieces().size(); ++piece) {
      if (pieces()[piece].parameter != plan_.matrices[i].parameter) continue;
      matrix_pieces_[i].push_back(piece);
    }
  }
  const MatrixPlan::Bytes& own = plan_.bytes[shard_.link().rank()];
  for (const auto& [axis, most] : own.gathered) {
    TRIREME_RETURN_IF_ERROR(gathered_[axis].allocate(*shard_.axes().own_link(axis)->communicator,
                                                     shard_.storage()->allocated,
                                                     MemoryKind::working, most));
  }
  const std::uint64_t bytes = own.travelling();
  return bytes > 0 ? strategies::allocate(shard_, &memory_, MemoryKind::working, bytes)
                   : Status::success();
}

// Other matrices lie in other places.
std::string MuonRule::places() const {
  std::string text;
  for (const Matrix& matrix : plan_.matrices) text += ' ' + std::to_string(matrix.parameter);
  return text;
}

// Places vector by vector of each piece, f64 first.
void MuonRule::place_states() {
  char* place = state_.data();
  for (const std::uint64_t size : {sizeof(double), sizeof(float)}) {
    for (Piece& piece : state_.pieces()) {
      if (dtype_size(gradient_dtype(piece.dtype)) != size) continue;
      for (std::uint32_t i = 0; i < settings_.states_of(piece.matrix); ++i) {
        piece.states[i] = place;
        place += piece.count * size;
      }
    }
  }
}

Status MuonRule::update(const StepFactors& factors) {
  TRIREME_FAILPOINT("step", "before_update");
  for (const Piece& piece : pieces()) {
    TRIREME_FAILPOINT("step", "mid_update");
    if (factors.is_skipped(piece)) continue;
    const double scale = factors.scale_of(piece);
    if (piece.matrix) {
      optimizers::find_direction(settings_, piece, factors.step_of(piece), scale);
      continue;
    }
    TRIREME_RETURN_IF_ERROR(shard_.report_disk(
        state_.visit(piece, ParameterFile::Access::update, [&](const Piece& part) {
          optimizers::update_piece(settings_, part, factors.step_of(part), scale);
          return Status::success();
        })));
  }
  if (has_whole_matrices(shard_.layout())) {
    TRIREME_RETURN_IF_ERROR(orthogonalise_whole(factors));
  } else {
    for (std::size_t round = 0; round < plan_.rounds.size(); ++round) {
      TRIREME_RETURN_IF_ERROR(orthogonalise_round(round, factors));
    }
  }
  for (std::size_t i = 0; i < matrix_pieces_.size(); ++i) {
    const double factor = rate_factor(settings_, plan_.matrices[i]);
    for (const std::size_t number : matrix_pieces_[i]) {
      const Piece& piece = pieces()[number];
      if (factors.is_skipped(piece)) continue;
      TRIREME_RETURN_IF_ERROR(shard_.report_disk(
          state_.visit(piece, ParameterFile::Access::update, [&](const Piece& part) {
            optimizers::update_piece(settings_, part, factors.step_of(part), factor);
            return Status::success();
          })));
    }
  }
  return Status::success();
}

// Makes the whole matrix from the parts of all models along the axes, in the memory of the last
// axis. `data`: this model's part; null if it skips the matrix, whose part is then 0 for the
// others. Each element is on one model alone, so sums of its bits as whole numbers keep them. The
// sums along one axis go on along the next one.
Status MuonRule::gather(const Matrix& matrix, const void* data) {
  const Arena& whole = gathered_.at(matrix.axes.front());
  const std::uint64_t size = dtype_size(matrix.dtype);
  std::fill_n(whole.data(), matrix.whole_bytes(), 0);
  const sharding::Parameter& parameter = shard_.registry().parameters()[matrix.parameter];
  const sharding::WholeNumbers numbers(parameter);
  if (data != nullptr) {
    numbers.visit(0, matrix.elements,
                  [&](std::uint64_t first, std::uint64_t number, std::uint64_t count) {
                    std::memcpy(whole.data() + number * size,
                                static_cast<const char*>(data) + first * size, count * size);
                  });
  }
  const char* sums = whole.data();
  for (const std::string& axis : matrix.axes) {
    const Arena& memory = gathered_.at(axis);
    if (memory.data() != sums) std::memcpy(memory.data(), sums, matrix.whole_bytes());
    sums = memory.data();
    const Link& link = *shard_.axes().own_link(axis);
    Operation operation = in_place(link, link.gathers, OperationKind::all_reduce,
                                   size == sizeof(float) ? TRIREME_DTYPE_I32 : TRIREME_DTYPE_I64,
                                   memory.data(), matrix.rows * matrix.columns, memory.memory());
    operation.agreement = parameter.draw_key;
    operation.agreement_name = "matrix";
    TRIREME_FAILPOINT("step", "before_matrices");
    TRIREME_RETURN_IF_ERROR(shard_.axes().run_along(axis, std::move(operation)));
  }
  return Status::success();
}

// Orthogonalises a matrix in place. Of one with parts, `data` is this model's part.
Status MuonRule::orthogonalise(const Matrix& matrix, void* data) {
  const auto run = [&](void* whole, const std::function<Status()>& may_go_on) {
    char* const scratch = memory_.data() + plan_.bytes[shard_.link().rank()].travelling() -
                          sharding::piece(plan_.bytes[shard_.link().rank()].scratch);
    return optimizers::orthogonalise(matrix.dtype, whole, matrix.rows, matrix.columns,
                                     settings_.orthogonal_steps, scratch, may_go_on);
  };
  const auto own_failure = [&] { return shard_.link().communicator->failure(); };
  if (!matrix.is_part()) return run(data, own_failure);
  TRIREME_RETURN_IF_ERROR(gather(matrix, data));
  if (data == nullptr) return Status::success();
  char* const whole = gathered_.at(matrix.axes.back()).data();
  const auto no_failure = [&] {
    for (const std::string& axis : matrix.axes) {
      TRIREME_RETURN_IF_ERROR(shard_.axes().own_link(axis)->communicator->failure());
    }
    return own_failure();
  };
  TRIREME_RETURN_IF_ERROR(run(whole, no_failure));
  const std::uint64_t size = dtype_size(matrix.dtype);
  const sharding::WholeNumbers numbers(shard_.registry().parameters()[matrix.parameter]);
  numbers.visit(
      0, matrix.elements, [&](std::uint64_t first, std::uint64_t number, std::uint64_t count) {
        std::memcpy(static_cast<char*>(data) + first * size, whole + number * size, count * size);
      });
  return Status::success();
}

// Every rank has all directions: it orthogonalises its share, and gives each result to all.
Status MuonRule::orthogonalise_whole(const StepFactors& factors) {
  const auto data_of = [&](std::size_t i) -> void* {
    const bool none = matrix_pieces_[i].empty() || factors.is_skipped(plan_.matrices[i].parameter);
    return none ? nullptr : pieces()[matrix_pieces_[i].front()].gradients;
  };
  for (std::size_t i = 0; i < matrix_pieces_.size(); ++i) {
    const Matrix& matrix = plan_.matrices[i];
    void* const data = data_of(i);
    if (matrix.rank != shard_.link().rank() || (data == nullptr && !matrix.is_part())) continue;
    TRIREME_RETURN_IF_ERROR(orthogonalise(matrix, data));
  }
  if (shard_.link().world_size() == 1) return Status::success();
  for (std::size_t i = 0; i < matrix_pieces_.size(); ++i) {
    const Matrix& matrix = plan_.matrices[i];
    void* const data = data_of(i);
    if (data == nullptr) continue;
    Operation operation =
        in_place(shard_.link(), shard_.link().reductions, OperationKind::broadcast, matrix.dtype,
                 data, matrix.elements, shard_.storage()->hold());
    operation.root = static_cast<std::int32_t>(matrix.rank);
    operation.agreement = matrix.parameter;
    operation.agreement_name = "matrix";
    TRIREME_FAILPOINT("step", "before_matrices");
    if (matrix.rank == shard_.link().rank()) {
      shard_.link().given_bytes += matrix.bytes() * (shard_.link().world_size() - 1);
    }
    TRIREME_RETURN_IF_ERROR(shard_.link().run(std::move(operation)));
  }
  return Status::success();
}

// Sends all ranks' parts of one round's matrices to the ranks that compute with them, and the
// results back.
Status MuonRule::orthogonalise_round(std::size_t round, const StepFactors& factors) {
  const std::uint32_t ranks = shard_.link().world_size(), me = shard_.link().rank();
  const MatrixPlan::Bytes& bytes = plan_.bytes[me];
  char* const own = memory_.data();
  char* const assigned = own + sharding::piece(bytes.own);
  char* const whole = assigned + sharding::piece(bytes.assigned);

  std::vector<std::size_t> members, skipped;
  for (const std::size_t i : plan_.rounds[round]) {
    const Matrix& matrix = plan_.matrices[i];
    const bool skips = factors.is_skipped(matrix.parameter) || matrix.elements == 0;
    (skips ? skipped : members).push_back(i);
  }
  // Other models wait for this one all the same. Each model's ranks gather between the same two
  // exchanges: else two models that skip different matrices of a round would wait for each other.
  const auto gather_skipped = [&]() -> Status {
    for (const std::size_t i : skipped) {
      const Matrix& matrix = plan_.matrices[i];
      if (matrix.rank != me || !matrix.is_part()) continue;
      TRIREME_RETURN_IF_ERROR(orthogonalise(matrix, nullptr));
    }
    return Status::success();
  };
  if (members.empty()) return gather_skipped();
  const trireme_dtype dtype = plan_.matrices[members.front()].dtype;
  const std::uint64_t size = dtype_size(dtype);
  // Elements that a rank has for another one, and gets from it.
  std::vector<std::uint64_t> there(std::size_t{ranks} * ranks), back(there.size());
  for (const std::size_t i : members) {
    const Matrix& matrix = plan_.matrices[i];
    for (const Segment& segment : shard_.layout().segments[matrix.parameter]) {
      there[std::size_t{segment.owner} * ranks + matrix.rank] += segment.count;
      back[std::size_t{matrix.rank} * ranks + segment.owner] += segment.count;
    }
  }
  const auto exchange = [&](const char* from, char* to,
                            const std::vector<std::uint64_t>& counts) -> Status {
    Operation operation;
    operation.channel = shard_.link().reductions;
    operation.kind = OperationKind::all_to_all_v;
    operation.dtype = dtype;
    operation.send = from;
    operation.receive = to;
    operation.counts = counts;
    operation.agreement = round;
    operation.agreement_name = "round of matrices";
    operation.owner = memory_.memory();
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (rank != me) shard_.link().given_bytes += counts[std::size_t{me} * ranks + rank] * size;
    }
    TRIREME_FAILPOINT("step", "before_matrices");
    return shard_.link().run(std::move(operation));
  };
  // This rank's pieces, by the rank that computes with them.
  const auto visit_own = [&](const auto& copy) {
    std::uint64_t place = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (const std::size_t i : members) {
        if (plan_.matrices[i].rank != rank) continue;
        for (const std::size_t number : matrix_pieces_[i]) {
          const std::uint64_t part = pieces()[number].count * size;
          copy(own + place, pieces()[number].gradients, part);
          place += part;
        }
      }
    }
  };
  // The places of one assigned matrix's parts among all that this rank received.
  const auto visit_assigned = [&](std::size_t wanted, const auto& copy) {
    std::uint64_t place = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (const std::size_t i : members) {
        if (plan_.matrices[i].rank != me) continue;
        for (const Segment& segment : shard_.layout().segments[plan_.matrices[i].parameter]) {
          if (segment.owner != rank) continue;
          const std::uint64_t part = segment.count * size;
          if (i == wanted) copy(assigned + place, whole + segment.first * size, part);
          place += part;
        }
      }
    }
  };
  visit_own([](char* to, const void* piece, std::uint64_t part) { std::memcpy(to, piece, part); });
  TRIREME_RETURN_IF_ERROR(exchange(own, assigned, there));
  TRIREME_RETURN_IF_ERROR(gather_skipped());
  for (const std::size_t i : members) {
    const Matrix& matrix = plan_.matrices[i];
    if (matrix.rank != me) continue;
    visit_assigned(
        i, [](const char* given, char* to, std::uint64_t part) { std::memcpy(to, given, part); });
    TRIREME_RETURN_IF_ERROR(orthogonalise(matrix, whole));
    visit_assigned(i, [](char* given, const char* from, std::uint64_t part) {
      std::memcpy(given, from, part);
    });
  }
  TRIREME_RETURN_IF_ERROR(exchange(assigned, own, back));
  visit_own(
      [](const char* from, void* piece, std::uint64_t part) { std::memcpy(piece, from, part); });
  return Status::success();
}

}  // namespace trireme::strategies
