// The operations of Gloo over TCP, f32; all-reduce by the faster of its two algorithms. Its own
// argument is the number of ranks, which it starts on the loopback, or RANKS,RANK,INTERFACE,FOLDER:
// then it is one of them, and they meet in the folder.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "peer.hpp"

namespace {

using Context = std::shared_ptr<gloo::Context>;

void all_reduce(const Context& context, float* data, std::size_t count,
                gloo::AllreduceOptions::Algorithm algorithm,
                void (*combine)(void*, const void*, const void*, std::size_t)) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(algorithm);
  options.setInput(data, count);
  options.setOutput(data, count);
  options.setReduceFunction(combine);
  gloo::allreduce(options);
}

void work(int rank, int n, const std::string& interface, const std::string& folder,
          const peer::Arguments& arguments) {
  gloo::transport::tcp::attr attributes;
  attributes.iface = interface;
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto store = std::make_shared<gloo::rendezvous::FileStore>(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, n);
  context->connectFullMesh(*store, device);

  const auto meet = [&] {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  };
  const auto agree = [&](double value) {
    gloo::BroadcastOptions options(context);
    options.setOutput(&value, 1);
    options.setRoot(0);
    gloo::broadcast(options);
    return value;
  };
  const auto slowest = [&](std::vector<double>& samples) {
    gloo::AllreduceOptions options(context);
    options.setInput(samples.data(), samples.size());
    options.setOutput(samples.data(), samples.size());
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::max<double>));
    gloo::allreduce(options);
  };
  for (const peer::Case& what : arguments.cases) {
    const std::size_t count = what.bytes / sizeof(float);
    const std::size_t block = count / static_cast<std::size_t>(n);
    std::vector<float> data(count + 1, 1e-3f);
    std::vector<float> other(count + 1, 1e-3f);
    const auto run = [&](auto call) {
      return peer::measure(arguments, meet, agree, slowest, call);
    };
    double median = 0;
    if (what.op == "all_reduce") {
      using Algorithm = gloo::AllreduceOptions::Algorithm;
      const auto with = [&](Algorithm algorithm) {
        return run([&, algorithm] {
          all_reduce(context, data.data(), count, algorithm, &gloo::sum<float>);
        });
      };
      median = std::min(with(Algorithm::RING), with(Algorithm::BCUBE));
    } else if (block == 0 && (what.op == "reduce_scatter" || what.op == "all_gather")) {
      continue;  // Gloo ends the process if a rank has no element
    } else if (what.op == "reduce_scatter") {
      std::vector<float*> pointers{data.data()};
      std::vector<int> counts(static_cast<std::size_t>(n), static_cast<int>(block));
      gloo::ReduceScatterHalvingDoubling<float> algorithm(
          context, pointers, static_cast<int>(count), counts, gloo::ReductionFunction<float>::sum);
      median = run([&] { algorithm.run(); });
    } else if (what.op == "all_gather") {
      median = run([&] {
        gloo::AllgatherOptions options(context);
        options.setInput(other.data(), block);
        options.setOutput(data.data(), block * static_cast<std::size_t>(n));
        gloo::allgather(options);
      });
    } else if (what.op == "broadcast") {
      median = run([&] {
        gloo::BroadcastOptions options(context);
        options.setOutput(data.data(), count);
        options.setRoot(0);
        gloo::broadcast(options);
      });
    } else if (what.op == "send_receive") {
      auto from = context->createUnboundBuffer(data.data(), count * sizeof(float));
      auto to = context->createUnboundBuffer(other.data(), count * sizeof(float));
      median = run([&] {
        from->send((rank + 1) % n, 7);
        to->recv((rank + n - 1) % n, 7);
        from->waitSend();
        to->waitRecv();
      });
    } else if (what.op == "barrier") {
      median = run(meet);
    } else {
      continue;
    }
    if (rank == 0) peer::print(what, median);
  }
  meet();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const int n = std::atoi(argv[1]);
  const peer::Arguments arguments = peer::parse(argc - 2, argv + 2);
  int rank = 0;
  char interface[64];
  char meeting[4096];
  if (std::sscanf(argv[1], "%*d,%d,%63[^,],%4095s", &rank, interface, meeting) == 3) {
    work(rank, n, interface, meeting, arguments);
    return 0;
  }
  char folder[] = "/tmp/trireme-peer-gloo-XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  for (rank = 0; rank < n; ++rank) {
    if (fork() == 0) {
      work(rank, n, "lo", folder, arguments);
      _exit(0);
    }
  }
  int failed = 0;
  int status = 0;
  while (wait(&status) > 0) failed |= status;
  std::filesystem::remove_all(folder);
  return failed == 0 ? 0 : 1;
}
