// Workspace: memory that the layers of a tensor object use in turn. Peers read it in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>

#include "collectives/communicator.hpp"

namespace trireme::parallel {

class Workspace {
 public:
  explicit Workspace(Communicator& communicator) : communicator_(communicator) {}

  // Makes sure that there are so many bytes. The memory of a call under way stays as it is.
  Status reserve(std::uint64_t bytes);
  std::uint64_t bytes() const;

  // The result of a started pass, once it is over. A pass ends at its own deadline, or when the
  // group has failed: before that it uses memory that the caller may free.
  static Status wait(const Request& pass);

  // One call of a layer. Its takes are behind each other. It ends after the passes that the call
  // has started.
  class Use {
   public:
    Use() = default;
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use();

    // Of reserved memory; NULL for none. Throws std::bad_alloc beyond what is reserved.
    std::byte* take(std::uint64_t bytes);

    // The place of one more pass of the call; it stays where it is. Null: the pass did not start.
    std::shared_ptr<Request>* add_pass() { return &passes_.emplace_back(); }
    // Whether a started pass is not over.
    bool has_running_pass() const;

    // Gives back what is taken while it lives.
    class Part {
     public:
      explicit Part(Use& use) : use_(use), taken_(use.taken_) {}
      Part(const Part&) = delete;
      Part& operator=(const Part&) = delete;
      ~Part() { use_.taken_ = taken_; }

     private:
      Use& use_;
      const std::uint64_t taken_;
    };

   private:
    friend class Workspace;
    Workspace* from_ = nullptr;
    std::shared_ptr<Memory> memory_;
    std::uint64_t taken_ = 0;
    std::list<std::shared_ptr<Request>> passes_;  // allocates nothing while it is empty
  };
  // INVALID_STATE while another one is under way: no thread waits for another one's peers.
  Status begin(Use* out);

  // Bytes that take() uses up for so many bytes.
  static constexpr std::uint64_t kLine = 64;
  static std::uint64_t rounded(std::uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

 private:
  Communicator& communicator_;
  mutable std::mutex mutex_;
  std::shared_ptr<Memory> memory_;
  bool used_ = false;
};

}  // namespace trireme::parallel
