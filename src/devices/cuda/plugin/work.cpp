// The functions of the table that work on a device.
#include "devices/cuda/plugin/answer.hpp"
#include "devices/cuda/plugin/open_device.hpp"

namespace trireme::cuda {
namespace {

// A method of OpenDevice as a function of the table.
template <auto kMethod>
struct Work;
template <class... Parameters, Status (OpenDevice::*kMethod)(Parameters...)>
struct Work<kMethod> {
  static std::int32_t run(OpenDevice* device, Parameters... parameters, Answer* answer) noexcept {
    return guard(answer, [&] { return (device->*kMethod)(parameters...); });
  }
};

}  // namespace

void add_work(Plugin* plugin) {
  plugin->open = [](std::int32_t index, OpenDevice** out, Answer* answer) noexcept {
    return guard(answer, [&] { return OpenDevice::open(index, out); });
  };
  plugin->close = [](OpenDevice* device, Answer* answer) noexcept {
    return guard(answer, [&] {
      const Status status = device->close();
      delete device;
      return status;
    });
  };
  plugin->release = [](OpenDevice* device, const DeviceMemory* memory, Answer* answer) noexcept {
    return guard(answer, [&] { return device->release(*memory); });
  };
  plugin->allocate = Work<&OpenDevice::allocate>::run;
  plugin->pin = Work<&OpenDevice::pin>::run;
  plugin->unpin = Work<&OpenDevice::unpin>::run;
  plugin->create_stream = Work<&OpenDevice::create_stream>::run;
  plugin->destroy_stream = Work<&OpenDevice::destroy_stream>::run;
  plugin->adopt_stream = Work<&OpenDevice::adopt_stream>::run;
  plugin->create_event = Work<&OpenDevice::create_event>::run;
  plugin->destroy_event = Work<&OpenDevice::destroy_event>::run;
  plugin->record = Work<&OpenDevice::record>::run;
  plugin->wait = Work<&OpenDevice::wait>::run;
  plugin->query = Work<&OpenDevice::query>::run;
  plugin->copy = Work<&OpenDevice::copy>::run;
  plugin->fill = Work<&OpenDevice::fill>::run;
  plugin->launch = Work<&OpenDevice::launch>::run;
}

}  // namespace trireme::cuda
