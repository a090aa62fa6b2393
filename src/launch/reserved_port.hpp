// A port that is kept free for somebody else.
#pragma once

#include <string>

namespace trireme::cluster {

// A port of the address, in numbers, that the system gives to nobody else while the socket lives, and on
// which a program that asks for it (with SO_REUSEADDR, as servers do) can listen all the same. The
// socket, or -1 with errno.
int reserve_port(const std::string& address, int* port);

}  // namespace trireme::cluster
