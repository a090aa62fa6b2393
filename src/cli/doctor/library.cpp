// Facts of the library.
#include <dlfcn.h>
#include <trireme/trireme.h>

#include <algorithm>
#include <cstdint>
#include <sstream>

#include "cli/doctor/doctor.hpp"

namespace trireme::doctor {
namespace {

// All backends that a build may have; the library reports which are there.
constexpr const char* kBackends[] = {"local", "frames", "gloo", "mpi", "nccl"};

const char* operation_names[] = {
    "all_reduce", "reduce_scatter", "reduce_scatter_v", "all_gather",   "all_gather_v", "broadcast",
    "barrier",    "send",           "receive",          "reduce",       "gather",       "gather_v",
    "scatter",    "scatter_v",      "all_to_all",       "all_to_all_v", "probe",
};
static_assert(sizeof operation_names / sizeof *operation_names == TRIREME_OPERATION_KIND_PROBE);

bool can(const trireme_capability_query& query) { return trireme_capability(&query) == TRIREME_OK; }

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text.empty() ? "none" : text;
}

// Whether the ranks go on after one is lost.
std::string after_a_loss(const std::string& backend) {
  if (backend == "local") return "ranks agree and shrink";
  if (backend == "mpi") return "the job ends";
  return "over tcp:// ranks agree and shrink, if a majority is left";
}

// The dtypes that an operation moves, or a reduction takes.
std::string dtypes(trireme_capability_query query) {
  std::vector<std::string> names;
  for (trireme_dtype dtype = 1; dtype <= TRIREME_DTYPE_BYTES; ++dtype) {
    query.dtype = dtype;
    if (can(query)) names.emplace_back(trireme_dtype_name(dtype));
  }
  return joined(names);
}

}  // namespace

Section library_facts() {
  Section section{"library", {}};
  section.facts.push_back({"build", trireme_build_info(), ""});
  Dl_info where{};
  const bool found = dladdr(reinterpret_cast<const void*>(&trireme_version), &where) != 0;
  section.facts.push_back({"file", found ? where.dli_fname : "unknown", ""});
  for (const char* const name : kBackends) {
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    query.backend = name;
    const bool here = can(query);
    section.facts.push_back({std::string("backend ") + name,
                             here ? "here" : std::string("not here: ") + trireme_last_error(), ""});
  }
  return section;
}

std::vector<Section> backend_facts() {
  std::vector<Section> sections;
  for (const char* const name : kBackends) {
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    query.backend = name;
    if (!can(query)) continue;
    Section section{std::string("what ") + name + " can do", {}};
    std::vector<std::string> devices;
    for (const auto& [device, text] :
         {std::pair(TRIREME_DEVICE_HOST, "host"), std::pair(TRIREME_DEVICE_CUDA, "cuda")}) {
      query.device = device;
      if (can(query)) devices.emplace_back(text);
    }
    query.device = 0;
    section.facts.push_back({"memory", joined(devices), ""});
    section.facts.push_back({"after a loss", after_a_loss(name), ""});
    std::vector<std::string> moved;
    for (trireme_operation_kind operation = 1; operation <= TRIREME_OPERATION_KIND_PROBE;
         ++operation) {
      query.operation = operation;
      if (can(query)) moved.emplace_back(operation_names[operation - 1]);
    }
    query.operation = 0;
    section.facts.push_back({"operations", joined(moved), ""});
    query.operation = TRIREME_OPERATION_KIND_ALL_GATHER;
    section.facts.push_back({"moves", dtypes(query), ""});
    query.operation = TRIREME_OPERATION_KIND_ALL_REDUCE;
    for (trireme_reduction reduction = 1; reduction <= TRIREME_REDUCTION_SCALED_SUM; ++reduction) {
      query.reduction = reduction;
      section.facts.push_back(
          {std::string("reduces ") + trireme_reduction_name(reduction), dtypes(query), ""});
    }
    sections.push_back(std::move(section));
  }
  return sections;
}

Section device_facts() {
  Section section{"devices", {}};
  std::uint64_t length = 0;
  std::string text;
  if (trireme_device_report(nullptr, 0, &length) == TRIREME_OK) text.resize(length + 1);
  if (trireme_device_report(text.data(), text.size(), &length) != TRIREME_OK) {
    section.facts.push_back({"report", "fails", trireme_last_error()});
    return section;
  }
  std::istringstream lines(text.c_str());
  for (std::string line; std::getline(lines, line);) {
    const std::size_t colon = std::min(line.find(": "), line.size());
    section.facts.push_back(
        {line.substr(0, colon), line.substr(std::min(colon + 2, line.size())), ""});
  }
  return section;
}

}  // namespace trireme::doctor
