// Optimizer: a rule that needs whole matrices, of which every rank has a part. Each is one rank's to
// compute with; the others go on with theirs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "optimizer/optimizer.hpp"
#include "optimizer/rules/orthogonal.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

using optimizers::Piece;
using sharding::Segment;

namespace {

// By what the rate of a matrix is multiplied.
double rate_factor(const optimizers::Settings& settings, const Matrix& matrix) {
  const auto rows = static_cast<double>(matrix.rows);
  const auto columns = static_cast<double>(matrix.columns);
  return settings.match_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                              : std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

void Optimizer::place_matrices() {
  if (matrices_ == nullptr) return;
  matrix_pieces_.resize(matrices_->matrices.size());
  for (std::size_t i = 0; i < matrix_pieces_.size(); ++i) {
    for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
      if (pieces_[piece].parameter != matrices_->matrices[i].parameter) continue;
      matrix_pieces_[i].push_back(piece);
    }
  }
}

// Vector by vector of each piece, those of f64 first.
void Optimizer::place_matrix_states() {
  char* place = state_.data();
  for (const std::uint64_t size : {sizeof(double), sizeof(float)}) {
    for (Piece& piece : pieces_) {
      if (dtype_size(gradient_dtype(piece.dtype)) != size) continue;
      for (std::uint32_t i = 0; i < settings_.states_of(piece.matrix); ++i) {
        piece.states[i] = place;
        place += piece.count * size;
      }
    }
  }
}

Status Optimizer::update_matrices(double norm) {
  TRIREME_FAILPOINT("step", "before_update");
  for (const Piece& piece : pieces_) {
    TRIREME_FAILPOINT("step", "mid_update");
    if (is_skipped(piece)) continue;
    const double scale = scale_of(piece.parameter, norm);
    if (piece.matrix) {
      optimizers::find_direction(settings_, piece, step_of(piece), scale);
      continue;
    }
    TRIREME_RETURN_IF_ERROR(model_->tell_disk(
        with_parameters(piece, ParameterFile::Access::update, [&](const Piece& part) {
          optimizers::update_piece(settings_, part, step_of(part), scale);
          return Status::success();
        })));
  }
  if (has_whole_matrices(*model_->layout_)) {
    TRIREME_RETURN_IF_ERROR(orthogonalise_whole());
  } else {
    for (std::size_t round = 0; round < matrices_->rounds.size(); ++round) {
      TRIREME_RETURN_IF_ERROR(orthogonalise_round(round));
    }
  }
  for (std::size_t i = 0; i < matrix_pieces_.size(); ++i) {
    const double factor = rate_factor(settings_, matrices_->matrices[i]);
    for (const std::size_t number : matrix_pieces_[i]) {
      const Piece& piece = pieces_[number];
      if (is_skipped(piece)) continue;
      TRIREME_RETURN_IF_ERROR(model_->tell_disk(
          with_parameters(piece, ParameterFile::Access::update, [&](const Piece& part) {
            optimizers::update_piece(settings_, part, step_of(part), factor);
            return Status::success();
          })));
    }
  }
  return Status::success();
}

// Every rank has all directions: it does its share, and gives each to all.
Status Optimizer::orthogonalise_whole() {
  Model& model = *model_;
  const auto piece_of = [&](std::size_t i) -> const Piece& {
    return pieces_[matrix_pieces_[i].front()];
  };
  for (std::size_t i = 0; i < matrix_pieces_.size(); ++i) {
    const Matrix& matrix = matrices_->matrices[i];
    if (matrix.rank != model.link_.rank() || is_skipped(piece_of(i))) continue;
    TRIREME_RETURN_IF_ERROR(
        optimizers::orthogonalise(matrix.dtype, piece_of(i).gradients, matrix.rows, matrix.columns,
                                  settings_.orthogonal_steps, matrix_memory_.data(),
                                  [&] { return model.link_.communicator->failure(); }));
  }
  if (model.link_.world_size() == 1) return Status::success();
  for (std::size_t i = 0; i < matrix_pieces_.size(); ++i) {
    const Matrix& matrix = matrices_->matrices[i];
    if (is_skipped(piece_of(i))) continue;
    Operation operation;
    operation.channel = model.link_.reductions;
    operation.kind = OperationKind::broadcast;
    operation.dtype = matrix.dtype;
    operation.root = static_cast<std::int32_t>(matrix.rank);
    operation.receive = piece_of(i).gradients;
    operation.count = matrix.elements();
    operation.agreement = matrix.parameter;
    operation.agreement_name = "matrix";
    operation.owner = model.storage_->hold();
    TRIREME_FAILPOINT("step", "before_matrices");
    if (matrix.rank == model.link_.rank()) {
      model.link_.given_bytes += matrix.bytes() * (model.link_.world_size() - 1);
    }
    TRIREME_RETURN_IF_ERROR(model.link_.run(std::move(operation)));
  }
  return Status::success();
}

// What every rank has of the matrices of one round goes to those that compute with them, and comes
// back.
Status Optimizer::orthogonalise_round(std::size_t round) {
  Model& model = *model_;
  const std::uint32_t ranks = model.link_.world_size(), me = model.link_.rank();
  const MatrixPlan::Bytes& bytes = matrices_->bytes[me];
  char* const own = matrix_memory_.data();
  char* const assigned = own + sharding::piece(bytes.own);
  char* const whole = assigned + sharding::piece(bytes.assigned);
  char* const scratch = whole + sharding::piece(bytes.whole);

  std::vector<std::size_t> members;
  for (const std::size_t i : matrices_->rounds[round]) {
    const bool skipped = !skipped_.empty() && skipped_[matrices_->matrices[i].parameter];
    if (!skipped) members.push_back(i);
  }
  if (members.empty()) return Status::success();
  const trireme_dtype dtype = matrices_->matrices[members.front()].dtype;
  const std::uint64_t size = dtype_size(dtype);
  // Elements that a rank has for another, and has of it.
  std::vector<std::uint64_t> there(std::size_t{ranks} * ranks), back(there.size());
  for (const std::size_t i : members) {
    const Matrix& matrix = matrices_->matrices[i];
    for (const Segment& segment : model.layout_->segments[matrix.parameter]) {
      there[std::size_t{segment.owner} * ranks + matrix.rank] += segment.count;
      back[std::size_t{matrix.rank} * ranks + segment.owner] += segment.count;
    }
  }
  const auto exchange = [&](const char* from, char* to,
                            const std::vector<std::uint64_t>& counts) -> Status {
    Operation operation;
    operation.channel = model.link_.reductions;
    operation.kind = OperationKind::all_to_all_v;
    operation.dtype = dtype;
    operation.send = from;
    operation.receive = to;
    operation.counts = counts;
    operation.agreement = round;
    operation.agreement_name = "round of matrices";
    operation.owner = matrix_memory_.memory();
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (rank != me) model.link_.given_bytes += counts[std::size_t{me} * ranks + rank] * size;
    }
    TRIREME_FAILPOINT("step", "before_matrices");
    return model.link_.run(std::move(operation));
  };
  // This rank's pieces, by the rank that computes with them.
  const auto visit_own = [&](const auto& copy) {
    std::uint64_t place = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (const std::size_t i : members) {
        if (matrices_->matrices[i].rank != rank) continue;
        for (const std::size_t number : matrix_pieces_[i]) {
          const std::uint64_t part = pieces_[number].count * size;
          copy(own + place, pieces_[number].gradients, part);
          place += part;
        }
      }
    }
  };
  // Where the parts of one of this rank's matrices lie among all that it was given.
  const auto visit_assigned = [&](std::size_t wanted, const auto& copy) {
    std::uint64_t place = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (const std::size_t i : members) {
        if (matrices_->matrices[i].rank != me) continue;
        for (const Segment& segment : model.layout_->segments[matrices_->matrices[i].parameter]) {
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
  for (const std::size_t i : members) {
    const Matrix& matrix = matrices_->matrices[i];
    if (matrix.rank != me) continue;
    visit_assigned(
        i, [](const char* given, char* to, std::uint64_t part) { std::memcpy(to, given, part); });
    TRIREME_RETURN_IF_ERROR(optimizers::orthogonalise(
        dtype, whole, matrix.rows, matrix.columns, settings_.orthogonal_steps, scratch,
        [&] { return model.link_.communicator->failure(); }));
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
