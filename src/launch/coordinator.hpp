// Coordinator: the agent at whose host the agents of a job meet. It listens there, lets in peers
// that know the token, and carries the decisions of JobState to all.
#pragma once

#include <uv.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "launch/agent_connection.hpp"
#include "launch/job_state.hpp"
#include "net/token.hpp"

namespace trireme::cluster {

// The events that an agent receives from its job.
struct JobEvents {
  std::function<void(const AgentStart&)> start;
  std::function<void(const AgentStop&)> stop;
  std::function<void(const AgentVerdict&)> verdict;  // the last event, perhaps without a start
  std::function<void(const std::string&)> say;
  std::function<void()> idle;  // the agent may have no message left to send
};

struct CoordinatorOptions {
  std::string job;  // its name
  std::uint64_t silence_ms = 5000;
  JobLimits limits;
};

class Coordinator {
 public:
  Coordinator(uv_loop_t* loop, const Token& token, CoordinatorOptions options, JobEvents events);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Listens at exactly this address. Returns 0 or libuv's error: UV_EADDRNOTAVAIL if another host
  // has the address, UV_EADDRINUSE if another process listens there.
  int listen(const sockaddr* address);
  // Call it next: joins this host's own agent.
  void begin(const AgentHello& own);

  // The same messages as other agents send.
  void stop(const AgentStop& stop);
  void end(const AgentEnd& end);
  // All agents have received the verdict.
  bool idle() const;

 private:
  static constexpr std::uint64_t kRoomMs = 5;  // pause between two looks for room

  struct Guest {
    std::unique_ptr<AgentConnection> connection;
    std::string address;
    std::uint64_t since_ns = 0;
    bool joined = false;
    bool refused = false;
    bool stopped = false;  // it was told to stop, or has said so itself
    bool over = false;     // it was told the verdict, or is gone
  };

  void called();
  bool make_room();
  void accept();
  void guest_said(int number, const AgentMessage& message);
  void guest_ended(int number, const Status& status);
  void wish(int from, const AgentStop& stop);
  void tick();
  void act();

  uv_loop_t* const loop_;
  const Token& token_;
  const CoordinatorOptions options_;
  const JobEvents events_;
  uv_tcp_t* listener_;  // freed by the loop
  uv_timer_t* timer_;
  uv_timer_t* room_timer_;
  std::unique_ptr<JobState> state_;
  std::string meeting_name_;  // drawn at random, so that no other job's ranks come there
  std::map<int, Guest> guests_;
  int next_number_ = JobState::kOwnAgent + 1;
  int warnings_ = 0;
  std::uint64_t signals_ = 0;  // bit n: a user's signal n was passed on
  bool started_ = false;
  bool stopped_ = false;
  bool over_ = false;
};

}  // namespace trireme::cluster
