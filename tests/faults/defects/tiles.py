"""Tiles of rows: exchanges that go on while the next tile is multiplied."""

LINEAR = "src/parallel/tensor/linear.cpp"
TILES = "src/parallel/tensor/row_tiles.hpp"
EXACT, APART = "api_test_layers", "api_test_layers TRIREME_TESTS_TRANSPORT=1"

DEFECTS = [
    ("tiles: a tile is summed again in a later one", LINEAR, "call.add = stretch > 0;",
     "call.add = stretch > 0 || tile.first >= 2 * tiles_.most();", EXACT),
    ("tiles: a short last tile is lost", TILES, "(rows_ - 1) / tile_ + 1;",
     "std::max<std::uint64_t>(rows_ / tile_, 1);", EXACT),
    ("tiles: nobody waits for a tile", "src/parallel/tensor/tile_passes.cpp",
     "return region_.named(name_, Workspace::wait(*started_[number]));",
     "return number < started_.size() ? Status::success() : Status::success();", APART),
    ("tiles: a sum on its way has its summands overwritten", LINEAR,
     "void* const* const set = &summands[k % sets * blocks_.count];",
     "void* const* const set = &summands[0];", APART),
    ("tiles: the bias of a tile is added to another one", LINEAR,
     "const std::uint64_t first = rows.first * columns;", "const std::uint64_t first = 0 * columns;",
     EXACT),
    ("tiles: memory is planned for all rows", LINEAR,
     "rounded(Wide{tiles_.most()} * full_ * wide);",
     "rounded(Wide{options_.rows} * full_ * wide);", EXACT),
    ("tiles: blocks get tiles that one process has not", "src/parallel/tensor/tensor.cpp",
     "(options_.blocks > 0 && !keeps_bits)", "(options_.blocks > 0 && !keeps_bits && rows == 0)",
     APART),
    ("tiles: passes start where nobody can wait for them", "src/parallel/tensor/tile_passes.cpp",
     "if (inside_callback_of(dynamic_cast<const void*>(&communicator))) {",
     "if (inside_callback_of(dynamic_cast<const void*>(&communicator)) && name_ == nullptr) {",
     "api_test_layers_refusals TRIREME_TESTS_TRANSPORT=1"),
    ("tiles: the bytes of a sum are those of one exchange", LINEAR,
     "if (last > 0) sum_bytes_ += last * sum_->tile_bytes(tiles_.range(0));",
     "sum_bytes_ = sum_->plan(Direction::forward).bytes;", EXACT),
]
