// What the agents of a job on several hosts say to each other, as bytes and back. Pure. Who says it
// has proved to know the job's token; it is checked all the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace trireme::cluster {

constexpr std::size_t kLongestAgentMessage = 8192;
constexpr int kMostNodes = 1024;
constexpr int kMostWorkersOfNode = 1024;

// An agent would like to join.
struct AgentHello {
  std::string host;  // its name, for messages
  int workers = 1;
  int node_rank = -1;  // the one it wants; -1: any
  int least_nodes = 1;
  int most_nodes = 1;
  std::string address;   // at which other hosts reach it, in numbers
  int meeting_port = 0;  // free there, for the ranks to meet
  int master_port = 0;   // free there, for programs that meet by MASTER_ADDR and MASTER_PORT
};

// It may not; nothing follows.
struct AgentRefusal {
  std::string reason;
};

// The job begins.
struct AgentStart {
  int node_rank = 0;
  int nodes = 1;
  int first_rank = 0;
  int world_size = 1;
  std::string master_address;
  int master_port = 0;
  std::string rendezvous;  // "tcp://..."
};

// The workers are to end, here as everywhere.
struct AgentStop {
  int signal = 0;
  bool by_user = false;  // somebody has sent the signal to an agent
  std::string reason;    // to be said; "" if the verdict will say enough
};

// No worker of the agent is left.
struct AgentEnd {
  int code = 0;              // of the agent if it were alone
  bool by_signal = false;    // how the first that failed has ended
  std::uint64_t age_ns = 0;  // since that moment
  std::string failure;       // "rank 3 on b failed: ..."; "": nobody has failed by itself
  bool lost_peer = false;    // it failed because it lost another
};

// Nobody is left, and this is why. Nothing follows.
struct AgentVerdict {
  int code = 0;
  std::string text;  // "" if there is nothing to say
};

// A sign of life.
struct AgentBeat {};

using AgentMessage = std::variant<AgentHello, AgentRefusal, AgentStart, AgentStop, AgentEnd,
                                  AgentVerdict, AgentBeat>;

// "1.5 s", for messages.
std::string seconds_text(std::uint64_t nanoseconds);

// Texts that are too long for a message are cut.
std::string encode(const AgentMessage& message);
// False if it is none, or says what cannot be: a port of 0, a rank outside of its world. Texts come
// without control characters.
bool decode(std::string_view bytes, AgentMessage* out);

}  // namespace trireme::cluster
