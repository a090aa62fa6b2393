#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "axes.hpp"

namespace wide {

namespace {

// The rows of one expert and one leaf, with padding behind them: a layer's number of rows is fixed.
// Padding has gradients of 0.
template <class T>
struct Segment {
  std::uint64_t count = 0;
  std::vector<T> input = std::vector<T>(kCapacity * kWidth);
  std::vector<T> output = input, dy = input, dx = input;
  std::vector<char> kept;
};

int fc1_of(std::uint32_t expert) { return kExpert1 + 2 * static_cast<int>(expert); }

// Both forms have this in common: the router's numbers, the experts' networks, and the conversion
// of rows that sequence parallelism splits.
template <class T>
class RoutedParts : public RoutedMlp<T> {
 protected:
  using Rows = std::vector<T>;

  RoutedParts(const ExpertSetup& setup, std::uint32_t first_expert, std::uint32_t expert_count)
      : setup_(setup), first_expert_(first_expert) {
    for (std::uint32_t i = 0; i < expert_count; ++i) {
      const std::string name = "expert " + std::to_string(first_expert + i);
      trireme_mlp_options options = TRIREME_MLP_OPTIONS_INIT;
      options.name = name.c_str();
      options.activation = TRIREME_ACTIVATION_KIND_SILU;
      options.dtype = kType<T>;
      options.input = kWidth;
      options.hidden = kExpertHidden;
      options.output = kWidth;
      options.rows = kCapacity;
      trireme_mlp* mlp = nullptr;
      check(trireme_mlp_create(setup.tensor, &options, &mlp));
      mlps_.emplace_back(mlp);
      trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
      check(trireme_mlp_get_info(mlp, &info));
      kept_bytes_ = info.kept_bytes;
    }
    segments_.resize(expert_count * kSides);
    for (Segment<T>& each : segments_) each.kept.resize(kept_bytes_ + 1);
    if (setup.rows == nullptr) return;
    gather_ = region("routed rows", TRIREME_REGION_KIND_GATHER);
    scatter_ = region("results", TRIREME_REGION_KIND_SCATTER);
  }

  Segment<T>& segment(std::uint32_t expert, std::uint32_t leaf) {
    return segments_[(expert - first_expert_) * kSides + leaf];
  }
  const std::vector<std::unique_ptr<trireme_mlp, Destroy>>& mlps() const { return mlps_; }
  std::uint32_t first_expert() const { return first_expert_; }
  bool lowest() const { return setup_.lowest; }

  Rows whole(const Rows& rows, bool backward) const {
    if (setup_.rows == nullptr) return rows;
    Rows made(kRows * kWidth);
    const void* part = rows.data();
    check((backward ? trireme_region_backward : trireme_region_forward)(
        (backward ? scatter_ : gather_).get(), &part, 1, made.data(), nullptr));
    return made;
  }
  Rows own(const Rows& rows, std::size_t count, bool backward) const {
    if (setup_.rows == nullptr) return rows;
    Rows made(count);
    const void* part = rows.data();
    check((backward ? trireme_region_backward : trireme_region_forward)(
        (backward ? gather_ : scatter_).get(), &part, 1, made.data(), nullptr));
    return made;
  }

  // Sigmoids, so that no exponential of the library takes part.
  static std::vector<float> scores_of(const Rows& x, const Rows& router) {
    std::vector<float> scores;
    for (std::uint64_t row = 0; row < kRows; ++row) {
      for (std::uint32_t e = 0; e < kExperts; ++e) {
        double sum = 0;
        for (std::uint64_t i = 0; i < kWidth; ++i)
          sum += double{x[row * kWidth + i]} * router[e * kWidth + i];
        scores.push_back(static_cast<float>(1 / (1 + std::exp(-sum))));
      }
    }
    return scores;
  }
  // Adds to dx what goes through the router.
  static void router_backward(const Rows& x, const Rows& router, const std::vector<float>& scores,
                              const std::vector<float>& d_scores, Rows* dx,
                              std::vector<float>* d_router) {
    std::vector<double> sums(kExperts * kWidth);
    for (std::uint64_t row = 0; row < kRows; ++row) {
      for (std::uint64_t i = 0; i < kWidth; ++i) {
        double sum = (*dx)[row * kWidth + i];
        for (std::uint32_t e = 0; e < kExperts; ++e) {
          const double score = scores[row * kExperts + e];
          const double slope = d_scores[row * kExperts + e] * score * (1 - score);
          sum += slope * router[e * kWidth + i];
          sums[e * kWidth + i] += slope * x[row * kWidth + i];
        }
        (*dx)[row * kWidth + i] = T(static_cast<float>(sum));
      }
    }
    d_router->assign(sums.begin(), sums.end());
  }

