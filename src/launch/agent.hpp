// Agent: the launcher of one host, as a part of a job on several. It coordinates the job where the
// meeting point is an address of this host, and joins it elsewhere.
#pragma once

#include <netinet/in.h>
#include <uv.h>

#include <memory>
#include <string>

#include "launch/agent_connection.hpp"
#include "launch/coordinator.hpp"
#include "launch/join_attempts.hpp"
#include "launch/reserved_port.hpp"
#include "net/token.hpp"

namespace trireme::cluster {

// How the hosts of a job find each other.
struct NodeOptions {
  std::string host;  // where the agents meet: a name, or an address
  int port = 0;
  int least = 1;
  int most = 1;
  int node_rank = -1;  // -1: any
  std::string job;     // "" is a valid name
  double join_seconds = 600;
  double last_call_seconds = 30;
  double silence_seconds = 5;
  bool keep_survivors = false;  // a lost agent or worker does not end the others
  int restarts = 0;             // how often workers may be started again; the same on all hosts
};

class Agent {
 public:
  Agent(uv_loop_t* loop, const NodeOptions& options, int workers, JobEvents events);
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Reads the token, and begins to meet the others.
  void begin();
  const Token& token() const { return token_; }
  const std::string& host() const { return host_; }

  // The workers here are being ended; all other agents shall end theirs.
  void stop(const AgentStop& stop);
  // No worker is left here.
  void end(const AgentEnd& end);
  // All messages are sent. Meaningful only after the verdict.
  bool idle() const { return over_ && (coordinator_ == nullptr || coordinator_->idle()); }
  // A thread of the loop's pool still looks up a name, and cannot be interrupted.
  bool is_looking_up() const { return looking_up_; }
  // Closes all connections. Call it before the loop is closed.
  void release();

 private:
  void attempt();
  void resolved(int status, const addrinfo* list);
  void meet(const sockaddr* address);
  void connect(const sockaddr* address);
  void connected(int status);
  void said(const AgentMessage& message);
  void connection_ended(const Status& status);
  void tick();
  void again(const std::string& why);
  void publish(const AgentVerdict& verdict);
  bool say_hello_from(const std::string& address, AgentHello* hello);

  uv_loop_t* const loop_;
  const NodeOptions options_;
  const int workers_;
  const JobEvents events_;
  const std::string host_;   // this one's name
  const std::string where_;  // "the agent at HOST:PORT"
  Token token_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<AgentConnection> connection_;
  std::unique_ptr<AgentConnection> old_connection_;  // may still be on the stack
  uv_getaddrinfo_t lookup_{};
  uv_connect_t connect_{};
  uv_timer_t timer_{};
  bool looking_up_ = false;
  bool connecting_ = false;
  JoinAttempts attempts_;
  ReservedPort meeting_port_;  // for the ranks
  ReservedPort master_port_;   // for programs that meet by MASTER_PORT
  bool joined_ = false;        // the coordinator knows this agent
  bool started_ = false;
  bool ended_ = false;  // end() has been called
  bool over_ = false;   // the verdict has been given
  AgentEnd end_;
  std::optional<AgentVerdict> loss_;  // of the coordinator
  std::uint64_t loss_ns_ = 0;
};

}  // namespace trireme::cluster
