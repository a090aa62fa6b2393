// Groups of processes: membership by liaison.
#include "backends/local/liaison.hpp"
#include "backends/slots/membership.hpp"
#include "platform/failpoint.hpp"

namespace trireme::local {
namespace {

class ProcessMembership final : public Membership {
 public:
  ProcessMembership(const std::string& group_name, std::shared_ptr<const Token> token, Group& group,
                    std::shared_ptr<Buffers> buffers)
      : group_(group), liaison_(group_name, std::move(token), group, std::move(buffers)) {
    group_.on_silence([this] { return liaison_.stopped(); });
  }

  ~ProcessMembership() override {
    // Nobody is there to hear of a failure to leave; kill, stop and sleep are what these points are for.
    static_cast<void>(failpoint("leave", "before_mark").ok());
    group_.mark_left(group_.rank());
    static_cast<void>(failpoint("leave", "after_mark").ok());
    group_.on_silence(nullptr);
  }

  Status join() {
    TRIREME_RETURN_IF_ERROR(failpoint("join", "before_claim"));
    TRIREME_RETURN_IF_ERROR(liaison_.claim());
    TRIREME_RETURN_IF_ERROR(failpoint("join", "after_claim"));
    return liaison_.start();
  }

  bool joined(int rank) const override { return liaison_.joined(rank); }
  bool has_other_token(int rank) const override { return liaison_.has_other_token(rank); }
  Bell& bell() override { return group_.private_bell(); }
  // The liaison hears of every failure.
  void on_end(std::shared_ptr<const EndListener> listener) override {
    group_.on_end(std::move(listener));
  }

 private:
  Group& group_;
  Liaison liaison_;  // its end tells the peers what the mark says
};

}  // namespace

Status join_processes(const std::string& group_name, std::shared_ptr<const Token> token,
                      Group& group, const std::shared_ptr<Buffers>& buffers,
                      std::unique_ptr<Membership>* out) {
  auto membership =
      std::make_unique<ProcessMembership>(group_name, std::move(token), group, buffers);
  TRIREME_RETURN_IF_ERROR(membership->join());
  *out = std::move(membership);
  return Status::success();
}

}  // namespace trireme::local
