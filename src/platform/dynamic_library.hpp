// Dynamic libraries: opened at run time and never closed. Threads and exit handlers of a library
// may outlive the object that opened it.
#pragma once

#include <string>
#include <vector>

namespace trireme {

class DynamicLibrary {
 public:
  // `path`: a file, or a name that the loader searches. An empty *why means success.
  static DynamicLibrary open(const std::string& path, std::string* why);
  // A library that this process has loaded already; without symbols if it has not.
  static DynamicLibrary loaded(const std::string& name);
  // Returns the library only if this process has loaded it already.
  static bool is_loaded(const std::string& name);
  bool is_open() const { return handle_ != nullptr; }
  // Null if it has no such symbol.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
};

// The folders where the loader looks for a library that is asked for by name, in their order. Those
// of its cache (ldconfig) are not told.
std::vector<std::string> loader_folders();

// Folder of the file that holds this code; "" if the loader does not say.
std::string own_folder();

}  // namespace trireme
