// The grants of the system for a job on this host.
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/io_uring.h>
#include <net/if.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "cli/doctor/doctor.hpp"

namespace trireme::doctor {
namespace {

// The first line of a file, or "".
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string bytes_text(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// "MemTotal:  123 kB" of /proc/meminfo, in its own unit.
std::uint64_t meminfo(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::uint64_t value = 0;
  std::string rest;
  while (file >> name >> value) {
    std::getline(file, rest);
    if (name == key + ":") return value;
  }
  return 0;
}

// A setting of this process's control group (version 2), or "".
std::string cgroup(const char* name) {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("0::", 0) == 0) {
      return first_line("/sys/fs/cgroup" + line.substr(3) + "/" + name);
    }
  }
  return "";
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

std::string error_text() { return std::string("no: ") + std::strerror(errno); }

void close_if_open(int descriptor) {
  if (descriptor >= 0) close(descriptor);
}

bool has_io_uring(std::string* why) {
  io_uring_params parameters{};
  const long ring = syscall(SYS_io_uring_setup, 1, &parameters);
  *why = ring >= 0 ? "yes" : error_text();
  close_if_open(static_cast<int>(ring));
  return ring >= 0;
}

}  // namespace

Section machine_facts() {
  Section section{"machine", {}};
  utsname name{};
  uname(&name);
  section.facts.push_back({"host", name.nodename, ""});
  section.facts.push_back({"kernel", std::string(name.sysname) + " " + name.release, ""});
  // Two ranks share a host if this text is equal on both.
  section.facts.push_back({"boot", first_line("/proc/sys/kernel/random/boot_id"), ""});
  const int cores = usable_cores();
  section.facts.push_back({"cores", std::to_string(cores), ""});
  const std::string quota = cgroup("cpu.max");  // "200000 100000" or "max 100000"
  if (!quota.empty() && quota.rfind("max", 0) != 0) {
    const double granted = std::strtod(quota.c_str(), nullptr) /
                           std::strtod(quota.substr(quota.find(' ') + 1).c_str(), nullptr);
    section.facts.push_back(
        {"processor quota", std::to_string(granted) + " cores",
         granted < cores ? "the control group grants less than the cores that are seen: ranks that "
                           "spin are stopped in the middle; start no more ranks than that"
                         : ""});
  }
  section.facts.push_back({"memory", bytes_text(meminfo("MemTotal") << 10), ""});
  section.facts.push_back({"memory available", bytes_text(meminfo("MemAvailable") << 10), ""});
  const std::string granted = cgroup("memory.max");
  if (!granted.empty() && granted != "max") {
    section.facts.push_back(
        {"memory granted", bytes_text(std::strtoull(granted.c_str(), nullptr, 10)), ""});
  }
  const std::string huge = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  section.facts.push_back({"huge pages, transparent", huge.empty() ? "none" : huge, ""});
  section.facts.push_back({"huge pages, reserved",
                           std::to_string(meminfo("HugePages_Free")) + " of " +
                               std::to_string(meminfo("HugePages_Total")) + " free",
                           ""});
  return section;
}

Section limit_facts() {
  Section section{"limits", {}};
  const auto add = [&](const char* name, __rlimit_resource_t which, rlim_t least,
                       const char* advice) {
    rlimit limit{};
    getrlimit(which, &limit);
    section.facts.push_back(
        {name, limit_text(limit.rlim_cur) + " (at most " + limit_text(limit.rlim_max) + ")",
         limit.rlim_cur < least ? advice : ""});
  };
  add("open files", RLIMIT_NOFILE, 1024,
      "a rank keeps several open for each peer; raise it: ulimit -n 65536");
  add("locked memory", RLIMIT_MEMLOCK, 64 << 10,
      "io_uring may need some; raise it: ulimit -l unlimited");
  add("processes", RLIMIT_NPROC, 256, "each rank has some threads; raise it: ulimit -u 4096");
  add("file size", RLIMIT_FSIZE, RLIM_INFINITY,
      "checkpoints and offloaded state are large files; raise it: ulimit -f unlimited");
  add("address space", RLIMIT_AS, RLIM_INFINITY,
      "peers' memory is mapped besides a rank's own; raise it: ulimit -v unlimited");
  const std::string backlog = first_line("/proc/sys/net/core/somaxconn");
  section.facts.push_back(
      {"listen backlog", backlog.empty() ? "unknown" : backlog,
       std::strtol(backlog.c_str(), nullptr, 10) < 128
           ? "many ranks that join at once have to try again; raise net.core.somaxconn"
           : ""});
  const std::string congestion = first_line("/proc/sys/net/ipv4/tcp_congestion_control");
  section.facts.push_back(
      {"congestion control",
       congestion == "bbr"  ? "bbr; between hosts of one room cubic may carry long pieces 2 to 3 "
                              "times as fast (net.ipv4.tcp_congestion_control)"
       : congestion.empty() ? "unknown"
                            : congestion,
       ""});
  return section;
}

Section sharing_facts() {
  Section section{"between processes", {}};
  const int file = memfd_create("trireme-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const bool sealed = file >= 0 && ftruncate(file, 4096) == 0 &&
                      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
  section.facts.push_back({"memory files", sealed ? "yes" : error_text(),
                           sealed ? "" : "host:// needs memfd_create and seals"});
  close_if_open(file);
  int ends[2] = {-1, -1};
  const bool paired = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0;
  section.facts.push_back({"packet sockets", paired ? "yes" : error_text(),
                           paired ? "" : "host:// needs unix sockets of the kind SEQPACKET"});
  close_if_open(ends[0]);
  close_if_open(ends[1]);
  std::string why;
  const bool ring = has_io_uring(&why);
  section.facts.push_back(
      {"io_uring", why, ring ? "" : "offload to files reads and writes with two threads instead"});
  return section;
}

Section network_facts() {
  Section section{"network", {}};
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    section.facts.push_back({"interfaces", error_text(), "they cannot be listed"});
    return section;
  }
  std::map<std::string, std::string> interfaces;  // by name: its description
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    std::string& text = interfaces[each->ifa_name];
    if (text.empty()) {
      const std::string folder = std::string("/sys/class/net/") + each->ifa_name;
      const bool up = (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_RUNNING) != 0;
      text = std::string(up ? "up" : "down") + ", mtu " + first_line(folder + "/mtu");
      const std::string speed = first_line(folder + "/speed");  // in Mb/s; -1 or nothing: unknown
      if (!speed.empty() && speed[0] != '-') text += ", " + speed + " Mb/s";
    }
    if (each->ifa_addr == nullptr) continue;
    char address[INET6_ADDRSTRLEN] = "";
    if (each->ifa_addr->sa_family == AF_INET) {
      sockaddr_in at{};
      std::memcpy(&at, each->ifa_addr, sizeof at);
      inet_ntop(AF_INET, &at.sin_addr, address, sizeof address);
    } else if (each->ifa_addr->sa_family == AF_INET6) {
      sockaddr_in6 at{};
      std::memcpy(&at, each->ifa_addr, sizeof at);
      inet_ntop(AF_INET6, &at.sin6_addr, address, sizeof address);
    }
    if (*address != 0) text += std::string(", ") + address;
  }
  freeifaddrs(all);
  for (const auto& [name, text] : interfaces) section.facts.push_back({name, text, ""});
  if (interfaces.empty()) section.facts.push_back({"interfaces", "none", ""});
  return section;
}

