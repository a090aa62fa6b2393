#include "exchange/agreement.hpp"

#include <cstring>
#include <string>

#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "platform/utf8.hpp"

namespace trireme::strategies {
namespace {

struct Summary {
  std::uint64_t hash;
  std::uint64_t length;
  std::int64_t status;
};
constexpr std::uint64_t kWords = sizeof(Summary) / sizeof(std::uint64_t);

// FNV-1a: agreement needs a fixed function, and no defence against an adversary.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211ULL;
  }
  return hash;
}

std::vector<std::string> lines_of(const char* text, std::uint64_t length) {
  std::vector<std::string> lines(1);
  for (std::uint64_t i = 0; i < length; ++i) {
    if (text[i] == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += text[i];
    }
  }
  return lines;
}

// A line is "SUBJECT\tVALUE".
std::string part(const std::vector<std::string>& lines, std::size_t index, bool subject) {
  if (index >= lines.size() || lines[index].empty()) return subject ? "" : "missing";
  const std::size_t tab = lines[index].find('\t');
  if (tab == std::string::npos) return lines[index];
  return subject ? lines[index].substr(0, tab) : lines[index].substr(tab + 1);
}

Status first_difference(const std::vector<std::vector<std::string>>& texts) {
  for (std::size_t line = 0;; ++line) {
    bool any = false;
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      if (line < texts[rank].size()) any = true;
      const std::string mine = line < texts[rank].size() ? texts[rank][line] : "";
      const std::string first = line < texts[0].size() ? texts[0][line] : "";
      if (mine == first) continue;
      // Ranks of different versions or lengths may have different subjects in one line.
      std::string subject = part(texts[0], line, true);
      if (subject.empty()) subject = part(texts[rank], line, true);
      return Status::failure(
          TRIREME_ERROR_MISMATCH,
          clean_text(subject + " is " + part(texts[0], line, false) + " on rank 0 and " +
                     part(texts[rank], line, false) + " on rank " + std::to_string(rank)));
    }
    if (!any) {
      return Status::failure(TRIREME_ERROR_INTERNAL, "equal descriptions with unequal hashes");
    }
  }
}

// A peer's data is impossible. Peers may have received other data, and would wait for this rank, so
// the group fails.
Status refuse(const Link& link, const std::string& what) {
  link.communicator->fail(TRIREME_ERROR_CORRUPT, what);
  static_cast<void>(link.communicator->failure());  // the peers know it before the call returns
  return Status::failure(TRIREME_ERROR_CORRUPT, what);
}

// Fails the group for a lack of this rank alone: the others would wait for it, and a caller cannot
// always call again.
Status report(const Link& link, Status status) {
  if (status.code() == TRIREME_ERROR_OUT_OF_MEMORY || status.code() == TRIREME_ERROR_SYSTEM) {
    link.communicator->fail(status.code(), status.message());
    static_cast<void>(link.communicator->failure());  // the peers know it before the call returns
  }
  return status;
}

}  // namespace

Status agree(const Link& link, const char* call, const std::vector<sharding::Fact>& facts,
             const Status& local) {
  std::string text = std::string("the call\t") + call;
  for (const sharding::Fact& fact : facts) text += "\n" + fact.subject + "\t" + fact.value;
  const std::uint32_t ranks = link.world_size();

  std::shared_ptr<Memory> memory;
  TRIREME_RETURN_IF_ERROR(
      report(link, link.communicator->allocate(ranks * sizeof(Summary), &memory)));
  auto* all = static_cast<char*>(memory->data());
  const Summary own{hash_of(text), text.size(), local.code()};
  std::memcpy(all + link.rank() * sizeof(Summary), &own, sizeof own);
  Operation operation = in_place(link, link.gathers, OperationKind::all_gather, TRIREME_DTYPE_U64,
                                 all, kWords, memory);
  TRIREME_FAILPOINT("agree", "before_exchange");
  TRIREME_RETURN_IF_ERROR(
      report(link, link.communicator->run(std::move(operation), link.deadline())));
  TRIREME_FAILPOINT("agree", "after_exchange");

  std::vector<Summary> summaries(ranks);
  std::memcpy(summaries.data(), all, ranks * sizeof(Summary));
  if (!local.ok()) return local;
  // The lengths become places in memory, and peers can write to the memory that they came from.
  if (std::memcmp(&summaries[link.rank()], &own, sizeof own) != 0) {
    return refuse(link, "the words of this rank came back changed");
  }
  bool equal = true;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const Summary& summary = summaries[rank];
    if (summary.status != TRIREME_OK) {
      const std::string who = "rank " + std::to_string(rank);
      if (summary.status > 0 || summary.status < kLowestStatus) {
        return refuse(link, who + " answered a status that is none");
      }
      const auto code = static_cast<trireme_status>(summary.status);
      return Status::failure(code, who + " answered " + status_name(code));
    }
    equal = equal && summary.hash == own.hash && summary.length == own.length;
  }
  if (equal) return Status::success();

  std::vector<std::uint64_t> first(ranks + 1, 0);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    if (__builtin_add_overflow(first[rank], summaries[rank].length, &first[rank + 1])) {
      return refuse(link, "rank " + std::to_string(rank) + " tells more than memory can hold");
    }
  }
  TRIREME_RETURN_IF_ERROR(report(link, link.communicator->allocate(first[ranks], &memory)));
  all = static_cast<char*>(memory->data());
  std::memcpy(all + first[link.rank()], text.data(), text.size());
  operation = Operation();
  operation.channel = link.gathers;
  operation.kind = OperationKind::all_gather_v;
  operation.dtype = TRIREME_DTYPE_BYTES;
  operation.send = all + first[link.rank()];
  operation.receive = all;
  operation.count = first[ranks];
  operation.owner = memory;
  for (const Summary& summary : summaries) operation.counts.push_back(summary.length);
  TRIREME_FAILPOINT("agree", "before_texts");
  TRIREME_RETURN_IF_ERROR(
      report(link, link.communicator->run(std::move(operation), link.deadline())));
  std::vector<std::vector<std::string>> texts;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    texts.push_back(lines_of(all + first[rank], summaries[rank].length));
  }
  return first_difference(texts);
}

}  // namespace trireme::strategies
