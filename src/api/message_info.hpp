// trireme_message_info, as messages and requests fill it.
#pragma once

#include <trireme/messages.h>

#include "collectives/communicator.hpp"

namespace trireme::api {

Status check_message_info(const trireme_message_info* out_info);
void write_message_info(const MetMessage& met, trireme_message_info* out_info);

}  // namespace trireme::api
