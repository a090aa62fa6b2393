// Prints: the fingerprint of a call as its rank has published it. Its name is fit for a message.
#pragma once

#include <cstring>

#include "backends/slots/segment.hpp"

namespace trireme::local {

// Copied once, because a peer may change it later.
inline Fingerprint print_in(const Slot& slot) {
  Fingerprint print = slot.fingerprint;
  print.agreement_name[sizeof print.agreement_name - 1] = 0;
  for (char& character : print.agreement_name) {
    if (character != 0 && (character < 0x20 || character > 0x7e)) character = '?';
  }
  return print;
}

// A cell has only what is compared.
inline Fingerprint print_in(const Cell& cell) {
  Fingerprint print{};
  std::memcpy(&print, cell.print, sizeof cell.print);
  return print;
}

}  // namespace trireme::local
