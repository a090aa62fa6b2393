// check_object_name(): the rule for names of objects that messages show.
#pragma once

#include <string>

#include "platform/status.hpp"

namespace trireme {

// Checks the field `name` of an object's options, which messages show: 1 to 63 bytes of UTF-8
// without control characters.
Status check_object_name(const std::string& name);

}  // namespace trireme
