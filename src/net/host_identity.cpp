#include "net/host_identity.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "net/sha256.hpp"
#include "platform/file.hpp"
#include "platform/system.hpp"

namespace trireme {
namespace {

// Adds the number of this start of the system.
bool add_boot(std::string* out) {
  const std::string text = read_small_file("/proc/sys/kernel/random/boot_id");
  *out += text;
  return !text.empty();
}

bool add_namespace(const char* path, std::string* out) {
  struct stat found {};
  if (::stat(path, &found) != 0) return false;
  *out += std::to_string(found.st_dev) + ':' + std::to_string(found.st_ino) + '\n';
  return true;
}

}  // namespace

Digest host_identity(std::string_view label) {
  std::string all = "host\n";
  const bool known = add_boot(&all) && add_namespace("/proc/self/ns/net", &all) &&
                     add_namespace("/proc/self/ns/pid", &all);
  Digest random{};
  if (!known && system_table().random_bytes(random.data(), random.size())) return random;
  return sha256(all + std::to_string(::geteuid()) + '\n' + std::string(label));
}

}  // namespace trireme
