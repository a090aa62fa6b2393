// Choice: the way of a tcp:// group. Ranks that all share one host use its memory. Others send
// frames over their connections, and so do ranks of one host that cannot map each other's memory.
//
// A rank begins with frames. If all are on one host when they have met, each tries to join a group
// of host://. It tells the others twice how it went: that it could begin, and that it maps the
// memory of all. The telling goes by frames, so every loss is noticed as in any group. In a large
// group it needs the connections to near ranks alone: see Answers. Nothing of the caller's runs
// before the choice.
//
// All ranks choose the same. A word in the shared memory says which, and the first rank to write it
// decides. A rank writes "memory" only when all ranks have told that they map it. So ranks that do
// not know the choice yet can still read it, whatever they hear by frames.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/backend.hpp"
#include "backends/frames/backend.hpp"
#include "backends/join/answers.hpp"
#include "backends/join/letters.hpp"
#include "backends/local/backend.hpp"
#include "backends/tcp/mesh.hpp"
#include "net/token.hpp"

namespace trireme {

// The ranks of one host meet under a secret name that no other group has.
std::string name_of_host_group(const Token& token, const std::vector<tcp::Entry>& entries, int me);

class Choice : public std::enable_shared_from_this<Choice> {
 public:
  // `few_connections`: as in HostBackend::Ways.
  Choice(const GroupOptions& options, const Token& token, bool few_connections);

  // The backend of frames, and its mesh; once, before anything below but meet().
  void begin(std::shared_ptr<host::HostBackend> frames, std::weak_ptr<tcp::Mesh> mesh);
  // The ranks have met. Does not wait; a thread of its own goes on.
  Status meet(const std::vector<tcp::Entry>& entries);
  // This rank leaves the group, in whichever way it has chosen. Waits for no peer.
  void leave() noexcept;

  // Null until this rank has chosen; then it lives as long as this.
  Backend* chosen() const noexcept { return chosen_.load(std::memory_order_acquire); }
  bool uses_memory() const noexcept;
  // The chosen backend, or the one of frames.
  std::shared_ptr<Backend> now() const;
  // Makes memory that suits either way.
  Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) const;

  // Waits until this rank has chosen and all have joined. A failure is not yet the group's.
  Status wait(Deadline deadline, const std::function<Status()>& trouble);
  // The same for the first step of an operation; a failure is the group's.
  Status wait_for(const Operation& operation, std::uint64_t sequence, Deadline deadline);
  // Waits for the choice of a rank that needs one by `deadline`, and else chooses frames.
  std::shared_ptr<Backend> insist(Deadline deadline);
  void stop_insisting() noexcept;
  // Until the choice, or for a short time.
  void rest(Deadline deadline);
  void wake() noexcept { changed_.notify_all(); }

  void fail(const Status& status) noexcept;
  Status failure(bool shared) const;
  void on_end(std::shared_ptr<const EndListener> listener);
  void on_wait(const std::shared_ptr<const WaitListener>& listener);
  std::vector<std::int32_t> awaited(std::uint32_t channel) const;
  std::vector<std::int32_t> unready() const;
  // See Backend.
  void adapt(GroupOptions* options_of_child) const;

 private:
  enum class Verdict { open, frames, memory };

  bool settle_on_frames() const noexcept;
  void frames_failed(const Status& failure);
  Status wait_for_choice(Deadline deadline, const std::function<Status()>& trouble);
  std::vector<std::int32_t> late() const;

  // For the thread.
  void work() noexcept;
  Status try_memory();
  void note_mapping(bool maps);
  Status tell(Backend& frames, Answers& answers, std::uint32_t round, bool own, bool* all);
  Status exchange(Backend& frames, Answers& answers, Letters& letters);

  void finish() noexcept;
  Status trouble() const;

  const GroupOptions options_;  // of the group of host://; its rendezvous comes with the meeting
  const Token token_;
  const bool few_connections_;

  // Guards everything below. Under it no call waits for a peer, or comes back here.
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<host::HostBackend> frames_;    // null once all use memory
  std::shared_ptr<local::LocalBackend> memory_;  // null once all use frames
  std::weak_ptr<tcp::Mesh> mesh_;                // of the frames
  std::shared_ptr<const void> served_;           // the place where this rank serves meetings
  std::shared_ptr<const EndListener> listener_;
  std::string place_;  // where the ranks of the host meet
  mutable Verdict verdict_ = Verdict::open;
  RankSet awaited_;    // the ranks that have not told yet
  bool maps_ = false;  // waits for the memory of all
  bool works_ = false;
  bool leaves_ = false;
  bool stops_insisting_ = false;
  std::atomic<Backend*> chosen_{nullptr};
};

}  // namespace trireme
