#include "backends/frames/call_news.hpp"

#include <algorithm>
#include <cstring>

#include "platform/clock.hpp"
#include "schedules/overlay.hpp"

namespace trireme::host {
namespace {

// A rank tells its near ranks at most so often: what many ranks tell goes together.
constexpr std::uint64_t kPauseNs = 10 * kMillisecond;
// A rank that stays silent is told of again after this time, and forgotten after the second one.
constexpr std::uint64_t kRetellNs = 500 * kMillisecond;
constexpr std::uint64_t kForgetNs = 1'500 * kMillisecond;

}  // namespace

std::uint64_t CallNews::own_position(std::uint32_t channel) const {
  return segment_->lane(channel, group_.rank()).position.load(std::memory_order_acquire);
}

// Returns null for an older call. Call it under the mutex.
CallNews::News* CallNews::news_of(std::uint32_t channel, std::uint64_t position) {
  News& news = news_[channel];
  if (news.position < position) {
    news = News();
    news.position = position;
  }
  return news.position == position ? &news : nullptr;
}

void CallNews::note_came(News& news, const RankSet& more) {
  news.is_new = news.is_new || !more.within(news.came);
  news.came.add(more);
}

void CallNews::note_silent(News& news, std::int32_t rank, std::uint64_t seen_ns) {
  auto known = std::find_if(news.silent.begin(), news.silent.end(),
                            [rank](const Silent& each) { return each.rank == rank; });
  if (known == news.silent.end()) {
    const std::uint64_t now = now_ns();
    std::erase_if(news.silent,
                  [now](const Silent& each) { return now >= each.seen_ns + kForgetNs; });
    if (news.silent.size() == kMostSilent) return;
    known = news.silent.insert(news.silent.end(), Silent{rank, seen_ns});
  }
  known->seen_ns = std::max(known->seen_ns, seen_ns);
  news.is_new = news.is_new || known->seen_ns >= known->told_ns + kRetellNs;
}

RankSet CallNews::silent_of(const News& news) {
  RankSet out;
  const std::uint64_t now = now_ns();
  for (const Silent& each : news.silent) {
    if (now < each.seen_ns + kForgetNs) out.add(each.rank);
  }
  return out;
}

Status CallNews::tell(std::uint32_t channel) {
  RankSet came;
  const std::uint64_t position = own_position(channel);
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const local::Lane& lane = segment_->lane(channel, rank);
    if (lane.position.load(std::memory_order_acquire) >= position) came.add(rank);
  }
  const std::vector<std::int32_t> silent =
      silent_ == nullptr ? std::vector<std::int32_t>{} : silent_();
  {
    const std::lock_guard lock(mutex_);
    if (News* const news = news_of(channel, position)) {
      note_came(*news, came);
      for (const std::int32_t rank : silent) note_silent(*news, rank, now_ns());
    }
  }
  return send_if_new(channel);
}

Status CallNews::pass_on() {
  const std::uint32_t used = std::min(group_.channels_of(group_.rank()), engine_.channels());
  for (std::uint32_t channel = 0; channel < used; ++channel) {
    TRIREME_RETURN_IF_ERROR(send_if_new(channel));
  }
  return Status::success();
}

// A rank that has not made the call has nothing to pass on: others reach the same ranks.
Status CallNews::send_if_new(std::uint32_t channel) {
  const std::uint64_t position = own_position(channel);
  Told told;
  {
    const std::lock_guard lock(mutex_);
    News& news = news_[channel];
    const std::uint64_t now = now_ns();
    if (!news.is_new || news.position != position || now < news.next_ns) return Status::success();
    news.is_new = false;
    news.next_ns = now + kPauseNs;
    news.came.add(group_.rank());
    told.came = news.came;
    for (Silent& each : news.silent) {
      if (now >= each.seen_ns + kForgetNs) continue;
      each.told_ns = each.seen_ns;
      const std::uint64_t age_ms = (now - std::min(now, each.seen_ns)) / kMillisecond;
      told.silent_ranks[told.silent++] = {static_cast<std::uint16_t>(each.rank),
                                          static_cast<std::uint16_t>(age_ms)};
    }
  }
  return send(channel, position, told);
}

Status CallNews::send(std::uint32_t channel, std::uint64_t position, const Told& told) {
  std::byte frame[sizeof(FrameHeader) + sizeof told];
  const FrameHeader header{kMagic, FrameKind::came, channel, sizeof told, position};
  std::memcpy(frame, &header, sizeof header);
  std::memcpy(frame + sizeof header, &told, sizeof told);
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (!are_near(group_.rank(), rank, group_.world_size())) continue;
    TRIREME_RETURN_IF_ERROR(engine_.publish_to(rank, frame, sizeof frame, false));
  }
  return Status::success();
}

Status CallNews::take(int from, const FrameHeader& header, const std::byte* rest,
                      std::uint64_t bytes) {
  Told told;
  const int n = group_.world_size();
  if (bytes == sizeof told) std::memcpy(&told, rest, sizeof told);
  bool makes_sense =
      bytes == sizeof told && told.silent <= kMostSilent && told.came.within(RankSet::all(n));
  for (std::size_t i = 0; makes_sense && i < told.silent; ++i) {
    makes_sense = told.silent_ranks[i].rank < n;
  }
  if (!makes_sense) return corrupt_frame(group_.rank(), from, "news of calls that make no sense");
  const std::uint64_t now = now_ns();
  const std::lock_guard lock(mutex_);
  News* const news = news_of(header.set, header.position);
  if (news == nullptr) return Status::success();
  note_came(*news, told.came);
  for (std::size_t i = 0; i < told.silent; ++i) {
    const std::uint64_t age = told.silent_ranks[i].age_ms * kMillisecond;
    note_silent(*news, told.silent_ranks[i].rank, now - std::min(now, age));
  }
  return Status::success();
}

void CallNews::keep_absent(std::uint32_t channel, std::vector<std::int32_t>* missing) const {
  const std::uint64_t position = own_position(channel);
  RankSet came;
  RankSet silent;
  {
    const std::lock_guard lock(mutex_);
    if (news_[channel].position != position) return;
    came = news_[channel].came;
    silent = silent_of(news_[channel]);
  }
  std::vector<std::int32_t> absent;
  for (const std::int32_t rank : *missing) {
    if (!came.has(rank)) absent.push_back(rank);
  }
  if (absent.empty()) absent = silent.list();
  if (!absent.empty()) *missing = std::move(absent);
}

RankSet CallNews::silent() const {
  RankSet all;
  const std::uint32_t used = std::min(group_.channels_of(group_.rank()), engine_.channels());
  for (std::uint32_t channel = 0; channel < used; ++channel) {
    const std::uint64_t position = own_position(channel);
    const std::lock_guard lock(mutex_);
    if (news_[channel].position == position) all.add(silent_of(news_[channel]));
  }
  return all;
}

}  // namespace trireme::host
