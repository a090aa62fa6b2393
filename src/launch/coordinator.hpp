// Coordinator: the agent at whose host the agents of a job meet. Listens there, lets in who knows the
// token, and carries what JobState decides to all of them.
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

// What an agent hears of its job.
struct JobEvents {
  std::function<void(const AgentStart&)> start;
  std::function<void(const AgentStop&)> stop;
  std::function<void(const AgentVerdict&)> verdict;  // the last, perhaps without a start
  std::function<void(const std::string&)> say;
  std::function<void()> idle;  // perhaps: the agent has nothing left to say to anybody
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

  // Listens at exactly this address. 0, or libuv's error: UV_EADDRNOTAVAIL if it is another host's,
  // UV_EADDRINUSE if somebody else listens there.
  int listen(const sockaddr* address);
  // Then: what this host's own agent is.
  void begin(const AgentHello& own);

  // As what other agents say.
  void stop(const AgentStop& stop);
  void end(const AgentEnd& end);
  // All have heard the verdict.
  bool idle() const;

 private:
  static constexpr std::uint64_t kRoomMs = 5;  // so often it is looked whether there is room again

  struct Guest {
    std::unique_ptr<AgentConnection> connection;
    std::string address;
    std::uint64_t since_ns = 0;
    bool joined = false;
    bool refused = false;
    bool stopped = false;  // has been told, or has said so itself
    bool over = false;     // has been told the verdict, or is gone
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
  std::string meeting_name_;  // drawn, so that nobody else's ranks come there by accident
  std::map<int, Guest> guests_;
  int next_number_ = JobState::kOwnAgent + 1;
  int warnings_ = 0;
  std::uint64_t signals_ = 0;  // bit n: a user's signal n has been told
  bool started_ = false;
  bool stopped_ = false;
  bool over_ = false;
};

}  // namespace trireme::cluster
