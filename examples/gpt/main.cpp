// gpt: several workers train one character-level language model, a transformer as GPT-2 has it.
//
//   $ trireme run --nproc-per-node 2 -- ./example_gpt --text FILE --strategy zero3
//
// Without the launcher it trains alone. The losses and the trained parameters are the same bits
// for every strategy and number of ranks, and with any --checkpoint or --activation-budget. With
// --tensor T, T ranks split each layer; then --tensor-blocks decides about the bits, and T does
// not. With --pipeline P, P ranks have the layers one after the other, in the order of --schedule.
// Neither P nor the order changes the bits. With --tie yes the head has the weight of the
// embedding, on whichever ranks the two lie.
//
// With --device cuda parameters, gradients and state of the optimizer are memory of a device, and
// its kernels update them. The program has no kernels of its own: the host computes the layers on
// copies. The bits stay the same.
#include <trireme/trireme.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "numbers.hpp"
#include "plain.hpp"
#include "report.hpp"
#include "text.hpp"
#include "train.hpp"

namespace {

struct Options {
  gpt::Training training;
  std::string text = "examples/data/trireme.txt", out = ".";
  int sample = 500;  // characters
};

template <class Integer>
Integer whole_number(const std::string& text) {
  std::size_t used = 0;
  const unsigned long long number = std::stoull(text, &used);
  if (used != text.size() || text[0] == '-' || !std::in_range<Integer>(number))
    throw std::invalid_argument(text);
  return static_cast<Integer>(number);
}

double real_number(const std::string& text) {
  std::size_t used = 0;
  const double number = std::stod(text, &used);
  if (used != text.size() || !(number >= 0)) throw std::invalid_argument(text);
  return number;
}

// Of a rank, so that the order can be made.
std::uint32_t least_stages(trireme_pipeline_order order) {
  switch (order) {
    case TRIREME_PIPELINE_ORDER_INTERLEAVED:
    case TRIREME_PIPELINE_ORDER_ZB_V:
    case TRIREME_PIPELINE_ORDER_V_HALF:
    case TRIREME_PIPELINE_ORDER_V_MIN:
    case TRIREME_PIPELINE_ORDER_DUALPIPE_V: return 2;
    default: return 1;
  }
}

Options parse(int argc, char** argv) {
  Options options;
  gpt::Training& t = options.training;
  const auto whole = []<class Integer>(Integer& to) {
    return [&to](const std::string& text) { to = whole_number<Integer>(text); };
  };
  const auto real = [](double& to) {
    return [&to](const std::string& text) { to = real_number(text); };
  };
  const std::map<std::string, std::function<void(const std::string&)>> known = {
      {"--strategy",
       [&t](const std::string& text) {
         if (trireme_strategy_parse(text.c_str(), &t.strategy) != TRIREME_OK)
           throw std::invalid_argument(text);
       }},
      {"--shard-ranks", whole(t.shard_ranks)},
      {"--share",
       [&t](const std::string& text) {
         if (text != "yes" && text != "no") throw std::invalid_argument(text);
         t.share = text == "yes";
       }},
      {"--device",
       [&t](const std::string& text) {
         if (text != "host" && text != "cuda") throw std::invalid_argument(text);
         t.on_device = text == "cuda";
       }},
      {"--data", whole(t.data)},
      {"--pipeline", whole(t.pipeline)},
      {"--schedule",
       [&t](const std::string& text) {
         if (trireme_pipeline_order_parse(text.c_str(), &t.order) != TRIREME_OK)
           throw std::invalid_argument(text);
       }},
      {"--stages", whole(t.stages_per_rank)},
      {"--tensor", whole(t.tensor)},
      {"--tensor-blocks", whole(t.tensor_blocks)},
      {"--sequence",
       [&t](const std::string& text) {
         if (text != "yes" && text != "no") throw std::invalid_argument(text);
         t.sequence = text == "yes";
       }},
      {"--seed", whole(t.seed)},
      {"--layers", whole(t.config.blocks)},
      {"--width", whole(t.config.width)},
      {"--heads", whole(t.config.heads)},
      {"--context", whole(t.config.context)},
      {"--dropout", real(t.config.dropout)},
      {"--tie",
       [&t](const std::string& text) {
         if (text != "yes" && text != "no") throw std::invalid_argument(text);
         t.config.tie = text == "yes";
       }},
      {"--checkpoint", whole(t.checkpoint_every)},
      {"--activation-budget", whole(t.activation_budget)},
      {"--leaves", whole(t.leaves)},
      {"--sequences", whole(t.sequences)},
      {"--steps", whole(t.steps)},
      {"--warm-up", whole(t.warm_up)},
      {"--rate", real(t.rate)},
      {"--weight-decay", real(t.weight_decay)},
      {"--max-norm", real(t.max_norm)},
      {"--text", [&options](const std::string& text) { options.text = text; }},
      {"--out", [&options](const std::string& text) { options.out = text; }},
      {"--sample", whole(options.sample)},
  };
  for (int i = 1; i < argc; i += 2) {
    const auto option = known.find(argv[i]);
    if (option == known.end() || i + 1 == argc) {
      std::string names = "options, each with a value:";
      for (const auto& [name, set] : known) names += " " + name;
      throw std::runtime_error(names);
    }
    try {
      option->second(argv[i + 1]);
    } catch (const std::logic_error&) {
      throw std::runtime_error(option->first + " does not take " + argv[i + 1]);
    }
  }
  const gpt::Config& c = t.config;
  if (c.blocks < 1 || c.heads < 1 || c.width < 1 || c.width % c.heads != 0 || c.context < 1)
    throw std::runtime_error(
        "--layers, --heads and --context are at least 1; --heads divides --width");
  if (t.leaves < 1 || t.sequences < 1 || t.steps < 1)
    throw std::runtime_error("--leaves, --sequences and --steps are at least 1");
  if (t.tensor == 0 && (t.sequence || t.tensor_blocks != 0))
    throw std::runtime_error("--sequence and --tensor-blocks need --tensor");
  if (t.tensor > 0 && c.tie) throw std::runtime_error("--tie does not go with --tensor");
  if ((t.tensor > 0 || t.pipeline > 0 || t.data > 0) &&
      t.strategy == TRIREME_STRATEGY_HYBRID_SHARD && t.shard_ranks == 0)
    throw std::runtime_error(
        "hybrid_shard with --data, --tensor or --pipeline needs --shard-ranks");
  if (t.stages_per_rank == 0) t.stages_per_rank = least_stages(t.order);
  if (c.dropout >= 1) throw std::runtime_error("--dropout is below 1");
  return options;
}

gpt::Text read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  if (!file || bytes.str().empty()) throw std::runtime_error(path + " cannot be read");
  return gpt::encode(bytes.str());
}

