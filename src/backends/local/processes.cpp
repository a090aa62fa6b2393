// Groups of processes: a process mesh keeps the membership.
#include "backends/local/process_mesh.hpp"
#include "backends/slots/membership.hpp"
#include "platform/failpoint.hpp"

namespace trireme::local {
namespace {

class ProcessMembership final : public Membership {
 public:
  ProcessMembership(const std::string& group_name, std::shared_ptr<const Token> token, Group& group,
                    std::shared_ptr<Buffers> buffers)
      : group_(group), process_mesh_(group_name, std::move(token), group, std::move(buffers)) {
    group_.blame().on_silence([this] { return process_mesh_.stopped(); });
  }

  ~ProcessMembership() override {
    tell_why(group_);
    // A failure of this point has no effect; it is for kill, stop and sleep.
    static_cast<void>(failpoint("leave", "before_mark").ok());
    group_.presence().mark_left(group_.rank());
    static_cast<void>(failpoint("leave", "after_mark").ok());
    group_.blame().on_silence(nullptr);
  }

  Status join() {
    TRIREME_RETURN_IF_ERROR(failpoint("join", "before_claim"));
    TRIREME_RETURN_IF_ERROR(process_mesh_.claim());
    TRIREME_RETURN_IF_ERROR(failpoint("join", "after_claim"));
    return process_mesh_.start();
  }

  bool joined(int rank) const override { return process_mesh_.joined(rank); }
  bool has_other_token(int rank) const override { return process_mesh_.has_other_token(rank); }
  Bell& bell() override { return group_.bells().private_bell(); }
  // The process mesh sees every failure.
  void on_end(std::shared_ptr<const EndListener> listener) override {
    group_.failure().on_end(std::move(listener));
  }
  void spread_failure() noexcept override { process_mesh_.spread_failure(); }

 private:
  Group& group_;
  ProcessMesh process_mesh_;  // its destructor tells the peers what the mark says
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
