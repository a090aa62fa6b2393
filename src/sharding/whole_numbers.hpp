// WholeNumbers: the numbers that the elements of a SPLIT parameter have in the whole parameter.
// Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sharding/range.hpp"
#include "sharding/registry.hpp"

namespace trireme::sharding {

class WholeNumbers {
 public:
  explicit WholeNumbers(const Parameter& parameter);

  // Whether an element has the same number here and in the whole.
  bool same() const { return split_.empty(); }
  // Visits [first, first + count) in stretches that are stretches of the whole, too. Calls act()
  // with the first element here, its number in the whole, and the count of elements.
  template <class Act>
  void visit(std::uint64_t first, std::uint64_t count, const Act& act) const {
    while (count > 0) {
      std::uint64_t number = 0;
      const std::uint64_t here = std::min(count, find(first, &number));
      act(first, number, here);
      first += here;
      count -= here;
    }
  }

 private:
  struct Dimension {
    std::uint64_t extent = 0;  // of the whole
    // The neighbours in the whole, by their place here. Empty: all of them.
    std::vector<Range> stretches;
    std::uint64_t count = 0;  // here
  };

  // The number of an element, and the elements from it on whose numbers follow.
  std::uint64_t find(std::uint64_t element, std::uint64_t* number) const;

  std::vector<Dimension> split_;  // up to the last dimension that is cut
  std::uint64_t inner_ = 1;       // elements of the dimensions behind it
};

// The shape of the whole parameter.
std::vector<std::uint64_t> whole_shape(const Parameter& parameter);
std::uint64_t whole_elements(const Parameter& parameter);

}  // namespace trireme::sharding