// Text that the model goes on with, character by character, from softmax(scores / 0.8).
std::string write_sample(const gpt::Config& config, const std::vector<float>& values,
                         const gpt::Text& text, int count, std::uint64_t seed) {
  constexpr double kTemperature = 0.8;
  gpt::Plain<float> model(config, 1, values);
  std::vector<std::int32_t> written = {text.tokens[0]}, window(config.context);
  std::vector<double> chances(config.vocabulary);
  for (int i = 0; i < count; ++i) {
    // No character looks at those after it, so any may stand after the last one.
    const int seen = std::min<int>(static_cast<int>(written.size()), config.context);
    std::fill(window.begin(), window.end(), 0);
    std::copy(written.end() - seen, written.end(), window.begin());
    model.forward(TRIREME_PHASE_EVALUATE, {window.data(), nullptr}, 0, nullptr);
    const float* scores =
        model.scores() + static_cast<std::ptrdiff_t>(seen - 1) * config.vocabulary;
    const float largest = *std::max_element(scores, scores + config.vocabulary);
    double sum = 0;
    for (int c = 0; c < config.vocabulary; ++c)
      sum += chances[c] = std::exp((scores[c] - largest) / kTemperature);
    double left = sum * gpt::uniform(seed, static_cast<std::uint64_t>(i));
    int token = 0;
    while (token + 1 < config.vocabulary && (left -= chances[token]) >= 0) ++token;
    written.push_back(token);
  }
  return gpt::decode(text, written);
}

double mebibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void print_layout(const trireme_parallel_info& layout) {
  if (layout.world_size == 0) return;
  std::printf("layout: data %d x shard %d x tensor %d x pipeline %d", layout.data, layout.shard,
              layout.tensor, layout.pipeline);
  if (layout.pipeline > 1) {
    const char* const name = trireme_pipeline_order_name(layout.order);
    std::printf("; %s, %u stages, %u micro-batches: ranks wait %.1f %% of a step of equal stages",
                name, layout.stages, layout.micro_batches, 100 * layout.bubble);
  }
  std::printf("\n");
}

