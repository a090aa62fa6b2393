// The boundary: every extern "C" function is one call of guard(), and every struct of the caller
// is read and written by the three helpers below.
#pragma once

#include <trireme/status.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "api/first_size.hpp"
#include "platform/status.hpp"
#include "platform/thread.hpp"

namespace trireme::api {

// Keeps the failure for trireme_last_error() and trireme_last_error_info(), and returns its code.
// Does not allocate.
trireme_status record_failure(const char* function, const Status& status) noexcept;
trireme_status record_failure(const char* function, trireme_status code,
                              const char* message) noexcept;

// Runs the body of an extern "C" function; no exception leaves it. For a body that holds a
// NoCancellation itself wherever it waits: a small operation has no time for one.
template <class Body>
trireme_status guard_brief(const char* function, Body&& body) noexcept {
  try {
    const Status status = std::forward<Body>(body)();
    if (status.ok()) [[likely]]
      return TRIREME_OK;
    return record_failure(function, status);
  } catch (const std::bad_alloc&) {
    return record_failure(function, TRIREME_ERROR_OUT_OF_MEMORY, "host memory has run out");
  } catch (const std::exception& error) {
    return record_failure(function, TRIREME_ERROR_INTERNAL, error.what());
  } catch (...) {
    return record_failure(function, TRIREME_ERROR_INTERNAL, "unknown exception");
  }
}

// The same for any body: a thread that is cancelled inside ends when it has left the library.
template <class Body>
trireme_status guard(const char* function, Body&& body) noexcept {
  const NoCancellation whole_call;
  return guard_brief(function, std::forward<Body>(body));
}

template <class Pointer>
Status require(const Pointer* pointer, const char* what) {
  if (pointer != nullptr) [[likely]]
    return Status::success();
  return invalid_argument(std::string(what) + " is NULL");
}

// "TRIREME_MODEL_OPTIONS_INIT" of trireme_model_options: the compiler's name of this function
// contains the type's name.
template <class Struct>
std::string init_macro() {
  const std::string all = __PRETTY_FUNCTION__;
  const std::string key = "Struct = ";
  const std::size_t first = all.find(key) + key.size();
  std::string name = all.substr(first, all.find_first_of(";],", first) - first);
  for (char& letter : name) {
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  }
  return name + "_INIT";
}

// A caller's struct is no smaller than in the release that brought it.
template <class Struct>
Status check_size(const char* what, std::uint32_t size) {
  constexpr std::uint32_t kFirst = kFirstSize<Struct>;
  static_assert(kFirst > 0 && kFirst <= sizeof(Struct), "it needs a line in first_size.hpp");
  if (size >= kFirst) return Status::success();
  return invalid_argument(std::string(what) + ".struct_size is " + std::to_string(size) +
                          ", below " + std::to_string(kFirst) + "; start from " +
                          init_macro<Struct>());
}

// The size of a struct as its compiler knew it. Options of update rules have it in the struct that
// they begin with.
template <class Struct>
auto& size_of(Struct& any) {
  if constexpr (requires { any.base.struct_size; }) {
    return any.base.struct_size;
  } else {
    return any.struct_size;
  }
}

// Whether a struct of `size` bytes has anything behind those that this library knows.
inline bool sets_newer(const void* caller, std::size_t size, std::size_t known) {
  const auto* bytes = static_cast<const unsigned char*>(caller);
  return size > known &&
         std::any_of(bytes + known, bytes + size, [](unsigned char b) { return b != 0; });
}

inline Status refuse_newer(const char* what, const std::string& init) {
  return unsupported(std::string(what) +
                     " sets a field that is newer than this library, or was not "
                     "initialised; start from " +
                     init);
}

// Copies the caller's struct over the defaults in *out, in any version (the rule of Linux'
// copy_struct_from_user).
template <class Struct>
Status read_struct(const Struct* caller, const char* what, Struct* out) {
  TRIREME_RETURN_IF_ERROR(require(caller, what));
  const std::uint32_t size = size_of(*caller);
  TRIREME_RETURN_IF_ERROR(check_size<Struct>(what, size));
  if (sets_newer(caller, size, sizeof(Struct))) return refuse_newer(what, init_macro<Struct>());
  std::memcpy(out, caller, std::min<std::size_t>(size, sizeof(Struct)));
  size_of(*out) = sizeof(Struct);
  return Status::success();
}

// Like read_struct(), for a struct that may be NULL: *out then keeps its defaults.
template <class Struct>
Status read_optional(const Struct* caller, const char* what, Struct* out) {
  if (caller == nullptr) return Status::success();
  return read_struct(caller, what, out);
}

// Reads a list of `count` structs at `first` and calls take(struct, "layers[2]") for each one. All
// have the size of the first one, which may differ from the library's.
template <class Struct, class Take>
Status read_list(const Struct* first, std::uint64_t count, const char* what, Take&& take) {
  if (count == 0) return Status::success();
  TRIREME_RETURN_IF_ERROR(require(first, what));
  const std::uint32_t stride = first->struct_size;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string name = std::string(what) + "[" + std::to_string(i) + "]";
    const auto* const item = reinterpret_cast<const Struct*>(reinterpret_cast<const char*>(first) +
                                                             i * std::uint64_t{stride});
    if (item->struct_size != stride) {
      return invalid_argument(name + ".struct_size is " + std::to_string(item->struct_size) +
                              ", but that of " + what + "[0] is " + std::to_string(stride));
    }
    Struct read = {};
    TRIREME_RETURN_IF_ERROR(read_struct(item, name.c_str(), &read));
    if (count > 1 && stride % alignof(Struct) != 0) {
      return invalid_argument(name + ".struct_size is " + std::to_string(stride) +
                              ", no multiple of " + std::to_string(alignof(Struct)) +
                              "; start from " + init_macro<Struct>());
    }
    TRIREME_RETURN_IF_ERROR(take(read, name));
  }
  return Status::success();
}

// Refuses a field that has no meaning in this release.
inline Status check_zero(const std::string& what, std::uint64_t value) {
  if (value == 0) [[likely]]
    return Status::success();
  return invalid_argument(what + " is " + std::to_string(value) + ", but must be 0");
}

// Checks an info struct before the work for its contents.
template <class Struct>
Status check_info(const Struct* caller, const char* what) {
  TRIREME_RETURN_IF_ERROR(require(caller, what));
  return check_size<Struct>(what, caller->struct_size);
}

// Fills the caller's struct as far as it knows it; its struct_size stays, newer fields it has are
// 0.
template <class Struct>
void write_info(const Struct& info, Struct* caller) {
  const std::uint32_t size = caller->struct_size;
  auto* bytes = reinterpret_cast<unsigned char*>(caller);
  std::memcpy(bytes, &info, std::min<std::size_t>(size, sizeof(Struct)));
  if (size > sizeof(Struct)) std::memset(bytes + sizeof(Struct), 0, size - sizeof(Struct));
  caller->struct_size = size;
}

// Returns text by the rule of trireme_communicator_get_backend(): cut to fit with its final 0, and
// the whole length.
Status write_text(const std::string& text, char* memory, std::uint64_t capacity,
                  std::uint64_t* out_length);

}  // namespace trireme::api
