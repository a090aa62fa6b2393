#include "schedules/tuning.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

namespace trireme {
namespace {

constexpr std::string_view kFirstLine = "trireme tuning 1";
constexpr std::size_t kMostBackendBytes = 128;
// An algorithm that is less than this faster may be so by noise.
constexpr double kWorthIt = 1.05;

constexpr bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// Takes the first word off `rest`.
std::string_view take_word(std::string_view* rest) {
  std::size_t length = 0;
  while (length < rest->size() && !is_blank((*rest)[length])) ++length;
  const std::string_view word = rest->substr(0, length);
  *rest = trimmed(rest->substr(length));
  return word;
}

// For a message: not too long, and of printable ASCII alone.
std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string out = "\"";
  for (const char c : text.substr(0, kMost)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > kMost ? "...\"" : "\"");
}

template <class Number>
bool read_number(std::string_view text, Number* out) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && stop == end && !text.empty();
}

std::optional<Pattern> pattern_named(std::string_view name) {
  for (int number = 0; number < kPatterns; ++number) {
    const auto pattern = static_cast<Pattern>(number);
    if (name == pattern_name(pattern)) return pattern;
  }
  return std::nullopt;
}

std::optional<Algorithm> algorithm_named(std::string_view name) {
  for (std::int32_t number = 0; number < kAlgorithms; ++number) {
    const auto algorithm = static_cast<Algorithm>(number);
    if (name == algorithm_name(algorithm)) return algorithm;
  }
  return std::nullopt;
}

std::string known_patterns() {
  std::string all;
  for (int number = 0; number < kPatterns; ++number) {
    all += std::string(number == 0 ? "" : ", ") + pattern_name(static_cast<Pattern>(number));
  }
  return all;
}

std::string read_group(std::string_view rest, const std::vector<TunedGroup>& before,
                       TunedGroup* out) {
  const std::string_view ranks = take_word(&rest);
  if (!read_number(ranks, &out->ranks) || out->ranks < 1 || out->ranks > TuningTable::kMostRanks) {
    return "group " + quoted(ranks) + " is no number of ranks from 1 to " +
           std::to_string(TuningTable::kMostRanks);
  }
  if (rest.empty() || rest.size() > kMostBackendBytes) {
    return "behind the number of ranks stands a backend, such as " +
           quoted("hierarchical (2 hosts x 2)");
  }
  out->backend = rest;
  for (const TunedGroup& group : before) {
    if (group.ranks == out->ranks && group.backend == rest) {
      return "there is a group of " + std::to_string(out->ranks) + " ranks with backend " +
             quoted(rest) + " already";
    }
  }
  return "";
}

std::string read_rule(std::string_view line, TunedGroup* group) {
  std::string_view rest = line;
  const std::string_view operation = take_word(&rest);
  const std::optional<Pattern> pattern = pattern_named(operation);
  if (!pattern.has_value()) {
    return quoted(operation) + " is no operation; these are: " + known_patterns();
  }
  TuningRule rule{*pattern, 0, Algorithm::automatic};
  const std::string_view bytes = take_word(&rest);
  if (!read_number(bytes, &rule.from)) return quoted(bytes) + " is no number of bytes";
  const std::string_view name = take_word(&rest);
  const std::optional<Algorithm> algorithm = algorithm_named(name);
  const bool is_schedule = algorithm.has_value() && supports(*algorithm, *pattern);
  if (!is_schedule && algorithm != Algorithm::automatic && algorithm != Algorithm::native) {
    return quoted(name) + " is no algorithm of " + pattern_name(*pattern) + "; it has " +
           supported_algorithms(*pattern) + ", native, and automatic";
  }
  rule.algorithm = *algorithm;
  if (!rest.empty()) return quoted(rest) + " stands behind the algorithm";
  for (const TuningRule& before : group->rules) {
    if (before.pattern == rule.pattern && before.from >= rule.from) {
      return std::string(pattern_name(*pattern)) + " from " + std::to_string(rule.from) +
             " bytes stands behind that from " + std::to_string(before.from) +
             "; the rules of an operation go upwards";
    }
  }
  group->rules.push_back(rule);
  return "";
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const std::size_t middle = values.size() / 2;
  std::sort(values.begin(), values.end());
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

const char* pattern_name(Pattern pattern) {
  switch (pattern) {
    case Pattern::all_reduce: return "all_reduce";
    case Pattern::reduce_scatter: return "reduce_scatter";
    case Pattern::all_gather: return "all_gather";
    case Pattern::broadcast: return "broadcast";
    case Pattern::reduce: return "reduce";
    case Pattern::gather: return "gather";
    case Pattern::scatter: return "scatter";
    case Pattern::all_to_all: return "all_to_all";
    case Pattern::barrier: return "barrier";
  }
  return "unknown";
}

Algorithm TunedGroup::choose(Pattern pattern, std::uint64_t bytes) const {
  Algorithm chosen = Algorithm::automatic;
  for (const TuningRule& rule : rules) {
    if (rule.pattern == pattern && rule.from <= bytes) chosen = rule.algorithm;
  }
  return chosen;
}

std::string TuningTable::parse(std::string_view text, TuningTable* out) {
  if (text.size() > kMostBytes) {
    return "it is longer than " + std::to_string(kMostBytes) + " bytes";
  }
  TuningTable table;
  bool begun = false;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view whole = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(whole.size() + 1, text.size()));
    const std::string_view line = trimmed(whole.substr(0, whole.find('#')));
    std::string fault;
    if (!begun) {
      if (line != kFirstLine) {
        fault = quoted(trimmed(whole)) + " is not " + quoted(kFirstLine) +
                ", with which a table begins";
      }
      begun = true;
    } else if (!line.empty()) {
      std::string_view rest = line;
      if (take_word(&rest) == "group") {
        TunedGroup group;
        fault = read_group(rest, table.groups_, &group);
        table.groups_.push_back(std::move(group));
      } else if (table.groups_.empty()) {
        fault = quoted(line) + " stands before the first group";
      } else {
        fault = read_rule(line, &table.groups_.back());
      }
    }
    if (!fault.empty()) return "line " + std::to_string(number) + ": " + fault;
  }
  if (!begun) return "it is empty";
  *out = std::move(table);
  return "";
}

