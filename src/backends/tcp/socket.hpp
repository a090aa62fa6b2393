// Moved to platform/.
#pragma once
#include "platform/tcp_socket.hpp"
