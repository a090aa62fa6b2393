#include "parallel/executor/stage_layout.hpp"

#include <algorithm>
#include <utility>

namespace trireme::parallel {

using strategies::activation_piece;
using Way = StageLayout::Way;

namespace {

// Puts pieces one behind the other.
class PieceRow {
 public:
  explicit PieceRow(Spot::Base base) : base_(base) {}
  Spot put(std::uint64_t bytes) {
    const Spot spot{base_, at_};
    at_ += activation_piece(bytes);
    return spot;
  }
  void skip(std::uint64_t bytes) { at_ += bytes; }
  std::uint64_t end() const { return at_; }

 private:
  Spot::Base base_;
  std::uint64_t at_ = 0;
};

class StageLayouter {
 public:
  StageLayouter(const StageShape& shape, const std::vector<strategies::LayerBytes>& layers,
                std::uint64_t header_bytes, Way way, const std::vector<std::uint64_t>& firsts)
      : shape_(shape), layers_(layers), header_bytes_(header_bytes) {
    out_.way = way;
    if (way != Way::kept) out_.recomputed = firsts.back();
    if (way == Way::stretches) out_.firsts = firsts;
  }

  StageLayout run() {
    if (!shape_.begins && !shape_.input_in_place) {
      kept_.skip(header_bytes_);
      out_.input = kept_.put(shape_.input_bytes).offset;
    }
    out_.output = out_.input;  // of a stage without layers
    out_.first.resize(shape_.layer_count);
    out_.layers.resize(shape_.layer_count);
    if (out_.way == Way::at_once) measure_turns();
    for (std::uint64_t i = 0; i < shape_.layer_count; ++i) {
      put_layer(i);
      std::uint64_t& item = out_.layers[i].item;
      item = (item + strategies::kWindowAlignment - 1) / strategies::kWindowAlignment *
             strategies::kWindowAlignment;
    }
    out_.bytes = kept_.end();
    out_.again_bytes = again_.end();
    out_.work_bytes = std::max(out_.work_bytes, stretch_.end());
    put_gradients();
    return std::move(out_);
  }

 private:
  const strategies::LayerBytes& bytes_of(std::uint64_t i) const {
    return layers_[shape_.first_layer + i];
  }
  bool is_last(std::uint64_t i) const { return i + 1 == shape_.layer_count; }
  bool ends_stretch(std::uint64_t i) const {
    return i + 1 == out_.recomputed ||
           std::find(out_.firsts.begin(), out_.firsts.end(), i + 1) != out_.firsts.end();
  }

  // Until the second forward, a layer reads the output before it and writes its own.
  void measure_turns() {
    for (std::uint64_t i = 0; i < out_.recomputed; ++i) {
      turns_[i % 2] = std::max(turns_[i % 2], activation_piece(bytes_of(i).output));
      saved_ = std::max(saved_, activation_piece(bytes_of(i).saved));
    }
    out_.work_bytes = turns_[0] + turns_[1] + saved_;
  }

  Spot put_sent(std::uint64_t bytes) {
    kept_.skip(header_bytes_);
    const Spot spot = kept_.put(bytes);
    out_.output = spot.offset;
    return spot;
  }

  // A place for data that a layer keeps for backward: in `row`, or in its item of the window.
  Spot keep(std::uint64_t i, PieceRow* row, std::uint64_t bytes) {
    if (!shape_.has_file) return row->put(bytes);
    std::uint64_t& item = out_.layers[i].item;
    const Spot spot{Spot::window, item};
    item += activation_piece(bytes);
    return spot;
  }

  void put_layer(std::uint64_t i) {
    StageLayout::Layer& first = out_.first[i];
    StageLayout::Layer& later = out_.layers[i];
    const strategies::LayerBytes& bytes = bytes_of(i);
    const bool sent = is_last(i) && shape_.sends;
    if (i >= out_.recomputed) {
      later.output = sent ? put_sent(bytes.output) : keep(i, &kept_, bytes.output);
      later.saved = keep(i, &kept_, bytes.saved);
      first = later;
      return;
    }
    // A checkpoint is kept. So is an output that is sent: its receiver may still read it, and the
    // second forward writes elsewhere.
    const bool checkpoint = ends_stretch(i) && !is_last(i);
    if (sent) first.output = put_sent(bytes.output);
    if (checkpoint) first.output = later.output = keep(i, &kept_, bytes.output);
    if (out_.way == Way::at_once) {
      if (!sent && !checkpoint) first.output = {Spot::work, i % 2 == 0 ? 0 : turns_[0]};
      first.saved = {Spot::work, turns_[0] + turns_[1]};
      if (!checkpoint) later.output = keep(i, &again_, bytes.output);
      later.saved = keep(i, &again_, bytes.saved);
      return;
    }
    if (!checkpoint) later.output = stretch_.put(bytes.output);
    if (!sent && !checkpoint) first.output = later.output;
    first.saved = later.saved = stretch_.put(bytes.saved);
    if (!ends_stretch(i)) return;
    out_.work_bytes = std::max(out_.work_bytes, stretch_.end());
    stretch_ = PieceRow(Spot::work);
  }

  // Backward for the weights needs all of them. Else two neighbours have theirs at a time.
  void put_gradients() {
    PieceRow row(Spot::kept);
    if (!shape_.ends && !shape_.gradient_in_place) {
      row.skip(header_bytes_);
      out_.gradient = row.put(shape_.output_bytes).offset;
    }
    std::uint64_t turns[2] = {};
    std::uint64_t largest[2] = {};
    for (std::uint64_t i = 0; i + 1 < shape_.layer_count; ++i) {
      const std::uint64_t bytes = bytes_of(i).output;
      if (shape_.split) {
        out_.layers[i].gradient = row.put(bytes).offset;
      } else {
        largest[i % 2] = std::max(largest[i % 2], bytes);
      }
    }
    for (int turn = 0; turn < 2; ++turn) turns[turn] = row.put(largest[turn]).offset;
    for (std::uint64_t i = 0; i + 1 < shape_.layer_count && !shape_.split; ++i) {
      out_.layers[i].gradient = turns[i % 2];
    }
    if (shape_.layer_count > 0) out_.layers.back().gradient = out_.gradient;
    out_.gradient_bytes = row.end();
  }

  const StageShape& shape_;
  const std::vector<strategies::LayerBytes>& layers_;
  const std::uint64_t header_bytes_;
  StageLayout out_{};
  PieceRow kept_{Spot::kept}, again_{Spot::again};
  PieceRow stretch_{Spot::work};  // the present one
  std::uint64_t turns_[2] = {};   // largest outputs with an even, and with an odd number
  std::uint64_t saved_ = 0;       // the largest
};

}  // namespace

StageLayout lay_out(const StageShape& shape, const std::vector<strategies::LayerBytes>& layers,
                    std::uint64_t header_bytes, Way way, const std::vector<std::uint64_t>& firsts) {
  return StageLayouter(shape, layers, header_bytes, way, firsts).run();
}

}  // namespace trireme::parallel