void print_costs(const gpt::Outcome& outcome) {
  print_layout(outcome.layout);
  const trireme_model_memory& m = outcome.memory;
  std::printf(
      "memory of rank 0 in MiB, planned/allocated: parameters %.2f/%.2f, gradients "
      "%.2f/%.2f, optimizer state %.2f/%.2f, working %.2f/%.2f; the trainer's %.2f\n",
      mebibytes(m.planned_parameters), mebibytes(m.allocated_parameters),
      mebibytes(m.planned_gradients), mebibytes(m.allocated_gradients),
      mebibytes(m.planned_optimizer_state), mebibytes(m.allocated_optimizer_state),
      mebibytes(m.planned_working), mebibytes(m.allocated_working),
      mebibytes(outcome.trainer.allocated_bytes));
  std::printf("%llu gathers (%llu ahead of their use), %llu reductions, %.1f s waited for them\n",
              static_cast<unsigned long long>(outcome.statistics.gathers),
              static_cast<unsigned long long>(outcome.statistics.prefetched),
              static_cast<unsigned long long>(outcome.statistics.reductions),
              static_cast<double>(outcome.statistics.exposed_ns) * 1e-9);
  std::printf(
      "time: %zu steps in %.2f s, %.2f ms a step, %.2f ms an evaluation of as many characters "
      "(medians); %llu bytes of activations planned, %llu of %llu layers computed twice\n",
      outcome.losses.size(), outcome.seconds, outcome.step_seconds * 1e3,
      outcome.evaluation_seconds * 1e3, static_cast<unsigned long long>(outcome.activation_bytes),
      static_cast<unsigned long long>(outcome.trainer.recomputed),
      static_cast<unsigned long long>(outcome.trainer.layers));
}

// The ranks of a host share its devices among them.
std::int32_t device_of_this_rank() {
  std::int32_t devices = 0;
  if (trireme_device_count(TRIREME_DEVICE_CUDA, &devices) != TRIREME_OK)
    throw std::runtime_error(trireme_last_error());
  if (devices == 0) throw std::runtime_error("there is no CUDA device");
  const char* const rank = std::getenv("LOCAL_RANK");
  return rank == nullptr ? 0 : std::atoi(rank) % devices;
}

trireme_communicator* join(bool on_device) {
  trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
  if (on_device) options.device = {TRIREME_DEVICE_CUDA, device_of_this_rank()};
  options.rendezvous = "env://";
  if (std::getenv("RANK") == nullptr) {
    options.rendezvous = "local://gpt";
    options.world_size = 1;
  }
  trireme_communicator* communicator = nullptr;
  if (trireme_communicator_create(&options, &communicator) != TRIREME_OK)
    throw std::runtime_error(trireme_last_error());
  return communicator;
}

void run(const Options& given) {
  Options options = given;
  gpt::Config& config = options.training.config;
  const gpt::Text text = read_text(options.text);
  config.vocabulary = static_cast<int>(text.alphabet.size());
  const double entropy = gpt::unigram_entropy(text);
  const auto length = static_cast<std::int64_t>(text.tokens.size());
  const gpt::Sampler trained(text.tokens, 0, length * 9 / 10, config.context,
                             options.training.seed);
  const gpt::Sampler held_out(text.tokens, length * 9 / 10, length, config.context, 0);

  gpt::use_one_thread();
  trireme_communicator* const communicator = join(options.training.on_device);
  std::int32_t rank = 0, ranks = 1;
  if (trireme_communicator_get_rank(communicator, &rank) != TRIREME_OK ||
      trireme_communicator_get_world_size(communicator, &ranks) != TRIREME_OK)
    throw std::runtime_error(trireme_last_error());
  const std::vector<gpt::Layer> layers = gpt::describe(config);
  if (rank == 0) {
    std::printf("text: %lld characters, %d different; unigram entropy %.4f nats a character\n",
                static_cast<long long>(length), config.vocabulary, entropy);
    std::printf("model: %llu parameters in %zu layers; %s on %d ranks; %d characters a step\n",
                static_cast<unsigned long long>(gpt::element_count(layers)), layers.size(),
                trireme_strategy_name(options.training.strategy), ranks,
                options.training.leaves * options.training.sequences * config.context);
    std::fflush(stdout);
  }

  gpt::Progress progress(options.training.steps);
  const gpt::Outcome outcome =
      gpt::train(communicator, options.training, trained, held_out, [&](const auto& metrics) {
        if (rank == 0) progress.after_step(static_cast<int>(metrics.step), metrics.loss);
      });
  trireme_communicator_destroy(communicator);
  if (rank != 0) return;

  const std::size_t last = std::min<std::size_t>(10, outcome.losses.size());
  double final_loss = 0;
  for (std::size_t i = 0; i < last; ++i) final_loss += *(outcome.losses.end() - 1 - i);
  print_costs(outcome);
  std::printf(
      "---- sample\n%s\n---- end of the sample\n",
      write_sample(config, outcome.values, text, options.sample, options.training.seed).c_str());
  const std::string plot = options.out + "/loss.svg";
  if (!gpt::write_plot(plot, outcome.losses, entropy))
    throw std::runtime_error(plot + " cannot be written");
  std::printf("%s has the losses\n", plot.c_str());
  std::printf("the loss of the last step, to the last bit: %a\n", outcome.losses.back());
  std::printf(
      "loss: first step %.4f, last %zu steps %.4f, text not trained on %.4f; unigram entropy "
      "%.4f\n",
      outcome.losses.front(), last, final_loss / static_cast<double>(last), outcome.held_out,
      entropy);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return EXIT_FAILURE;
  }
  return 0;
}
