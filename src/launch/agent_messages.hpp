// The messages between agents of a job on several hosts, as bytes and back. Pure. The sender has
// proved to know the job's token; its messages are checked all the same.
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
constexpr int kMostRestarts = 1'000'000;

// An agent asks to join.
struct AgentHello {
  std::string host;  // its name, for messages
  int workers = 1;
  int node_rank = -1;  // the one it wants; -1: any
  int least_nodes = 1;
  int most_nodes = 1;
  int restarts = 0;      // how often workers may be started again
  std::string address;   // at which other hosts reach it, in numbers
  int meeting_port = 0;  // free there, for the ranks to meet
  int master_port = 0;   // free there, for programs that meet by MASTER_ADDR and MASTER_PORT
};

// The agent may not join; no message follows.
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

// The workers are to end on all hosts.
struct AgentStop {
  int signal = 0;
  bool by_user = false;  // a user has sent the signal to an agent
  std::string reason;    // for the user; "" if the verdict says enough
};

// No worker of the agent is left.
struct AgentEnd {
  int code = 0;              // the agent's exit code if it were alone
  bool by_signal = false;    // how its first failed worker has ended
  std::uint64_t age_ns = 0;  // since that moment
  std::string failure;       // "rank 3 on b failed: ..."; "": no worker has failed by itself
  bool lost_peer = false;    // it failed because it lost a peer
  bool not_started = false;  // workers could not be started, so another start would fail, too
};

// The last agent has ended, and this is why. No message follows.
struct AgentVerdict {
  int code = 0;
  std::string text;       // "" if there is nothing to say
  bool is_final = false;  // no start follows, however many there may be
};

// A sign of life.
struct AgentBeat {};

using AgentMessage = std::variant<AgentHello, AgentRefusal, AgentStart, AgentStop, AgentEnd,
                                  AgentVerdict, AgentBeat>;

// "1.5 s", for messages.
std::string seconds_text(std::uint64_t nanoseconds);

// Texts that are too long for a message are cut.
std::string encode(const AgentMessage& message);
// False if the bytes are no message, or a field is impossible: a port of 0, a rank outside of its
// world. Texts are returned without control characters.
bool decode(std::string_view bytes, AgentMessage* out);

}  // namespace trireme::cluster
