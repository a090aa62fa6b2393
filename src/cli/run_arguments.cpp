#include "cli/run_arguments.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <optional>
#include <string_view>

namespace trireme::cli {
namespace {

struct Known {
  std::string_view name;
  bool has_value;
};
constexpr Known kKnown[] = {
    {"--nproc-per-node", true}, {"--nnodes", true},       {"--node-rank", true},
    {"--rdzv-endpoint", true},  {"--rdzv-backend", true}, {"--rdzv-id", true},
    {"--rdzv-conf", true},      {"--master-addr", true},  {"--master-port", true},
    {"--standalone", false},    {"--max-restarts", true}, {"--keep-survivors", false},
    {"--bind-cores", false},    {"--bind-gpus", false},   {"--module", false},
    {"--no-python", false},     {"--no-prefix", false},   {"--log-dir", true},
    {"--grace", true},          {"--help", false},
};

// How many letters must be inserted, removed or changed.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::optional<Known> find(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kKnown), std::end(kKnown),
                                         [&](const Known& each) { return each.name == name; });
  return found == std::end(kKnown) ? std::nullopt : std::optional(*found);
}

[[noreturn]] void refuse(const std::string& word, std::string_view name) {
  const auto* const nearest =
      std::min_element(std::begin(kKnown), std::end(kKnown), [&](const Known& a, const Known& b) {
        return distance(name, a.name) < distance(name, b.name);
      });
  std::string text = "trireme run knows no such option";
  if (distance(name, nearest->name) <= std::max<std::size_t>(2, name.size() / 3)) {
    text += "; did you mean " + std::string(nearest->name) + "?";
  }
  throw CLI::ValidationError(word, text);
}

bool is_script(const std::string& file) { return file.size() > 3 && file.ends_with(".py"); }

// Whether the file is executable, with an interpreter of its own choice.
bool names_its_interpreter(const std::string& file) {
  char begin[2] = {};
  std::ifstream(file, std::ios::binary).read(begin, sizeof begin);
  return begin[0] == '#' && begin[1] == '!' && access(file.c_str(), X_OK) == 0 &&
         file.find('/') != std::string::npos;
}

}  // namespace

RunArguments split_run_arguments(const std::vector<std::string>& words) {
  RunArguments out;
  bool no_python = false, is_module = false;
  std::size_t at = 0;
  for (; at < words.size(); ++at) {
    const std::string& word = words[at];
    if (word == "--") {
      ++at;
      break;
    }
    if (word.empty() || word[0] != '-') break;  // the program
    if (word == "-h") {
      out.options.push_back(word);
      continue;
    }
    const std::size_t equals = word.find('=');
    std::string name = word == "-m" ? "--module" : word.substr(0, equals);
    std::replace(name.begin(), name.end(), '_', '-');
    const std::optional<Known> known = find(name);
    if (!known) refuse(word.substr(0, equals), name);
    if (!known->has_value && equals != word.npos) {
      throw CLI::ValidationError(name, "takes no value");
    }
    if (name == "--module" || name == "--no-python") {
      (name == "--module" ? is_module : no_python) = true;
      continue;
    }
    if (!known->has_value) {
      out.options.push_back(name);
    } else if (equals != word.npos) {
      out.options.push_back(name + word.substr(equals));
    } else if (at + 1 < words.size() && words[at + 1] != "--") {
      out.options.push_back(name + "=" + words[++at]);
    } else {
      throw CLI::ValidationError(name, "a value is missing");
    }
  }
  out.program.assign(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  if (is_module && no_python) {
    throw CLI::ValidationError("--no-python", "a module is run by Python");
  }
  const bool by_python = !no_python && !is_module && !out.program.empty() &&
                         is_script(out.program[0]) && !names_its_interpreter(out.program[0]);
  if (!out.program.empty() && (is_module || by_python)) {
    const char* const own = std::getenv("TRIREME_PYTHON");
    std::vector<std::string> python = {own != nullptr && *own != 0 ? own : "python3", "-u"};
    if (is_module) python.emplace_back("-m");
    out.program.insert(out.program.begin(), python.begin(), python.end());
  }
  return out;
}

}  // namespace trireme::cli
