// A control segment in memory of this process.
#pragma once

#include "backends/slots/segment.hpp"
#include "platform/system.hpp"

// The segment of a group whose ranks are all here.
class SharedSegment {
 public:
  explicit SharedSegment(int world_size)
      : layout_(world_size, false),
        base_(trireme::system_table().map(-1, layout_.total_bytes)),
        segment_(base_, layout_) {}
  ~SharedSegment() { trireme::system_table().unmap(base_, layout_.total_bytes); }
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  const trireme::local::Segment& segment() const { return segment_; }

 private:
  const trireme::local::Layout layout_;
  void* const base_;
  const trireme::local::Segment segment_;
};
