// CallNews: the news of ranks that wait for long, in a large group. A rank whose call does not come
// over the others may have made it. So each rank that waits tells its near ranks which ranks have
// come to its call, and which give no sign of life. Each passes on news to its near ranks. After
// ceil(log2 n) steps all have them. A TIMEOUT after that names only ranks that have not come.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "backends/engine.hpp"
#include "backends/frames/frame.hpp"
#include "backends/rank_set.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/segment.hpp"

namespace trireme::host {

class CallNews {
 public:
  CallNews(local::Group& group, Engine& engine) : group_(group), engine_(engine) {}
  void use(const local::Segment& segment) { segment_ = &segment; }
  // The near ranks that give no sign of life. Set it before the ranks have met.
  void on_silence(std::function<std::vector<std::int32_t>()> silent) {
    silent_ = std::move(silent);
  }

  // This rank waits for long in that channel. Call it again and again while it waits.
  Status tell(std::uint32_t channel);
  // Sends what is new to this rank. Any thread.
  Status pass_on();
  // A near rank has told this. It takes no other lock.
  Status take(int from, const FrameHeader& header, const std::byte* rest, std::uint64_t bytes);

  // Of ranks whose call has not come here, keeps those that have not made it. If all have made it,
  // keeps those that give no sign of life, if there are any: they have not passed a call on.
  void keep_absent(std::uint32_t channel, std::vector<std::int32_t>* missing) const;
  // The ranks that give no sign of life, as far as the waits of this rank tell.
  RankSet silent() const;

 private:
  // A rank without signs of life, and when a near rank last missed them.
  struct Silent {
    std::int32_t rank;
    std::uint64_t seen_ns;
    std::uint64_t told_ns = 0;  // `seen_ns` as this rank told it
  };
  struct News {
    std::uint64_t position = 0;  // of the call
    RankSet came;
    std::vector<Silent> silent;  // kMostSilent at most
    bool is_new = false;         // to the near ranks, perhaps
    std::uint64_t next_ns = 0;
  };
  static constexpr std::size_t kMostSilent = 32;
  // The message to the near ranks. A silent rank's age tells how old its news are. Old news are no
  // longer passed on.
  struct Told {
    RankSet came;
    std::uint64_t silent = 0;  // so many
    struct {
      std::uint16_t rank;
      std::uint16_t age_ms;
    } silent_ranks[kMostSilent] = {};
  };

  std::uint64_t own_position(std::uint32_t channel) const;
  News* news_of(std::uint32_t channel, std::uint64_t position);
  static void note_came(News& news, const RankSet& more);
  static void note_silent(News& news, std::int32_t rank, std::uint64_t seen_ns);
  static RankSet silent_of(const News& news);
  Status send(std::uint32_t channel, std::uint64_t position, const Told& told);
  Status send_if_new(std::uint32_t channel);

  local::Group& group_;
  Engine& engine_;
  const local::Segment* segment_ = nullptr;
  std::function<std::vector<std::int32_t>()> silent_;
  mutable std::mutex mutex_;  // guards the following; no other lock is taken under it
  std::array<News, kChannels> news_;
};

}  // namespace trireme::host
