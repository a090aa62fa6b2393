// The trireme command.
#include <trireme/trireme.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "cli/bench/settings.hpp"
#include "cli/doctor/doctor.hpp"
#include "cli/node_settings.hpp"
#include "cli/plan/plan.hpp"
#include "cli/run_arguments.hpp"
#include "launch/supervisor.hpp"
#include "launch/launcher.hpp"

namespace {

constexpr int kUsageError = 2;

std::string version_text() {
  const unsigned version = trireme_version();
  return "trireme " + std::to_string(version / 1'000'000) + "." +
         std::to_string(version / 1000 % 1000) + "." + std::to_string(version % 1000);
}

int show_info(bool failpoints) {
  if (failpoints) {
    for (std::uint32_t i = 0; i < trireme_failpoint_count(); ++i) {
      std::printf("%s\n", trireme_failpoint_name(i));
    }
  } else {
    std::printf("%s\n", trireme_build_info());
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

// Settles the options of run that depend on each other.
void prepare_launch(const std::string& workers, bool bind_gpus,
                    const trireme::cli::NodeSettings& nodes,
                    trireme::cluster::LaunchOptions* launch) {
  launch->workers = trireme::cli::workers_of(workers);
  launch->nodes = trireme::cli::nodes_of(nodes);
  launch->master_address = nodes.master_address;
  launch->master_port = nodes.master_port;
  launch->free_master_port = nodes.standalone && nodes.master_port == 0;
  if (launch->nodes) {
    launch->nodes->keep_survivors = launch->keep_survivors;
    launch->nodes->restarts = launch->restarts;
  }
  const int cores = trireme::cli::usable_cores();
  if (launch->bind_cores && cores < launch->workers) {
    throw CLI::ValidationError("--bind-cores", std::to_string(launch->workers) + " workers, but " +
                                                   std::to_string(cores) + " cores");
  }
  if (!bind_gpus) return;
  launch->gpus = trireme::cli::visible_gpus();
  if (static_cast<int>(launch->gpus.size()) < launch->workers) {
    throw CLI::ValidationError("--bind-gpus", std::to_string(launch->workers) + " workers, but " +
                                                  std::to_string(launch->gpus.size()) +
                                                  " GPUs are seen");
  }
}

int run_command(int argc, char** argv) {
  trireme::cluster::LaunchOptions launch;
  std::vector<std::string> words(argv + std::min(1, argc), argv + argc);

  CLI::App app{"Distributed training behind a stable C ABI.", "trireme"};
  app.set_version_flag("--version", version_text());
  app.require_subcommand(0, 1);

  CLI::App* const run =
      app.add_subcommand("run", "Starts the workers of a job, on this host or on several");
  run->footer(
      "The program follows: trireme run --nproc-per-node 4 [--] PROGRAM [ARGUMENTS]. A script "
      "FILE.py is run by python3, or by $TRIREME_PYTHON.\n"
      "torchrun's spellings (--nproc_per_node=4) are understood.");
  bool no_prefix = false;
  double grace_seconds = 5;
  std::string workers;
  run->add_option("--nproc-per-node", workers,
                  "Number of workers on this host; or gpu, cpu: as many as there are of these; or "
                  "auto: gpu if there is one, else cpu")
      ->type_name("N")
      ->required();
  bool module = false, no_python = false, bind_gpus = false;
  run->add_flag("-m,--module", module, "The program is a module of Python");
  run->add_flag("--no-python", no_python, "Run FILE.py itself");
  run->add_option(
         "--max-restarts", launch.restarts,
         "How often to start all workers again after a failure (default 0; the same on all hosts)")
      ->check(CLI::Range(0, trireme::cluster::kMostRestarts))
      ->type_name("N");
  run->add_flag("--keep-survivors", launch.keep_survivors,
                "A worker that fails does not end the others; the job succeeds if one does");
  run->add_flag(
      "--bind-cores", launch.bind_cores,
      "Give each worker an equal share of the cores, and OMP_NUM_THREADS if it is not set");
  run->add_flag("--bind-gpus", bind_gpus,
                "Let each worker see one GPU alone, by CUDA_VISIBLE_DEVICES");
  run->add_flag("--no-prefix", no_prefix, "Do not put [RANK] before the workers' lines");
  run->add_option("--log-dir", launch.log_folder,
                  "Also write each worker's output to DIR/rank-N.out and DIR/rank-N.err")
      ->type_name("DIR");
  run->add_option("--grace", grace_seconds,
                  "Seconds between asking the workers to end and killing them (default 5)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0));

  trireme::cli::NodeSettings nodes;
  trireme::cli::add_options(*run, &nodes);

  CLI::App* const info = app.add_subcommand("info", "Describes this installation");
  bool failpoints = false;
  info->add_flag("--failpoints", failpoints, "List the failpoints of the library");

  CLI::App* const examine = app.add_subcommand(
      "doctor", "Tells how well this machine suits a job, and names every obstacle");
  trireme::doctor::Settings doctor;
  examine->add_flag("--json", doctor.json, "Write it as JSON");
  examine->add_option("--folder", doctor.folder, "Also tell whether state can be offloaded there")
      ->type_name("DIR");
  trireme::doctor::Connection& connection = doctor.connection;
  CLI::Option* const meets =
      examine
          ->add_option(
              "--connect", connection.rendezvous,
              "Also meet the same command on other hosts there, and measure the ways "
              "between them: tcp://ADDRESS:PORT, or env:// for the place that a launcher has set")
          ->type_name("RENDEZVOUS");
  examine->add_option("--rank", connection.rank, "With --connect: the number of this one, from 0")
      ->needs(meets)
      ->check(CLI::NonNegativeNumber);
  examine
      ->add_option("--world-size", connection.world_size, "With --connect: the number of processes")
      ->needs(meets)
      ->check(CLI::PositiveNumber);
  examine->add_option("--backend", connection.backend, "With --connect: frames or gloo")
      ->needs(meets)
      ->type_name("NAME");
  examine
      ->add_option("--wait", connection.wait_seconds,
                   "With --connect: seconds to wait for the others (default 30)")
      ->needs(meets)
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 86400.0));
  examine->footer("Exits with 1 if there is advice, which is marked with !. ~ marks a remark.");

  CLI::App* const bench =
      app.add_subcommand("bench", "Measures operations, and checks their results");
  trireme::bench::Settings bench_settings;
  trireme::bench::add_options(*bench, &bench_settings);

  CLI::App* const planning =
      app.add_subcommand("plan", "Compares schedules of a pipeline, and draws one");
  trireme::plan::Settings plan;
  planning
      ->add_option("--pipeline", plan.file, "Costs of the stages: docs/pipeline.md tells the lines")
      ->type_name("FILE")
      ->required();
  planning->add_option("--order", plan.order, "The order that is drawn, such as zbv (default best)")
      ->type_name("NAME");
  planning
      ->add_option("--format", plan.format, "text, csv, drawing, svg or trace (default drawing)")
      ->type_name("NAME");
  bool drawing_alone = false;
  planning->add_flag("--drawing-alone", drawing_alone, "Do not write the table of all orders");

  try {
    if (!words.empty() && words[0] == "run") {
      const trireme::cli::RunArguments split =
          trireme::cli::split_run_arguments({words.begin() + 1, words.end()});
      launch.program = split.program;
      words.resize(1);
      words.insert(words.end(), split.options.begin(), split.options.end());
    }
    std::reverse(words.begin(), words.end());  // the parser wants them in reverse
    app.parse(std::move(words));
    if (app.get_subcommands().empty()) {
      throw CLI::ValidationError("command", "run, bench, plan, doctor or info is missing");
    }
    if (bench->parsed()) trireme::bench::check_settings(bench_settings);
    if (run->parsed() && launch.program.empty()) {
      throw CLI::ValidationError("run", "\"-- PROGRAM [ARGUMENTS]\" is missing");
    }
    if (std::isnan(grace_seconds)) throw CLI::ValidationError("--grace", "is not a number");
    if (run->parsed()) prepare_launch(workers, bind_gpus, nodes, &launch);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    std::fprintf(stderr, "trireme: %s\nRun trireme --help or trireme run --help for more.\n",
                 error.what());
    return kUsageError;
  }
  if (info->parsed()) return show_info(failpoints);
  if (bench->parsed()) return trireme::bench::run(bench_settings);
  if (planning->parsed()) {
    plan.all = !drawing_alone;
    return trireme::plan::run(plan);
  }
  if (examine->parsed()) return trireme::doctor::run(doctor);
  launch.prefix = !no_prefix;
  launch.grace = std::chrono::nanoseconds(static_cast<std::int64_t>(grace_seconds * 1e9));
  return trireme::cluster::run_launcher(launch);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 1 && std::strcmp(argv[1], trireme::cluster::kSupervisorCommand) == 0) {
      return trireme::cluster::run_supervisor(argv + 2);
    }
    return run_command(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trireme: %s\n", error.what());
    return 1;
  }
}
