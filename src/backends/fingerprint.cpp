#include "backends/fingerprint.hpp"

#include <bit>
#include <cstdio>
#include <cstring>

#include "backends/parts.hpp"
#include "platform/names.hpp"

namespace trireme {
namespace {

constexpr std::size_t kCompared = offsetof(Fingerprint, agreement_name);

std::uint64_t hash_counts(const std::vector<std::uint64_t>& counts) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::uint64_t count : counts) {
    hash = (hash ^ count) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

std::string exact(std::uint64_t bits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", std::bit_cast<double>(bits));
  return text;
}

std::string describe(const Fingerprint& print) {
  const auto kind = static_cast<OperationKind>(print.kind);
  std::string text = operation_name(kind);
  if (kind == OperationKind::barrier) return text + "()";
  const bool counted = kind != OperationKind::all_to_all_v;  // ranks have different counts
  text += "(";
  if (reduces(kind)) text += std::string(reduction_name(print.reduction)) + ", ";
  text += dtype_name(print.dtype);
  if (counted) text += ", count " + std::to_string(print.count);
  if (has_root(kind)) text += ", root " + std::to_string(print.root);
  return text + ")";
}

std::string describe_with_model(const Fingerprint& print) {
  const std::string whose =
      print.model == 0 ? " of no model" : " of model " + std::to_string(print.model);
  return describe(print) + whose;
}

// The first difference of two calls whose descriptions are equal.
std::string difference(const Fingerprint& a, const Fingerprint& b) {
  if (a.sequence != b.sequence) {
    return ": they are at sequences " + std::to_string(a.sequence) + " and " +
           std::to_string(b.sequence);
  }
  const auto name_of = [](const Fingerprint& print) {
    return std::string(print.agreement_name,
                       strnlen(print.agreement_name, sizeof print.agreement_name));
  };
  std::string name = name_of(a);
  std::string other = name_of(b);
  if (name != other && !name.empty() && !other.empty()) {
    if (name == kTuningTables) name.clear();
    if (other == kTuningTables) other.clear();
  }
  if (a.agreement != b.agreement && !name.empty() && !other.empty() && name != other) {
    return ", one of " + name + " and one of " + other;
  }
  if (describe(a) != describe(b)) return "";
  if (a.counts_hash != b.counts_hash) return " with different counts";
  if (a.scale_bits != b.scale_bits) {
    return " with scales " + exact(a.scale_bits) + " and " + exact(b.scale_bits);
  }
  if (a.reproducible != b.reproducible) return ", one of them reproducible";
  if (a.agreement != b.agreement) {
    return " with different " + (!name.empty() ? name : !other.empty() ? other : "settings");
  }
  // After what may be their reason.
  if (a.algorithm != b.algorithm) return " with different algorithms";
  return "";
}

}  // namespace

Fingerprint fingerprint_of(const Operation& operation, std::uint64_t sequence) {
  const Operation& called = operation.as_called();
  Fingerprint print{};
  write_plain_fingerprint(called, sequence, &print);
  print.counts_hash = operation.counts.empty() ? 0 : hash_counts(operation.counts);
  if (operation.called != nullptr) {
    print.counts_hash ^= hash_counts({operation.count, called.counts.size()});
  }
  print.agreement = operation.agreement;
  print.algorithm = static_cast<std::int16_t>(operation.algorithm);  // a step's may differ
  print.model = operation.model;
  if (operation.agreement_name != nullptr) {
    std::memcpy(print.agreement_name, operation.agreement_name,
                strnlen(operation.agreement_name, sizeof print.agreement_name - 1));
  }
  return print;
}

Status compare_fingerprints(const std::vector<CalledBy>& prints, const char* operation,
                            std::uint64_t sequence, const std::string& group) {
  const auto& [first_rank, first] = prints[0];
  for (const auto& [rank, other] : prints) {
    if (std::memcmp(&first, &other, kCompared) == 0) continue;
    FailureDetails details{operation, group, sequence, {first_rank, rank}, 0};
    const bool of_models = first.model != 0 || other.model != 0;
    const auto called = [of_models](const Fingerprint& print) {
      return of_models ? describe_with_model(print) : describe(print);
    };
    return Status::failure(TRIREME_ERROR_MISMATCH, "rank " + std::to_string(first_rank) +
                                                       " called " + called(first) + " and rank " +
                                                       std::to_string(rank) + " called " +
                                                       called(other) + difference(first, other))
        .with_details(std::move(details));
  }
  return Status::success();
}

}  // namespace trireme
