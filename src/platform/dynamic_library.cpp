#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "platform/dynamic_library.hpp"

#include <dlfcn.h>

namespace trireme {

DynamicLibrary DynamicLibrary::open(const std::string& path, std::string* why) {
  DynamicLibrary library;
  library.handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  why->clear();
  if (library.handle_ == nullptr) {
    const char* const text = dlerror();
    *why = text == nullptr ? "it cannot be loaded" : text;
  }
  return library;
}

bool DynamicLibrary::is_loaded(const std::string& name) {
  void* const handle = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return false;
  dlclose(handle);  // drops the reference that this call has added
  return true;
}

void* DynamicLibrary::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) {
    return "";
  }
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

}  // namespace trireme
