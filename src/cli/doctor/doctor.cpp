#include "cli/doctor/doctor.hpp"

#include <cstdio>
#include <utility>

namespace trireme::doctor {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char character : text) {
    const auto code = static_cast<unsigned char>(character);
    if (character == '"' || character == '\\') out += '\\';
    if (code < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", code);
      out += escape;
    } else {
      out += character;
    }
  }
  return out + '"';
}

void print_json(const std::vector<Section>& sections) {
  std::printf("{");
  const char* next_section = "";
  for (const Section& section : sections) {
    std::printf("%s\n  %s: {", next_section, quoted(section.name).c_str());
    next_section = ",";
    const char* next_fact = "";
    for (const Fact& fact : section.facts) {
      std::printf("%s\n    %s: {\"value\": %s, \"advice\": %s, \"remark\": %s}", next_fact,
                  quoted(fact.name).c_str(), quoted(fact.value).c_str(),
                  quoted(fact.advice).c_str(), quoted(fact.remark).c_str());
      next_fact = ",";
    }
    std::printf("\n  }");
  }
  std::printf("\n}\n");
}

void print_text(const std::vector<Section>& sections) {
  int pieces = 0;
  int remarks = 0;
  for (const Section& section : sections) {
    std::printf("%s\n", section.name.c_str());
    for (const Fact& fact : section.facts) {
      std::printf("  %-24s %s\n", fact.name.c_str(), fact.value.c_str());
      if (!fact.advice.empty()) {
        std::printf("  %-24s ! %s\n", "", fact.advice.c_str());
        ++pieces;
      }
      if (!fact.remark.empty()) {
        std::printf("  %-24s ~ %s\n", "", fact.remark.c_str());
        ++remarks;
      }
    }
  }
  if (pieces == 0) {
    std::printf("All is well.\n");
  } else {
    std::printf("%d piece%s of advice, marked with !.\n", pieces, pieces == 1 ? "" : "s");
  }
  if (remarks > 0) std::printf("%d remark%s, marked with ~.\n", remarks, remarks == 1 ? "" : "s");
}

}  // namespace

int run(const Settings& settings) {
  std::vector<Section> sections{library_facts()};
  for (Section& section : backend_facts()) sections.push_back(std::move(section));
  for (auto* const facts :
       {&device_facts, &machine_facts, &limit_facts, &sharing_facts, &network_facts, &job_facts}) {
    sections.push_back(facts());
  }
  if (!settings.folder.empty()) sections.push_back(folder_facts(settings.folder));
  if (!settings.connection.rendezvous.empty()) {
    for (Section& section : connection_facts(settings.connection)) {
      sections.push_back(std::move(section));
    }
  }
  bool well = true;
  for (const Section& section : sections) {
    for (const Fact& fact : section.facts) well = well && fact.advice.empty();
  }
  if (settings.json) {
    print_json(sections);
  } else {
    print_text(sections);
  }
  return std::fflush(stdout) == 0 && well ? 0 : 1;
}

}  // namespace trireme::doctor
