// The two passes of an attention.
#pragma once

#include "parallel/context/pair_worker.hpp"

namespace trireme::parallel {

Status attention_forward(const PassTask& task);
Status attention_backward(const PassTask& task);

}  // namespace trireme::parallel
