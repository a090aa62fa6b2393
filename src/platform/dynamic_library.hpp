// Dynamic libraries: opened at run time, and never closed, because threads and exit handlers of
// what is in them may outlive whoever opened them.
#pragma once

#include <string>

namespace trireme {

class DynamicLibrary {
 public:
  // `path`: a file, or a name that the loader looks for. An empty *why means success.
  static DynamicLibrary open(const std::string& path, std::string* why);
  // The same if it is in this process already; else not.
  static bool is_loaded(const std::string& name);
  // Null if it has no such symbol.
  void* symbol(const char* name) const;

 private:
  void* handle_ = nullptr;
};

// Folder of the file that this code is in; "" if the loader does not say.
std::string own_folder();

}  // namespace trireme