  void run_experts(const std::vector<T> values[]) {
    for (std::uint32_t i = 0; i < mlps_.size(); ++i) {
      const trireme_mlp_weights weights = weights_of(first_expert_ + i, values);
      for (std::uint32_t leaf = 0; leaf < kSides; ++leaf) {
        Segment<T>& each = segment(first_expert_ + i, leaf);
        std::fill(each.input.begin() + static_cast<std::ptrdiff_t>(each.count * kWidth),
                  each.input.end(), T(0.0f));
        check(trireme_mlp_forward(mlps_[i].get(), each.input.data(), &weights, each.output.data(),
                                  each.kept.data(), nullptr));
      }
    }
  }
  // The sums of both leaves go to `to`.
  void run_experts_backward(const std::vector<T> values[], Gradients<T>* to) {
    for (std::uint32_t i = 0; i < mlps_.size(); ++i) {
      const int fc1 = fc1_of(first_expert_ + i);
      const trireme_mlp_weights weights = weights_of(first_expert_ + i, values);
      std::vector<float> sums[2];
      for (std::uint32_t leaf = 0; leaf < kSides; ++leaf) {
        Segment<T>& each = segment(first_expert_ + i, leaf);
        std::fill(each.dy.begin() + static_cast<std::ptrdiff_t>(each.count * kWidth), each.dy.end(),
                  T(0.0f));
        check(trireme_mlp_backward_input(mlps_[i].get(), each.dy.data(), &weights, each.dx.data(),
                                         each.kept.data(), nullptr));
        std::vector<float> own[2];
        for (int part = 0; part < 2; ++part) own[part].resize(values[fc1 + part].size());
        trireme_mlp_gradients gradients = TRIREME_MLP_GRADIENTS_INIT;
        gradients.fc1_weight = own[0].data();
        gradients.fc2_weight = own[1].data();
        check(trireme_mlp_backward_weight(mlps_[i].get(), each.input.data(), each.dy.data(),
                                          each.kept.data(), &gradients, nullptr));
        for (int part = 0; part < 2; ++part) {
          if (leaf == 0) sums[part].assign(own[part].size(), 0.0f);
          for (std::size_t n = 0; n < own[part].size(); ++n) sums[part][n] += own[part][n];
        }
      }
      for (int part = 0; part < 2; ++part) to->of[fc1 + part] = sums[part];
    }
  }

 private:
  static trireme_mlp_weights weights_of(std::uint32_t expert, const std::vector<T> values[]) {
    trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
    weights.fc1_weight = values[fc1_of(expert)].data();
    weights.fc2_weight = values[fc1_of(expert) + 1].data();
    return weights;
  }
  Handle<trireme_region> region(const char* name, trireme_region_kind kind) const {
    trireme_region_options options = TRIREME_REGION_OPTIONS_INIT;
    options.name = name;
    options.kind = kind;
    options.dimension = TRIREME_REGION_DIMENSION_ROWS;
    options.rows = kRows;
    options.columns = kWidth;
    options.dtype = kType<T>;
    trireme_region* made = nullptr;
    check(trireme_region_create(setup_.rows, &options, &made));
    return Handle<trireme_region>(made);
  }

  const ExpertSetup setup_;
  const std::uint32_t first_expert_;
  std::vector<std::unique_ptr<trireme_mlp, Destroy>> mlps_;
  std::uint64_t kept_bytes_ = 0;
  std::vector<Segment<T>> segments_;
  Handle<trireme_region> gather_, scatter_;
};

// ---- loops ------------------------------------------------------------------------------------

template <class T>
class PlainRouted final : public RoutedParts<T> {
 public:
  explicit PlainRouted(const ExpertSetup& setup) : RoutedParts<T>(setup, 0, kExperts) {}

