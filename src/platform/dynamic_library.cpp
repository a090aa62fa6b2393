#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "platform/dynamic_library.hpp"

#include <dlfcn.h>

#include <cstddef>

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

DynamicLibrary DynamicLibrary::loaded(const std::string& name) {
  DynamicLibrary library;
  library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
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

std::vector<std::string> loader_folders() {
  std::vector<std::string> folders;
  void* const program = dlopen(nullptr, RTLD_NOW);
  Dl_serinfo size{};
  if (program != nullptr && dlinfo(program, RTLD_DI_SERINFOSIZE, &size) == 0) {
    std::vector<std::max_align_t> memory(size.dls_size / sizeof(std::max_align_t) + 1);
    auto* const list = reinterpret_cast<Dl_serinfo*>(memory.data());
    if (dlinfo(program, RTLD_DI_SERINFOSIZE, list) == 0 &&
        dlinfo(program, RTLD_DI_SERINFO, list) == 0) {
      for (unsigned i = 0; i < list->dls_cnt; ++i) {
        folders.emplace_back(list->dls_serpath[i].dls_name);
      }
    }
  }
  if (program != nullptr) dlclose(program);
  return folders;
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
