// One of the launcher's own outputs: written in order by a thread beside the event loop, so that a
// slow reader stops the lines and not the launcher.
#pragma once

#include <uv.h>

#include <functional>
#include <string>
#include <string_view>

namespace trireme::cluster {

class Output {
 public:
  // Calls `on_written` on the loop's thread after each write. The loop must run.
  Output(uv_loop_t* loop, int descriptor, std::function<void()> on_written);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void append(std::string_view text);
  // Bytes that the reader has not read yet.
  std::size_t pending() const { return waiting_.size() + writing_.size(); }
  bool idle() const { return pending() == 0; }

 private:
  static void write_all(uv_work_t* work);
  static void written(uv_work_t* work, int status);
  void write_next();
  void take_result();

  uv_loop_t* const loop_;
  const int descriptor_;
  const std::function<void()> on_written_;
  uv_work_t work_{};
  std::string waiting_;
  std::string writing_;
  bool refused_ = false;  // the last write failed; the writing thread's until written() runs
  bool broken_ = false;   // the reader is gone; the workers go on
};

}  // namespace trireme::cluster
