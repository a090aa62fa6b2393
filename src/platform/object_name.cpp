#include "platform/object_name.hpp"

#include "platform/utf8.hpp"

namespace trireme {

Status check_object_name(const std::string& name) {
  if (name.empty()) return invalid_argument("options.name is empty");
  if (name.size() > 63) {
    return invalid_argument("options.name has " + std::to_string(name.size()) +
                            " bytes, more than 63");
  }
  if (!is_utf8(name)) return invalid_argument("options.name is not UTF-8");
  const std::string clean = clean_text(name);
  if (clean == name) return Status::success();
  return invalid_argument("options.name, \"" + clean + "\", has a control character in it");
}

}  // namespace trireme
