// Buffers: memory that peers read in place: this rank's own buffers, and the buffers of peers that
// it maps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/slots/group.hpp"
#include "backends/twin.hpp"

namespace trireme::local {

class Buffers;

// One piece of this rank's memory. Threads: plain pages. Processes: a sealed memfd.
class OwnBuffer final : public Memory, public std::enable_shared_from_this<OwnBuffer> {
 public:
  OwnBuffer(std::shared_ptr<Buffers> table, std::uint64_t id, void* data, std::uint64_t bytes,
            std::uint64_t mapped_bytes, int descriptor, std::shared_ptr<Twin> twin);
  ~OwnBuffer() override;

  std::uint64_t id() const { return id_; }
  std::uint64_t mapped_bytes() const { return mapped_bytes_; }
  int descriptor() const { return descriptor_; }               // -1 between threads
  const std::shared_ptr<Twin>& twin() const { return twin_; }  // may be null

 private:
  std::shared_ptr<Buffers> table_;
  const std::uint64_t id_;
  const std::uint64_t mapped_bytes_;
  const int descriptor_;
  const std::shared_ptr<Twin> twin_;
};

// The news of buffers for the processes at the other ends of the sockets.
struct BufferSink {
  std::function<void(std::uint64_t id)> made;
  std::function<void(std::uint64_t id)> freed;
};

class Buffers : public std::enable_shared_from_this<Buffers> {
 public:
  // `twins`: each buffer gets a twin, where the system gives one.
  explicit Buffers(Group& group, bool twins = false);

  Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out);
  // The buffer that holds all of [data, data + bytes), or null.
  std::shared_ptr<OwnBuffer> find(const void* data, std::uint64_t bytes);
  std::shared_ptr<OwnBuffer> find(std::uint64_t id);
  std::vector<std::uint64_t> ids();

  // The purpose of a wait for a buffer, for the log. Sequence 0 is not written.
  struct Purpose {
    const char* name;
    std::uint64_t sequence;
  };
  // Waits until the buffer of `peer` is mapped here, and checks that the range lies within it.
  Status resolve(int peer, const Location& location, std::uint64_t bytes, Purpose purpose,
                 Deadline deadline, std::byte** out, std::shared_ptr<void>* keep);
  // The same without a wait: null in *out if the buffer has not come yet.
  Status find_mapped(int peer, const Location& location, std::uint64_t bytes, std::byte** out,
                     std::shared_ptr<void>* keep);
  // The number by which peers map a buffer of this rank, while it lives.
  std::uint64_t key_of(Memory& memory) const;
  Status map_peer(int peer, std::uint64_t key, std::uint64_t bytes, Deadline deadline,
                  std::shared_ptr<Memory>* out);
  // Replaces the pages of the buffer that holds `data` by private memory with the same content. For
  // a failed group: then no peer can write to it any more.
  void make_private(const void* data);
  // Maps a buffer that a peer has passed; takes the descriptor in any case.
  Status add_peer_buffer(int peer, std::uint64_t id, std::uint64_t bytes, int descriptor);
  void drop_peer_buffer(int peer, std::uint64_t id);

  // The sink learns of the buffers that are there, too.
  void set_sink(BufferSink sink);
  // The group is gone: peers receive no more news. Memory lives on until its owners release it.
  void detach() noexcept;

 private:
  friend class OwnBuffer;
  struct PeerBuffer {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::shared_ptr<void> mapping;
  };

  struct OwnEntry {
    std::uint64_t id = 0;
    std::uint64_t bytes = 0;
    std::weak_ptr<OwnBuffer> buffer;
  };

  Status map_own(std::uint64_t bytes, std::uint64_t mapped, std::shared_ptr<OwnBuffer>* out);
  void forget(const OwnBuffer& buffer) noexcept;

  const bool processes_;
  const bool twins_;
  const int world_size_;
  std::mutex mutex_;  // guards everything below
  Group* group_;      // null after detach()
  BufferSink sink_;
  std::uint64_t next_id_ = 1;
  std::map<std::uintptr_t, OwnEntry> own_;                  // by first address
  std::vector<std::map<std::uint64_t, PeerBuffer>> peers_;  // by rank, then id
};

}  // namespace trireme::local
