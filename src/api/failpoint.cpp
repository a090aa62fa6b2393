// failpoint.h.
#include <trireme/failpoint.h>

#include "api/boundary.hpp"
#include "platform/failpoint.hpp"

using namespace trireme;

uint32_t trireme_failpoint_count() { return failpoint_count(); }

const char* trireme_failpoint_name(uint32_t index) { return failpoint_name(index); }

trireme_status trireme_failpoint_set(const char* text) {
  return api::guard(__func__, [&] { return set_failpoints(text); });
}

trireme_status trireme_failpoint_get_hits(const char* name, uint64_t* out_hits) {
  return api::guard(__func__, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(name, "name"));
    TRIREME_RETURN_IF_ERROR(api::require(out_hits, "out_hits"));
    return failpoint_hits(name, out_hits);
  });
}
