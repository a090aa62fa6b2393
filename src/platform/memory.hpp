// How much memory is available.
#pragma once

#include <cstdint>

namespace trireme {

// Bytes that this process can still have without starving the machine or its cgroup; UINT64_MAX if
// the system does not tell.
std::uint64_t available_memory();

// Asks for huge pages. Best effort: a refusal costs speed only.
void prefer_huge_pages(void* address, std::uint64_t bytes) noexcept;

}  // namespace trireme
