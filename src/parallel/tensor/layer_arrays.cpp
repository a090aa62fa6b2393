#include "parallel/tensor/layer_arrays.hpp"

#include <string>

namespace trireme::parallel {

Status check_arrays(std::initializer_list<LayerArray> arrays) {
  for (const LayerArray& array : arrays) {
    if (array.data != nullptr || array.bytes == 0) continue;
    return invalid_argument(std::string(array.name) + " is NULL but holds " +
                            std::to_string(array.bytes) + " bytes");
  }
  for (const LayerArray& written : arrays) {
    if (!written.written || written.bytes == 0) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(written.data);
    for (const LayerArray& other : arrays) {
      const auto at = reinterpret_cast<std::uintptr_t>(other.data);
      if (&other == &written || other.bytes == 0 || at >= begin + written.bytes ||
          begin >= at + other.bytes) {
        continue;
      }
      return invalid_argument(std::string(written.name) + " and " + other.name + " overlap");
    }
  }
  return Status::success();
}

}  // namespace trireme::parallel