const TunedGroup* TuningTable::find(int ranks, std::string_view backend) const {
  for (const TunedGroup& group : groups_) {
    if (group.ranks == ranks && group.backend == backend) return &group;
  }
  return nullptr;
}

std::uint64_t TuningTable::digest() const {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  for (const TunedGroup& group : groups_) {
    add(static_cast<std::uint64_t>(group.ranks));
    add(group.backend.size());
    for (const char c : group.backend) add(static_cast<unsigned char>(c));
    add(group.rules.size());
    for (const TuningRule& rule : group.rules) {
      add(static_cast<std::uint64_t>(rule.pattern));
      add(rule.from);
      add(static_cast<std::uint64_t>(rule.algorithm));
    }
  }
  return hash == 0 ? 1 : hash;
}

TunedChoice choose_tuned(const std::vector<TunedCandidate>& candidates) {
  const auto own = std::find_if(candidates.begin(), candidates.end(), [](const auto& each) {
    return each.algorithm == Algorithm::automatic;
  });
  TunedChoice best;
  if (own == candidates.end()) return best;
  for (const TunedCandidate& candidate : candidates) {
    if (candidate.algorithm == Algorithm::automatic) continue;
    std::vector<double> factors;
    std::size_t faster = 0;
    const std::size_t rounds = std::min(candidate.rounds.size(), own->rounds.size());
    for (std::size_t i = 0; i < rounds; ++i) {
      if (candidate.rounds[i] <= 0) return {};  // a clock that stands still has measured nothing
      factors.push_back(own->rounds[i] / candidate.rounds[i]);
      faster += factors.back() > 1 ? 1 : 0;
    }
    // A rule needs both: a median above the noise, and most rounds on its side.
    const double factor = median(factors);
    if (factor < kWorthIt || faster * 4 < rounds * 3 || factor <= best.factor) continue;
    best = {candidate.algorithm, factor};
  }
  return best;
}

std::string tuning_text(int ranks, std::string_view backend, const std::vector<TunedSize>& sizes,
                        const std::vector<std::string>& remarks) {
  std::string text = std::string(kFirstLine) + "\n";
  for (const std::string& remark : remarks) text += "# " + remark + "\n";
  text += "group " + std::to_string(ranks) + " " + std::string(backend) + "\n";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const TunedSize& size = sizes[i];
    const bool first = i == 0 || sizes[i - 1].pattern != size.pattern;
    const Algorithm before = first ? Algorithm::automatic : sizes[i - 1].choice.algorithm;
    const Algorithm algorithm = size.choice.algorithm;
    const std::string operation = pattern_name(size.pattern);
    if (algorithm != before) {
      text += operation + " " + std::to_string(size.bytes) + " " + algorithm_name(algorithm);
      if (algorithm != Algorithm::automatic) {
        char note[40];
        std::snprintf(note, sizeof note, "  # %.2f times as fast", size.choice.factor);
        text += note;
      }
      text += "\n";
    }
    // A barrier has no bytes.
    const bool last = i + 1 == sizes.size() || sizes[i + 1].pattern != size.pattern;
    const bool has_more = size.bytes > 0 && size.bytes <= UINT64_MAX / 2;
    if (last && has_more && algorithm != Algorithm::automatic) {
      text += operation + " " + std::to_string(2 * size.bytes) + " automatic  # not measured\n";
    }
  }
  return text;
}

}  // namespace trireme
