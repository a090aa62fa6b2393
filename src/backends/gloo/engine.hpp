// GlooEngine: collectives that Gloo runs among some ranks of a tcp:// group, over connections of
// the group's mesh: Gloo opens no port of its own. Gloo reads and writes the caller's memory, and
// combines by the library's kernels.
#pragma once

#include <array>
#include <memory>

#include "backends/engine.hpp"
#include "backends/gloo/plugin.hpp"
#include "backends/tcp/exchange.hpp"
#include "backends/wire/ring.hpp"

namespace trireme::gloo {

class GlooEngine final : public host::Engine {
 public:
  // `lines` are there when the group is ready, and are closed after the engine is gone. UNSUPPORTED
  // if the plugin cannot be loaded, with its file and the loader's reason.
  static Status open(Members members, std::shared_ptr<const tcp::Lines> lines,
                     std::unique_ptr<host::Engine>* out);
  GlooEngine(const Plugin& plugin, Members members, std::shared_ptr<const tcp::Lines> lines)
      : plugin_(plugin),
        exchange_(std::move(members), std::move(lines)),
        ring_(all_ranks(exchange_.own(), exchange_.size()), exchange_) {}
  ~GlooEngine() override;

  const char* name() const override { return "gloo"; }
  bool offers(const Operation& operation) const override;
  bool prefers(const Operation& operation) const override;
  bool tells_apart() const override { return true; }
  Status run(const Operation& operation, std::uint64_t ticket, Deadline deadline) override;
  Wire* wire() override { return &exchange_; }
  TrafficCounters traffic() const override { return exchange_.traffic(); }
  void abort() noexcept override { exchange_.abort(); }

 private:
  Status run_in_gloo(const Operation& operation, std::uint64_t ticket, Deadline deadline);

  const Plugin& plugin_;
  tcp::Exchange exchange_;
  wire::Ring ring_;
  Group* group_ = nullptr;
};

// Checks whether the plugin can be loaded here.
Status available();

}  // namespace trireme::gloo
