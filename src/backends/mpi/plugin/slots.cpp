#include "backends/mpi/plugin/slots.hpp"

#include <cstring>

namespace trireme::mpi {
namespace {

// True if all of them are over, or there are none.
int are_over(std::vector<MPI_Request>& requests, bool* over) {
  *over = true;
  for (MPI_Request& request : requests) {
    if (request == MPI_REQUEST_NULL) continue;
    int done = 0;
    const int code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return code;
    if (done == 0) *over = false;
  }
  return MPI_SUCCESS;
}

}  // namespace

Slots::Slots(int rank, int world_size, std::uint64_t number)
    : rank_(rank),
      number_(number),
      arrived_(static_cast<std::size_t>(world_size)),
      receiving_(static_cast<std::size_t>(world_size), MPI_REQUEST_NULL) {
  for (Sent& sent : sent_) sent.requests.resize(receiving_.size(), MPI_REQUEST_NULL);
}

void Slots::publish(const void* data, std::uint64_t bytes) {
  next_.number = number_;
  std::memcpy(next_.data.data(), data, bytes);
  next_.bytes = static_cast<int>(sizeof next_.number + bytes);
  waits_ = true;
}

int Slots::send(MPI_Comm communicator) {
  Sent& sent = sent_[turn_ & 1];
  bool over = false;
  int code = are_over(sent.requests, &over);
  if (code != MPI_SUCCESS || !over) return code;
  const auto length = static_cast<std::size_t>(next_.bytes);
  std::memcpy(&sent.message, &next_, length);
  for (std::size_t to = 0; to < sent.requests.size() && code == MPI_SUCCESS; ++to) {
    if (static_cast<int>(to) == rank_) continue;
    code = MPI_Isend(&sent.message, next_.bytes, MPI_BYTE, static_cast<int>(to), kSlotTag,
                     communicator, &sent.requests[to]);
  }
  waits_ = false;
  ++turn_;
  return code;
}

int Slots::expect(MPI_Comm communicator, int from) {
  const auto at = static_cast<std::size_t>(from);
  return MPI_Irecv(&arrived_[at], static_cast<int>(offsetof(Message, bytes)), MPI_BYTE, from,
                   kSlotTag, communicator, &receiving_[at]);
}

int Slots::advance(MPI_Comm communicator, Take take, void* context, bool* any) {
  int code = waits_ ? send(communicator) : MPI_SUCCESS;
  for (std::size_t from = 0; from < receiving_.size() && code == MPI_SUCCESS; ++from) {
    if (static_cast<int>(from) == rank_) continue;
    int done = 0;
    MPI_Status status;
    if (listens_) code = MPI_Test(&receiving_[from], &done, &status);
    if (code == MPI_SUCCESS && done != 0) {
      Message& message = arrived_[from];
      code = MPI_Get_count(&status, MPI_BYTE, &message.bytes);
      const bool is_whole = message.bytes >= static_cast<int>(sizeof message.number);
      if (code == MPI_SUCCESS && is_whole && message.number == number_) {
        take(context, static_cast<std::int32_t>(from), message.data.data(), message.content());
        *any = true;
      }
    }
    if (code == MPI_SUCCESS && (done != 0 || !listens_)) {
      code = expect(communicator, static_cast<int>(from));
    }
  }
  listens_ = true;
  return code;
}

bool Slots::end() {
  for (MPI_Request& request : receiving_) {
    if (!ending_ && request != MPI_REQUEST_NULL) MPI_Cancel(&request);
  }
  ending_ = true;
  bool all = true;
  for (std::vector<MPI_Request>* const requests :
       {&receiving_, &sent_[0].requests, &sent_[1].requests}) {
    bool over = false;
    if (are_over(*requests, &over) != MPI_SUCCESS || !over) all = false;
  }
  return all;
}

}  // namespace trireme::mpi