Section job_facts() {
  Section section{"job", {}};
  for (const char* const name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TRIREME_RENDEZVOUS"}) {
    const char* const value = std::getenv(name);
    section.facts.push_back({name, value == nullptr ? "not set" : value, ""});
  }
  const char* const token = std::getenv("TRIREME_TOKEN");
  const bool weak = token != nullptr && std::strlen(token) < 16;
  section.facts.push_back({"TRIREME_TOKEN", token == nullptr ? "not set" : "set",
                           weak ? "it is shorter than 16 characters: draw a longer one" : ""});
  return section;
}

Section folder_facts(const std::string& folder) {
  Section section{"folder " + folder, {}};
  struct statvfs place {};
  if (statvfs(folder.c_str(), &place) != 0) {
    section.facts.push_back({"there", error_text(), "no file can be made there"});
    return section;
  }
  section.facts.push_back(
      {"room", bytes_text(static_cast<std::uint64_t>(place.f_bavail) * place.f_frsize), ""});
  const int nameless = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  section.facts.push_back(
      {"files without a name", nameless >= 0 ? "yes" : error_text(),
       nameless >= 0 ? "" : "files of offloaded state have one for a moment, or cannot be made"});
  close_if_open(nameless);
  const int direct = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_DIRECT, 0600);
  section.facts.push_back(
      {"past the cache", direct >= 0 ? "yes" : error_text(),
       direct >= 0 ? "" : "offloaded state goes through the system's cache, which takes memory"});
  close_if_open(direct);
  return section;
}

}  // namespace trireme::doctor
