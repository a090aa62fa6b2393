// ReservedPort: a port that is kept free for another program. The system gives it to no other
// process while this lives. A program that asks for the port with SO_REUSEADDR, as servers do, can
// still listen there.
#pragma once

#include <string>

namespace trireme::cluster {

class ReservedPort {
 public:
  ReservedPort() = default;
  ~ReservedPort() { release(); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  // Reserves a port of the address, which is in numbers, and lets go of the one before. False with
  // errno.
  bool take(const std::string& address);
  int number() const { return number_; }

 private:
  void release();

  int socket_ = -1;
  int number_ = 0;
};

}  // namespace trireme::cluster