  void forward(const Networks<T>& networks, const std::vector<T> values[]) override {
    for (std::uint32_t e = 0; e < kExperts; ++e)
      for (std::uint32_t leaf = 0; leaf < kSides; ++leaf) this->segment(e, leaf).count = 0;
    for (std::uint32_t leaf = 0; leaf < kSides; ++leaf) {
      Leaf& own = leaves_[leaf];
      own.x = networks[leaf]->pass().normal2;
      own.scores = this->scores_of(own.x, values[kRouter]);
      choose(&own);
      for (Slot& slot : own.slots) {
        if (slot.dropped) continue;
        Segment<T>& to = this->segment(slot.expert, leaf);
        slot.place = to.count++;
        std::copy_n(own.x.begin() + static_cast<std::ptrdiff_t>(slot.row * kWidth), kWidth,
                    to.input.begin() + static_cast<std::ptrdiff_t>(slot.place * kWidth));
      }
    }
    this->run_experts(values);
    for (std::uint32_t leaf = 0; leaf < kSides; ++leaf) {
      std::vector<float> sums(kRows * kWidth);
      for (const Slot& slot : leaves_[leaf].slots) {
        if (slot.dropped) continue;
        const std::vector<T>& result = this->segment(slot.expert, leaf).output;
        for (std::uint64_t i = 0; i < kWidth; ++i)
          sums[slot.row * kWidth + i] +=
              slot.weight * static_cast<float>(result[slot.place * kWidth + i]);
      }
      networks[leaf]->pass().mlp_output.assign(sums.begin(), sums.end());
    }
  }

  void backward(const Networks<T>& networks, const std::vector<T> values[],
                std::vector<Gradients<T>>* to) override {
    std::vector<float> slopes[kSides];  // of weights
    for (std::uint32_t leaf = 0; leaf < kSides; ++leaf) {
      const std::vector<T>& dy = networks[leaf]->pass().dx;
      for (const Slot& slot : leaves_[leaf].slots) {
        double slope = 0;
        if (!slot.dropped) {
          Segment<T>& each = this->segment(slot.expert, leaf);
          for (std::uint64_t i = 0; i < kWidth; ++i) {
            const std::uint64_t at = slot.place * kWidth + i;
            const float own = dy[slot.row * kWidth + i];
            each.dy[at] = T(slot.weight * own);
            slope += double{each.output[at]} * own;
          }
        }
        slopes[leaf].push_back(static_cast<float>(slope));
      }
    }
    for (std::uint32_t leaf = 0; leaf < kSides; ++leaf)
      for (int place = kExpert1; place < kAllPlaces; ++place)
        (*to)[leaf].of[place].assign(values[place].size(), 0.0f);
    this->run_experts_backward(values, &to->back());
    for (std::uint32_t leaf = 0; leaf < kSides; ++leaf) {
      const Leaf& own = leaves_[leaf];
      std::vector<float> sums(kRows * kWidth), d_scores(kRows * kExperts);
      for (const Slot& slot : own.slots) {
        if (slot.dropped) continue;
        const std::vector<T>& dx = this->segment(slot.expert, leaf).dx;
        for (std::uint64_t i = 0; i < kWidth; ++i)
          sums[slot.row * kWidth + i] += static_cast<float>(dx[slot.place * kWidth + i]);
      }
      // w = p / sum, so dp = (dw - mean) / sum, with the mean of all dw of the row by weight.
      for (std::uint64_t row = 0; row < kRows; ++row) {
        const Slot* const slots = own.slots.data() + row * kChoices;
        double sum = 0, mean = 0;
        for (std::uint32_t k = 0; k < kChoices; ++k)
          sum += double{own.scores[row * kExperts + slots[k].expert]};
        for (std::uint32_t k = 0; k < kChoices; ++k)
          mean += double{slopes[leaf][row * kChoices + k]} *
                  own.scores[row * kExperts + slots[k].expert] / sum;
        for (std::uint32_t k = 0; k < kChoices; ++k)
          d_scores[row * kExperts + slots[k].expert] =
              static_cast<float>((slopes[leaf][row * kChoices + k] - mean) / sum);
      }
      std::vector<T> dx(sums.begin(), sums.end());
      this->router_backward(own.x, values[kRouter], own.scores, d_scores, &dx,
                            &(*to)[leaf].of[kRouter]);
      networks[leaf]->pass().dmlp_input = dx;
    }
  }

