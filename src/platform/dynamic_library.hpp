// Dynamic libraries: opened at run time and never closed. Threads and exit handlers of a library
// may outlive the object that opened it.
#pragma once

#include <string>

namespace trireme {

class DynamicLibrary {
 public:
  // `path`: a file, or a name that the loader searches. An empty *why means success.
  static DynamicLibrary open(const std::string& path, std::string* why);
  // Returns the library only if this process has loaded it already.
  static bool is_loaded(const std::string& name);
  // Null if it has no such symbol.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
};

// Folder of the file that holds this code; "" if the loader does not say.
std::string own_folder();

}  // namespace trireme
