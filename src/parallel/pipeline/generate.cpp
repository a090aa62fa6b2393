#include "parallel/pipeline/generate.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "parallel/pipeline/generate_v.hpp"
#include "parallel/pipeline/walk.hpp"

namespace trireme::pipeline {
namespace {

using Lists = std::vector<std::vector<Action>>;

struct Synonym {
  const char* text;
  Name name;
};
// Letters and digits alone, in lower case. The first one of a name is its own.
constexpr Synonym kSynonyms[] = {
    {"gpipe", Name::kGPipe},
    {"1f1b", Name::k1F1B},
    {"interleaved", Name::kInterleaved},
    {"interleaved1f1b", Name::kInterleaved},
    {"loopedbfs", Name::kLoopedBfs},
    {"zbh1", Name::kZbH1},
    {"zerobubbleh1", Name::kZbH1},
    {"zb1p", Name::kZbH1},
    {"zbh2", Name::kZbH2},
    {"zerobubbleh2", Name::kZbH2},
    {"zb2p", Name::kZbH2},
    {"zbv", Name::kZbV},
    {"zbvzerobubble", Name::kZbV},
    {"zerobubblev", Name::kZbV},
    {"vhalf", Name::kVHalf},
    {"vmin", Name::kVMin},
    {"dualpipev", Name::kDualPipeV},
    {"wave", Name::kWave},
    {"hanayo", Name::kWave},
    {"best", Name::kBest},
};

// One stage a rank. F of the first `warm` micro-batches, then I, W and F in turn; W comes `late`
// micro-batches behind I. With `whole`, B takes the place of I and W.
void add_turns(std::uint32_t rank, std::uint32_t micro_batches, std::uint32_t warm,
               std::uint32_t late, bool forward_first, std::vector<Action>* list) {
  std::uint32_t forward = 0, weight = 0;
  const auto add = [&](trireme_pipeline_kind kind, std::uint32_t micro_batch) {
    list->push_back({kind, rank, micro_batch, 0});
  };
  while (forward < std::min(warm, micro_batches)) add(TRIREME_PIPELINE_KIND_F, forward++);
  for (std::uint32_t k = 0; k < micro_batches; ++k) {
    if (forward_first && forward < micro_batches) add(TRIREME_PIPELINE_KIND_F, forward++);
    add(TRIREME_PIPELINE_KIND_I, k);
    if (k >= late) add(TRIREME_PIPELINE_KIND_W, weight++);
    if (!forward_first && forward < micro_batches) add(TRIREME_PIPELINE_KIND_F, forward++);
  }
  while (weight < micro_batches) add(TRIREME_PIPELINE_KIND_W, weight++);
}

Lists one_f_one_b(const Shape& shape) {
  Lists lists(shape.ranks);
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
    const std::uint32_t warm = std::min(shape.ranks - 1 - rank, shape.micro_batches);
    for (std::uint32_t k = 0; k < warm; ++k) {
      lists[rank].push_back({TRIREME_PIPELINE_KIND_F, rank, k, 0});
    }
    for (std::uint32_t k = 0; k < shape.micro_batches; ++k) {
      if (warm + k < shape.micro_batches) {
        lists[rank].push_back({TRIREME_PIPELINE_KIND_F, rank, warm + k, 0});
      }
      lists[rank].push_back({TRIREME_PIPELINE_KIND_B, rank, k, 0});
    }
  }
  return lists;
}

// All forward, stage by stage, then all backward in the other direction.
Lists breadth_first(const Shape& shape) {
  Lists lists(shape.ranks);
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
    for (std::uint32_t chunk = 0; chunk < shape.stages_per_rank; ++chunk) {
      for (std::uint32_t k = 0; k < shape.micro_batches; ++k) {
        lists[rank].push_back({TRIREME_PIPELINE_KIND_F, chunk * shape.ranks + rank, k, 0});
      }
    }
    for (std::uint32_t chunk = shape.stages_per_rank; chunk-- > 0;) {
      for (std::uint32_t k = 0; k < shape.micro_batches; ++k) {
        lists[rank].push_back({TRIREME_PIPELINE_KIND_B, chunk * shape.ranks + rank, k, 0});
      }
    }
  }
  return lists;
}

