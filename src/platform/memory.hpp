// How much memory there is to have.
#pragma once

#include <cstdint>

namespace trireme {

// Bytes that can still be had without starving the machine or this process' cgroup; UINT64_MAX if
// nobody can tell.
std::uint64_t available_memory();

// Asks for huge pages. Best effort: a refusal costs speed only.
void prefer_huge_pages(void* address, std::uint64_t bytes) noexcept;

}  // namespace trireme
