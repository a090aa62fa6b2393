// Descriptors: those of the process that are the library's own. A child that the program forks
// inherits them, too: it would keep connections open whose end peers must see, and hold names that
// others wait for. So a forked child closes them before anything else runs there.
#pragma once

namespace trireme {

// While it lives, no fork begins: a child sees the note of every descriptor that a call of the
// system makes or closes. If a closed descriptor were still noted, the child would close whatever
// the program has opened under its number.
class DescriptorChange {
 public:
  DescriptorChange() noexcept;
  ~DescriptorChange();
  DescriptorChange(const DescriptorChange&) = delete;
  DescriptorChange& operator=(const DescriptorChange&) = delete;
};

// Call both inside a DescriptorChange. Negative ones are ignored, and errno stays.
void note_descriptor(int descriptor) noexcept;
void forget_descriptor(int descriptor) noexcept;

// Why the system last refused this process a descriptor for a peer that calls: an errno, or 0 if it
// gave one. A peer that calls in vain waits in the system's queue.
void note_refusal(int error_number) noexcept;
int system_refusal() noexcept;

// Notes and returns the descriptor that `open` makes.
template <class Open>
int own_descriptor(Open open) {
  const DescriptorChange change;
  const int descriptor = open();
  note_descriptor(descriptor);
  return descriptor;
}

}  // namespace trireme