 private:
  struct Slot {
    std::uint64_t row = 0, place = 0;
    std::uint32_t expert = 0;
    float weight = 0;
    bool dropped = false;
  };
  struct Leaf {
    std::vector<T> x;
    std::vector<float> scores;
    std::vector<Slot> slots;
  };

  // The two highest scores of each row; of equal ones the lower expert. An expert drops its last
  // rows, or those with the lowest weights.
  void choose(Leaf* leaf) const {
    leaf->slots.clear();
    for (std::uint64_t row = 0; row < kRows; ++row) {
      const float* const scores = leaf->scores.data() + row * kExperts;
      std::vector<std::uint32_t> order = {0, 1, 2};
      std::stable_sort(order.begin(), order.end(),
                       [&](std::uint32_t a, std::uint32_t b) { return scores[a] > scores[b]; });
      const double sum = double{scores[order[0]]} + scores[order[1]];
      for (std::uint32_t k = 0; k < kChoices; ++k)
        leaf->slots.push_back(
            {row, 0, order[k], static_cast<float>(scores[order[k]] / sum), false});
    }
    for (std::uint32_t e = 0; e < kExperts; ++e) {
      std::vector<Slot*> takers;
      for (Slot& slot : leaf->slots)
        if (slot.expert == e) takers.push_back(&slot);
      if (this->lowest())
        std::stable_sort(takers.begin(), takers.end(),
                         [](const Slot* a, const Slot* b) { return a->weight > b->weight; });
      for (std::size_t i = kCapacity; i < takers.size(); ++i) takers[i]->dropped = true;
    }
  }
  Leaf leaves_[kSides];
};

// ---- over ranks -------------------------------------------------------------------------------

template <class T>
class OverExperts final : public RoutedParts<T> {
 public:
  OverExperts(std::unique_ptr<trireme_experts, DestroyAxes> experts,
              const trireme_experts_info& info, const ExpertSetup& setup)
      : RoutedParts<T>(setup, info.first_expert, info.expert_count),
        experts_(std::move(experts)),
        kept_(info.kept_bytes),
        starts_(info.segment_count),
        received_(info.most_received * kWidth),
        returned_(info.most_sent * kWidth) {}

  void forward(const Networks<T>& networks, const std::vector<T> values[]) override {
    Pass<T>& pass = networks[0]->pass();
    x_ = this->whole(pass.normal2, false);
    scores_ = this->scores_of(x_, values[kRouter]);
    trireme_experts_route_arrays arrays = TRIREME_EXPERTS_ROUTE_ARRAYS_INIT;
    arrays.rows = kRows;
    arrays.scores = scores_.data();
    arrays.kept = kept_.data();
    arrays.segments = starts_.data();
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    check(trireme_experts_route(experts_.get(), &arrays, &routed, nullptr));
    check(trireme_experts_dispatch(experts_.get(), kept_.data(), x_.data(), received_.data(),
                                   nullptr));
    each_segment([&](Segment<T>* each, std::uint64_t first, std::uint64_t count) {
      each->count = count;
      std::copy_n(at(first), count * kWidth, each->input.begin());
    });
    this->run_experts(values);
    each_segment([&](Segment<T>* each, std::uint64_t first, std::uint64_t count) {
      std::copy_n(each->output.begin(), count * kWidth, at(first));
    });
    std::vector<T> y(kRows * kWidth);
    check(trireme_experts_combine(experts_.get(), kept_.data(), received_.data(), returned_.data(),
                                  y.data(), nullptr));
    pass.mlp_output = this->own(y, pass.normal2.size(), false);
  }