// Groups of as many micro-batches as ranks go through the stages of a rank one after the other. The
// last group may be short, or, with `merged`, has the rest, too. 1F1B over this order.
Lists interleaved(const Shape& shape, bool merged) {
  const std::uint32_t p = shape.ranks, v = shape.stages_per_rank, m = shape.micro_batches;
  struct Turn {
    std::uint32_t chunk, micro_batch;
  };
  std::vector<Turn> forward, backward;
  std::uint32_t longest = p;
  for (std::uint32_t begin = 0, end = 0; begin < m; begin = end) {
    end = std::min(begin + p, m);
    if (merged && m - end < p) end = m;
    longest = std::max(longest, end - begin);
    for (std::uint32_t chunk = 0; chunk < v; ++chunk) {
      for (std::uint32_t k = begin; k < end; ++k) {
        forward.push_back({chunk, k});
        backward.push_back({v - 1 - chunk, k});
      }
    }
  }
  Lists lists(p);
  for (std::uint32_t rank = 0; rank < p; ++rank) {
    std::size_t next = 0;
    const auto advance = [&] {
      if (next == forward.size()) return;
      const Turn& turn = forward[next++];
      lists[rank].push_back({TRIREME_PIPELINE_KIND_F, turn.chunk * p + rank, turn.micro_batch, 0});
    };
    for (std::uint32_t i = 0; i < 2 * (p - rank - 1) + (v - 1) * longest; ++i) advance();
    for (const Turn& turn : backward) {
      advance();
      lists[rank].push_back({TRIREME_PIPELINE_KIND_B, turn.chunk * p + rank, turn.micro_batch, 0});
    }
  }
  return lists;
}

bool can_run(const Schedule& schedule) {
  return Walk(schedule, 0).run([](std::uint32_t, std::uint64_t, const Action&, const Need&) {});
}

Lists zero_bubble_h1(const Shape& shape) {
  Lists lists(shape.ranks);
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
    add_turns(rank, shape.micro_batches, shape.ranks - rank - 1, rank, true, &lists[rank]);
  }
  return lists;
}

Lists zero_bubble_h2(const Shape& shape) {
  Lists lists(shape.ranks);
  for (std::uint32_t rank = 0; rank < shape.ranks; ++rank) {
    add_turns(rank, shape.micro_batches, 2 * (shape.ranks - rank) - 1, 2 * rank, false,
              &lists[rank]);
  }
  return lists;
}

}  // namespace

const char* name_of(Name name) {
  constexpr std::array<const char*, kNames + 1> kTexts = {
      "?",   "gpipe",  "1f1b",  "interleaved", "looped-bfs", "zb-h1", "zb-h2",
      "zbv", "v-half", "v-min", "dualpipe-v",  "wave",       "best"};
  return kTexts[static_cast<std::size_t>(name)];
}

bool parse_name(const std::string& text, Name* out) {
  std::string plain;
  for (const char each : text) {
    if (each == '-' || each == '_' || each == ' ') continue;
    plain += static_cast<char>(std::tolower(static_cast<unsigned char>(each)));
  }
  for (const Synonym& synonym : kSynonyms) {
    if (plain == synonym.text) {
      *out = synonym.name;
      return true;
    }
  }
  return false;
}

Placement placement_of(Name name) {
  switch (name) {
    case Name::kZbV:
    case Name::kVHalf:
    case Name::kVMin:
    case Name::kDualPipeV: return Placement::kV;
    case Name::kWave: return Placement::kWave;
    default: return Placement::kLoop;
  }
}

Status check_shape(Name name, const Shape& shape) {
  TRIREME_RETURN_IF_ERROR(check_sizes(
      shape.ranks, std::uint64_t{shape.ranks} * shape.stages_per_rank, shape.micro_batches));
  std::uint32_t wanted = 0;
  switch (name) {
    case Name::k1F1B:
    case Name::kZbH1:
    case Name::kZbH2: wanted = 1; break;
    case Name::kZbV:
    case Name::kVHalf:
    case Name::kVMin:
    case Name::kDualPipeV: wanted = 2; break;
    case Name::kInterleaved:
      if (shape.stages_per_rank > 1) return Status::success();
      return invalid_argument("interleaved has 2 or more stages a rank, not 1; take 1f1b");
    default: return Status::success();
  }
  if (shape.stages_per_rank == wanted) return Status::success();
  return invalid_argument(std::string(name_of(name)) + " has " + std::to_string(wanted) +
                          (wanted == 1 ? " stage" : " stages") + " a rank, not " +
                          std::to_string(shape.stages_per_rank));
}

Schedule generate(Name name, const Shape& shape) {
  Schedule out;
  out.micro_batches = shape.micro_batches;
  out.rank_of = place(placement_of(name), shape.ranks, shape.stages_per_rank);
  switch (name) {
    case Name::kGPipe:
    case Name::kLoopedBfs: put_lists(breadth_first(shape), &out); break;
    case Name::k1F1B: put_lists(one_f_one_b(shape), &out); break;
    case Name::kInterleaved:
      put_lists(interleaved(shape, false), &out);
      // A short last group of three or more stages may meet itself.
      if (!can_run(out)) put_lists(interleaved(shape, true), &out);
      break;
    case Name::kZbH1: put_lists(zero_bubble_h1(shape), &out); break;
    case Name::kZbH2: put_lists(zero_bubble_h2(shape), &out); break;
    case Name::kZbV: put_lists(zero_bubble_v(shape), &out); break;
    case Name::kDualPipeV: put_lists(dual_pipe_v(shape), &out); break;
    case Name::kVHalf: put_lists(v_half(shape), &out); break;
    case Name::kVMin: put_lists(v_min(shape), &out); break;
    default: put_lists(wave(shape), &out); break;
  }
  return out;
}

}  // namespace trireme::pipeline
