// Descriptors: which of the process' are the library's own. A child that the program forks has them,
// too: it would hold connections open that their peers must see end, and names that others wait for.
// So a forked child closes them before anything else runs there.
#pragma once

namespace trireme {

// While it lives no fork begins: what a call of the system makes or closes is noted before a child can
// see it. Were a closed one still noted, the child would close what the program has there by then.
class DescriptorChange {
 public:
  DescriptorChange() noexcept;
  ~DescriptorChange();
  DescriptorChange(const DescriptorChange&) = delete;
  DescriptorChange& operator=(const DescriptorChange&) = delete;
};

// Inside a DescriptorChange. Negative ones are ignored, and errno stays.
void note_descriptor(int descriptor) noexcept;
void forget_descriptor(int descriptor) noexcept;

// Why the system last gave this process nothing to meet another one with: an errno, or 0 if it did. Who
// calls in vain waits in the system's queue.
void note_refusal(int error_number) noexcept;
int system_refusal() noexcept;

// Notes what `open` gives, and gives it back.
template <class Open>
int own_descriptor(Open open) {
  const DescriptorChange change;
  const int descriptor = open();
  note_descriptor(descriptor);
  return descriptor;
}

}  // namespace trireme