  void backward(const Networks<T>& networks, const std::vector<T> values[],
                std::vector<Gradients<T>>* to) override {
    Pass<T>& pass = networks[0]->pass();
    const std::vector<T> dy = this->whole(pass.dx, true);
    std::vector<float> d_weights(kRows * kChoices), d_scores(kRows * kExperts);
    check(trireme_experts_combine_backward(experts_.get(), kept_.data(), dy.data(),
                                           returned_.data(), received_.data(), d_weights.data(),
                                           nullptr));
    each_segment([&](Segment<T>* each, std::uint64_t first, std::uint64_t count) {
      std::copy_n(at(first), count * kWidth, each->dy.begin());
    });
    this->run_experts_backward(values, &to->front());
    each_segment([&](Segment<T>* each, std::uint64_t first, std::uint64_t count) {
      std::copy_n(each->dx.begin(), count * kWidth, at(first));
    });
    std::vector<T> dx(kRows * kWidth);
    check(trireme_experts_dispatch_backward(experts_.get(), kept_.data(), received_.data(),
                                            dx.data(), nullptr));
    check(trireme_experts_route_backward(experts_.get(), kept_.data(), scores_.data(),
                                         d_weights.data(), nullptr, d_scores.data()));
    this->router_backward(x_, values[kRouter], scores_, d_scores, &dx, &to->front().of[kRouter]);
    pass.dmlp_input = this->own(dx, pass.normal2.size(), true);
  }

 private:
  auto at(std::uint64_t row) {
    return received_.begin() + static_cast<std::ptrdiff_t>(row * kWidth);
  }
  template <class Body>
  void each_segment(Body body) {
    for (std::uint32_t i = 0; i < this->mlps().size(); ++i) {
      for (std::uint32_t leaf = 0; leaf < kSides; ++leaf) {
        const std::uint64_t first = starts_[i * kSides + leaf];
        body(&this->segment(this->first_expert() + i, leaf), first,
             starts_[i * kSides + leaf + 1] - first);
      }
    }
  }

  const std::unique_ptr<trireme_experts, DestroyAxes> experts_;
  std::vector<char> kept_;
  std::vector<std::uint64_t> starts_;
  std::vector<T> received_, returned_, x_;
  std::vector<float> scores_;
};

}  // namespace

template <class T>
std::unique_ptr<RoutedMlp<T>> make_routed(trireme_communicator* communicator,
                                          const ExpertSetup& setup) {
  trireme_experts_options options = TRIREME_EXPERTS_OPTIONS_INIT;
  options.name = "routed";
  options.flags = TRIREME_EXPERTS_FLAG_NORMALIZE;
  options.experts = kExperts;
  options.top_k = kChoices;
  options.width = kWidth;
  options.rows = kRows;
  options.dtype = kType<T>;
  options.scores = TRIREME_EXPERTS_SCORES_PROBABILITIES;
  options.capacity = kCapacity;
  options.drop = setup.lowest ? TRIREME_EXPERTS_DROP_LOWEST_WEIGHT : TRIREME_EXPERTS_DROP_LAST;
  options.leaves = kSides;
  trireme_experts* experts = nullptr;
  check(trireme_experts_create(communicator, &options, &experts));
  std::unique_ptr<trireme_experts, DestroyAxes> owned(experts);
  trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
  check(trireme_experts_get_info(experts, &info));
  return std::make_unique<OverExperts<T>>(std::move(owned), info, setup);
}

template <class T>
std::unique_ptr<RoutedMlp<T>> make_plain_routed(const ExpertSetup& setup) {
  return std::make_unique<PlainRouted<T>>(setup);
}

std::vector<int> places_of_experts(std::int32_t rank, std::int32_t ranks) {
  const int count = kExperts;
  std::vector<int> places;
  for (int expert = rank * count / ranks; expert < (rank + 1) * count / ranks; ++expert)
    for (int part = 0; part < 2; ++part) places.push_back(kExpert1 + 2 * expert + part);
  return places;
}

template std::unique_ptr<RoutedMlp<float>> make_routed<float>(trireme_communicator*,
                                                              const ExpertSetup&);
template std::unique_ptr<RoutedMlp<Bf16>> make_routed<Bf16>(trireme_communicator*,
                                                            const ExpertSetup&);
template std::unique_ptr<RoutedMlp<float>> make_plain_routed<float>(const ExpertSetup&);
template std::unique_ptr<RoutedMlp<Bf16>> make_plain_routed<Bf16>(const ExpertSetup&);

}  // namespace wide
