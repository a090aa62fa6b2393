#include "backends/tcp/directory.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <mutex>

#include "net/sha256.hpp"
#include "platform/failpoint.hpp"
#include "platform/thread.hpp"
#include "platform/utf8.hpp"
#include "schedules/overlay.hpp"

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kTurnNs = 100'000'000;
constexpr std::uint64_t kDirectoryCallNs = 10'000'000'000;
// All ranks of a group may call at the same time, and share few cores.
constexpr std::uint64_t kDirectoryCallOfRankNs = 60'000'000;
// A guest gets so many bytes of the entries in that time, or it gives up.
constexpr std::size_t kPieceBytes = 4096;
constexpr std::uint64_t kSettleNs = 300'000'000;

struct Request {
  char name[64];
  std::int32_t rank;
  std::int32_t world_size;
  Entry entry;
};
static_assert(sizeof(Request) == 220);

struct Reply {
  std::int32_t code;
  std::int32_t count;  // number of the entries that follow
  char text[256];
};
static_assert(sizeof(Reply) == 264);

// In place of a status: a mark for each of the `count` ranks follows.
constexpr std::int32_t kNews = 1;
constexpr char kCame = 1;
constexpr char kGaveUp = 2;
constexpr char kLeft = 4;

struct Word {
  enum Kind : std::uint16_t { ask = 1, give_up, last };
  std::uint16_t kind;
  std::uint16_t rank;  // last
};
static_assert(sizeof(Word) == 4);

// A guest may claim any world size.
constexpr std::uint64_t patience_ns(std::int32_t world_size) {
  const std::int32_t ranks = std::clamp(world_size, 0, static_cast<std::int32_t>(kMostRanks));
  return kDirectoryCallNs + kDirectoryCallOfRankNs * static_cast<std::uint64_t>(ranks);
}

void say(const Socket& seat, const Word& word) noexcept {
  std::size_t moved = 0;
  static_cast<void>(seat.send(&word, sizeof word, &moved));
}

// Bytes for one guest or many. The entries of a large group lie in memory once.
using Bytes = std::shared_ptr<const std::vector<char>>;

template <class Head>
Bytes bytes_of(const Head& head, const void* more = nullptr, std::size_t bytes = 0) {
  auto out = std::make_shared<std::vector<char>>(sizeof head + bytes);
  std::memcpy(out->data(), &head, sizeof head);
  if (bytes > 0) std::memcpy(out->data() + sizeof head, more, bytes);
  return out;
}

template <std::size_t n>
std::string text_of(const char (&field)[n]) {
  return clean_text({field, strnlen(field, n)});
}

// While it lives, other threads may ask by the socket.
class Seated {
 public:
  Seated(const Wait& wait, const Socket& socket) : wait_(wait) { say(&socket); }
  ~Seated() { say(nullptr); }
  Seated(const Seated&) = delete;
  Seated& operator=(const Seated&) = delete;

 private:
  void say(const Socket* socket) const {
    if (wait_.sit != nullptr) wait_.sit(socket);
  }

  const Wait& wait_;
};

// Receives the reply, and all news before it. It may throw for want of memory.
Status wait_for_reply(const Socket& socket, const Wait& wait, const std::atomic<bool>& stop,
                      Reply* reply) {
  const Seated seated(wait, socket);
  while (true) {
    TRIREME_RETURN_IF_ERROR(
        socket.receive_all(reply, sizeof *reply, Deadline::at(UINT64_MAX), stop));
    if (reply->code != kNews) return Status::success();
    if (reply->count < 0 || reply->count > static_cast<std::int32_t>(kMostRanks)) {
      return Status::failure(TRIREME_ERROR_CORRUPT, "the meeting's news make no sense");
    }
    std::vector<char> marks(static_cast<std::size_t>(reply->count));
    TRIREME_RETURN_IF_ERROR(
        socket.receive_all(marks.data(), marks.size(), Deadline::at(UINT64_MAX), stop));
    News news;
    for (std::size_t rank = 0; rank < marks.size(); ++rank) {
      news.came[rank] = (marks[rank] & kCame) != 0;
      news.gave_up[rank] = (marks[rank] & kGaveUp) != 0;
      news.left[rank] = (marks[rank] & kLeft) != 0;
    }
    if (wait.receive != nullptr) wait.receive(news);
  }
}

// The directory sends to all guests at once, so all entries may take long. Each piece has a
// deadline of its own: an end that sends byte by byte holds no guest for ever.
Status receive_entries(const Socket& socket, const std::atomic<bool>& stop,
                       std::vector<Entry>* out) {
  auto* const to = reinterpret_cast<char*>(out->data());
  const std::size_t bytes = out->size() * sizeof(Entry);
  const std::uint64_t patience = patience_ns(static_cast<std::int32_t>(out->size()));
  for (std::size_t at = 0; at < bytes; at += kPieceBytes) {
    TRIREME_RETURN_IF_ERROR(socket.receive_all(to + at, std::min(kPieceBytes, bytes - at),
                                               Deadline::after(patience), stop));
  }
  return Status::success();
}

HandshakeTerms terms_of(std::int32_t rank) {
  HandshakeTerms terms;
  terms.purpose = Purpose::store;
  terms.rank = rank;
  terms.job = sha256("directory of groups");
  return terms;
}

}  // namespace

class Directory::Server {
 public:
  Server(const Token& token, Socket listener, const std::string& name)
      : token_(token), admission_(std::move(listener), token_, terms_of(-1), name) {}

  Status open() { return waker_.open(); }
  void stop() noexcept {
    stop_.store(true, std::memory_order_release);
    waker_.wake();
  }
  void settle() noexcept {
    // The present turn may have looked before the call.
    const std::uint64_t enough = turns_.load(std::memory_order_acquire) + 2;
    const Deadline deadline = Deadline::after(kSettleNs);
    while (turns_.load(std::memory_order_acquire) < enough && !deadline.passed()) {
      waker_.wake();
      ::poll(nullptr, 0, 1);
    }
  }
  void run() noexcept {
    while (!stop_.load(std::memory_order_acquire)) {
      try {
        turn();
      } catch (...) {  // no memory for a new caller: the rest goes on
      }
      turns_.fetch_add(1, std::memory_order_release);
    }
    admission_.close();
    guests_.clear();
  }

 private:
  struct Guest {
    Socket socket;
    std::uint64_t since_ns;
    std::size_t got = 0;  // bytes of the request
    Request request{};
    bool admitted = false;        // its request was read, and its group waits
    std::uint64_t met = 0;        // the number of its group among all that met; 0: the group waits
    std::int32_t last_word = -1;  // then
    Word word{};
    std::size_t word_got = 0;
    bool asks = false;                  // and has no answer yet
    bool gave_up = false;               // its deadline has passed
    bool left = false;                  // after that it counts until the rest have gone
    std::vector<Bytes> unsent{};        // its socket had no room for these
    std::size_t sent = 0;               // bytes of the first of them
    std::uint64_t unsent_since_ns = 0;  // when the last byte went, or these came
    bool is_refused = false;            // it leaves when it has all bytes
    bool whole() const { return got == sizeof request; }
  };

  struct Loss {
    std::uint64_t met;
    std::int32_t said_by;
    std::int32_t rank;  // its own number: it has gone without a word
  };

  void turn();
  bool read(Guest& guest);
  static bool read_word(Guest& guest);
  void answer();
  void forget_those_who_left();
  void admit(std::list<Guest>::iterator guest);
  void send(Guest& guest, const Bytes& bytes);
  bool must_wait(const Guest& guest) const;
  void send_unsent(Guest& guest);
  void send_all_unsent();
  void tell_gone(std::uint64_t met, std::int32_t rank);
  void refuse(const std::vector<std::list<Guest>::iterator>& guests, trireme_status code,
              const std::string& text);

  const Token token_;
  Waker waker_;
  Admission admission_;
  std::list<Guest> guests_;
  std::uint64_t groups_ = 0;    // that met
  std::int32_t largest_ = 0;    // the largest world size of a guest
  std::deque<Request> missed_;  // of guests that went without a word after their groups had met
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> turns_{0};
};

void Directory::Server::turn() {
  std::vector<pollfd> polled{{waker_.get(), POLLIN, 0}};
  for (const Guest& guest : guests_) {
    const bool wants_room = !guest.unsent.empty() && !must_wait(guest);
    polled.push_back(
        {guest.socket.get(), static_cast<short>(POLLIN | (wants_room ? POLLOUT : 0)), 0});
  }
  const std::size_t gate = polled.size();
  admission_.add_to(&polled);
  ::poll(polled.data(), polled.size(), static_cast<int>(kTurnNs / 1'000'000));
  if (polled[0].revents != 0) waker_.clear();
  std::size_t at = 1;
  std::vector<const Guest*> complete;
  std::vector<Loss> losses;
  const std::uint64_t now = now_ns();
  for (auto it = guests_.begin(); it != guests_.end(); ++at) {
    const bool was_whole = it->whole();
    // A refused guest, too, says nothing more than its end.
    const bool stays = (polled[at].revents & ~POLLOUT) == 0 || read(*it);
    const std::uint64_t most_ns = patience_ns(it->whole() ? it->request.world_size : largest_);
    const bool stuck = !it->unsent.empty() && now - it->unsent_since_ns > most_ns;
    if (it->is_refused && (!stays || stuck || it->unsent.empty())) {
      it = guests_.erase(it);
      continue;
    }
    if (!stays || stuck || (!it->whole() && now - it->since_ns > most_ns)) {
      const std::int32_t own = it->request.rank;
      const std::int32_t lost = it->last_word < 0 ? own : it->last_word;
      if (it->met != 0 && it->last_word != own) losses.push_back({it->met, own, lost});
      if (it->met != 0 && it->last_word < 0) missed_.push_back(it->request);
      if (missed_.size() > kMostRanks) missed_.pop_front();
      if (it->met == 0 && it->admitted && it->gave_up) {
        it->socket.reset();
        it->left = true;
        ++it;
        continue;
      }
      it = guests_.erase(it);
      continue;
    }
    if (!was_whole && it->whole()) complete.push_back(&*it);
    ++it;
  }
  for (const Loss& loss : losses) {
    // A rank that left because of another one is not the loss to report.
    const auto knows = [&](const Loss& each) {
      return each.met == loss.met && each.said_by == loss.rank && each.rank != loss.rank;
    };
    if (std::none_of(losses.begin(), losses.end(), knows)) tell_gone(loss.met, loss.rank);
  }
  admission_.serve(polled, gate, {Purpose::store},
                   [this](int, Purpose, Socket socket, const SessionKeys&) {
                     // A host that vanishes sends no end, and would keep its rank's place for ever.
                     socket.keep_alive(period_of(kIdleNs, largest_, kLongestIdleNs));
                     guests_.push_back({std::move(socket), now_ns()});
                   });
  // Admitting a guest may remove all others of its group.
  for (const Guest* const each : complete) {
    const auto is_it = [&](const Guest& guest) { return &guest == each; };
    const auto found = std::find_if(guests_.begin(), guests_.end(), is_it);
    if (found != guests_.end()) admit(found);
  }
  answer();
  forget_those_who_left();
  send_all_unsent();
}

// Returns false if the guest has gone, has sent its last word, or breaks the protocol.
bool Directory::Server::read(Guest& guest) {
  if (guest.whole()) return read_word(guest);
  std::size_t moved = 0;
  auto* const to = reinterpret_cast<char*>(&guest.request);
  const Moved result =
      guest.socket.receive(to + guest.got, sizeof guest.request - guest.got, &moved);
  guest.got += moved;
  return result != Moved::ended;
}

bool Directory::Server::read_word(Guest& guest) {
  std::size_t moved = 0;
  auto* const to = reinterpret_cast<char*>(&guest.word);
  const Moved result =
      guest.socket.receive(to + guest.word_got, sizeof guest.word - guest.word_got, &moved);
  if (result == Moved::ended) return false;
  guest.word_got += moved;
  if (guest.word_got < sizeof guest.word) return true;
  guest.word_got = 0;
  const bool waits = guest.met == 0;
  if (guest.word.kind == Word::last) {
    if (!waits) guest.last_word = guest.word.rank;
    return false;
  }
  if (guest.word.kind != Word::ask && guest.word.kind != Word::give_up) return false;
  // A guest whose group has met needs no answer.
  guest.asks = waits;
  guest.gave_up = guest.gave_up || (waits && guest.word.kind == Word::give_up);
  return true;
}

// Rank 0 may end when it has given up, and this process with it: so the rest get the news first.
void Directory::Server::answer() {
  for (Guest& asker : guests_) {
    if (!asker.asks) continue;
    asker.asks = false;
    if (!asker.admitted || asker.left || asker.met != 0) continue;
    const Reply reply{kNews, asker.request.world_size, {}};
    std::vector<char> marks(static_cast<std::size_t>(asker.request.world_size));
    std::vector<Guest*> told{&asker};
    for (Guest& each : guests_) {
      if (!each.admitted || each.met != 0 || each.request.world_size != asker.request.world_size ||
          std::memcmp(each.request.name, asker.request.name, sizeof asker.request.name) != 0) {
        continue;
      }
      marks[static_cast<std::size_t>(each.request.rank)] =
          static_cast<char>(kCame | (each.gave_up ? kGaveUp : 0) | (each.left ? kLeft : 0));
      const bool all = asker.request.rank == 0 && asker.gave_up;
      if (all && &each != &asker && !each.left) told.push_back(&each);
    }
    const Bytes news = bytes_of(reply, marks.data(), marks.size());
    // The asker last, for the same reason.
    for (auto each = told.rbegin(); each != told.rend(); ++each) send(**each, news);
  }
}

void Directory::Server::forget_those_who_left() {
  guests_.remove_if([&](const Guest& guest) {
    const auto waits = [&](const Guest& each) {
      return each.admitted && each.met == 0 && !each.left &&
             std::memcmp(each.request.name, guest.request.name, sizeof guest.request.name) == 0;
    };
    return guest.left && std::none_of(guests_.begin(), guests_.end(), waits);
  });
}

// The entries of a large group need more room than a socket may have at once.
void Directory::Server::send(Guest& guest, const Bytes& bytes) {
  if (guest.unsent.empty()) guest.unsent_since_ns = now_ns();
  guest.unsent.push_back(bytes);
  send_unsent(guest);
}

// Rank 0 may end when it has its bytes, and this process with it: so the others get theirs first.
bool Directory::Server::must_wait(const Guest& guest) const {
  return guest.request.rank == 0 &&
         std::any_of(guests_.begin(), guests_.end(), [&](const Guest& each) {
           return &each != &guest && each.request.rank != 0 && !each.unsent.empty() &&
                  std::memcmp(each.request.name, guest.request.name, sizeof each.request.name) == 0;
         });
}

void Directory::Server::send_unsent(Guest& guest) {
  if (guest.unsent.empty()) return;
  if (must_wait(guest)) {
    guest.unsent_since_ns = now_ns();
    return;
  }
  while (!guest.unsent.empty()) {
    const std::vector<char>& first = *guest.unsent.front();
    std::size_t moved = 0;
    const Moved result =
        guest.socket.send(first.data() + guest.sent, first.size() - guest.sent, &moved);
    if (result == Moved::ended) {  // its end is read from the socket
      guest.unsent.clear();
      guest.sent = 0;
      return;
    }
    if (moved > 0) guest.unsent_since_ns = now_ns();
    guest.sent += moved;
    if (guest.sent < first.size()) return;
    guest.unsent.erase(guest.unsent.begin());
    guest.sent = 0;
  }
}

void Directory::Server::send_all_unsent() {
  for (Guest& guest : guests_) {
    if (guest.request.rank != 0) send_unsent(guest);
  }
  for (Guest& guest : guests_) send_unsent(guest);  // rank 0 had to wait
}

void Directory::Server::tell_gone(std::uint64_t met, std::int32_t rank) {
  const Bytes number = bytes_of(static_cast<std::uint16_t>(rank));
  for (Guest& guest : guests_) {
    if (guest.met == met) send(guest, number);
  }
}

void Directory::Server::refuse(const std::vector<std::list<Guest>::iterator>& guests,
                               trireme_status code, const std::string& text) {
  Reply reply{code, 0, {}};
  std::memcpy(reply.text, text.data(), whole_characters(text, sizeof reply.text - 1));
  const Bytes refusal = bytes_of(reply);
  for (const auto& each : guests) {
    each->is_refused = true;
    each->admitted = false;
    send(*each, refusal);
    if (each->unsent.empty()) guests_.erase(each);
  }
}

void Directory::Server::admit(std::list<Guest>::iterator guest) {
  const Request& own = guest->request;
  const std::string name = text_of(own.name);
  if (own.world_size < 1 || own.world_size > static_cast<std::int32_t>(kMostRanks) ||
      own.rank < 0 || own.rank >= own.world_size) {
    return refuse({guest}, TRIREME_ERROR_CORRUPT, "a rank that cannot be");
  }
  // The guest's group has met, and its connection broke. The other ranks count it as lost, and the
  // group does not meet again.
  const auto is_own = [&](const Request& each) {
    return each.rank == own.rank && each.entry.nonce == own.entry.nonce &&
           !std::memcmp(each.name, own.name, sizeof own.name);
  };
  // The directory may not have noticed yet that the old connection broke.
  const auto is_old = [&](const Guest& each) { return each.met != 0 && is_own(each.request); };
  const bool is_missed = std::any_of(missed_.begin(), missed_.end(), is_own) ||
                         std::any_of(guests_.begin(), guests_.end(), is_old);
  if (is_missed) {
    return refuse({guest}, TRIREME_ERROR_PEER_LOST,
                  "the group has met, and lost rank " + std::to_string(own.rank) +
                      ": its connection to the meeting broke");
  }
  admission_.make_room_for(static_cast<std::size_t>(own.world_size));
  largest_ = std::max(largest_, own.world_size);
  std::vector<std::list<Guest>::iterator> group(static_cast<std::size_t>(own.world_size),
                                                guests_.end());
  group[static_cast<std::size_t>(own.rank)] = guest;
  int there = 1;
  for (auto it = guests_.begin(); it != guests_.end(); ++it) {
    if (it == guest || !it->admitted || it->met != 0 ||
        std::memcmp(it->request.name, own.name, sizeof own.name)) {
      continue;
    }
    if (it->left) {  // the rank may come once more, and the group with another size
      it->admitted = it->request.rank != own.rank && it->request.world_size == own.world_size;
      continue;
    }
    const std::string both =
        "rank " + std::to_string(own.rank) + " at " + text_of(own.entry.endpoint);
    if (it->request.world_size != own.world_size) {
      // All get the failure, because the group can never be complete.
      std::vector<std::list<Guest>::iterator> all;
      for (auto each = guests_.begin(); each != guests_.end(); ++each) {
        if (((each->admitted && each->met == 0 && !each->left) || each == guest) &&
            !std::memcmp(each->request.name, own.name, sizeof own.name)) {
          all.push_back(each);
        }
      }
      return refuse(all, TRIREME_ERROR_MISMATCH,
                    both + " names world size " + std::to_string(own.world_size) + ", rank " +
                        std::to_string(it->request.rank) + " at " +
                        text_of(it->request.entry.endpoint) + " names " +
                        std::to_string(it->request.world_size));
    }
    if (it->request.rank == own.rank) {
      return refuse({guest}, TRIREME_ERROR_INVALID_STATE,
                    "two claim to be rank " + std::to_string(own.rank) + ": the one at " +
                        text_of(it->request.entry.endpoint) + " was first, this one is at " +
                        text_of(own.entry.endpoint));
    }
    group[static_cast<std::size_t>(it->request.rank)] = it;
    ++there;
  }
  guest->admitted = there < own.world_size;
  if (guest->admitted) return;
  std::vector<Entry> entries;
  for (const auto& each : group) entries.push_back(each->request.entry);
  const Bytes addresses = bytes_of(Reply{TRIREME_OK, own.world_size, {}}, entries.data(),
                                   entries.size() * sizeof(Entry));
  bool told = failpoint("meeting", "before_tell").ok();
  ++groups_;
  // Rank 0 gets it last: it may end then, and this process with it.
  for (auto each = group.rbegin(); each != group.rend(); ++each) {
    if (told) send(**each, addresses);
    if (told)
      (*each)->met = groups_;
    else
      guests_.erase(*each);
    told = told && failpoint("meeting", "mid_tell").ok();
  }
}

namespace {

// Never destroyed: threads may come at any time.
struct Served {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Directory>> by_endpoint;
};
Served& served() {
  static Served* const all = new Served;
  return *all;
}

}  // namespace

Status Directory::serve(const Endpoint& endpoint, const Token& token,
                        std::shared_ptr<Directory>* out) {
  Served& all = served();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<Directory>& entry = all.by_endpoint[endpoint.text()];
  *out = entry.lock();
  if (*out != nullptr) return Status::success();
  Socket listener;
  Endpoint bound;
  if (!listen_at(endpoint, &listener, &bound).ok()) return Status::success();
  TRIREME_RETURN_IF_ERROR(start(std::move(listener), endpoint, token, out));
  entry = *out;
  return Status::success();
}

Status Directory::open(Endpoint address, const Token& token, Endpoint* bound,
                       std::shared_ptr<Directory>* out) {
  Served& all = served();
  const std::lock_guard lock(all.mutex);
  address.set_port(0);
  Socket listener;
  TRIREME_RETURN_IF_ERROR(listen_at(address, &listener, bound));
  TRIREME_RETURN_IF_ERROR(start(std::move(listener), *bound, token, out));
  std::erase_if(all.by_endpoint, [](const auto& each) { return each.second.expired(); });
  all.by_endpoint[bound->text()] = *out;
  return Status::success();
}

Status Directory::start(Socket listener, const Endpoint& endpoint, const Token& token,
                        std::shared_ptr<Directory>* out) {
  auto server =
      std::make_shared<Server>(token, std::move(listener), "the meeting at " + endpoint.text());
  TRIREME_RETURN_IF_ERROR(server->open());
  TRIREME_RETURN_IF_ERROR(start_thread([server] { server->run(); }));
  out->reset(new Directory(std::move(server)));
  return Status::success();
}

Directory::~Directory() { server_->stop(); }

void Directory::settle() noexcept { server_->settle(); }

Status visit(const Endpoint& endpoint, const Token& token, const Visit& own, const Wait& wait,
             const std::atomic<bool>& stop, std::vector<Entry>* out, bool* refused, Seat* seat) {
  *refused = false;
  const std::uint64_t patience = patience_ns(own.world_size);
  Socket made;
  Socket socket;
  TRIREME_RETURN_IF_ERROR(connect_to(endpoint, Deadline::after(kDirectoryCallNs), stop, &made));
  const Deadline deadline = Deadline::after(patience);
  TRIREME_RETURN_IF_ERROR(
      shake_hands(std::move(made), "the server of the meeting at " + endpoint.text(), token,
                  terms_of(own.rank), {deadline, deadline}, stop, &socket, nullptr));
  Request request{};
  TRIREME_FAILPOINT("meeting", "before_request");
  own.name.copy(request.name, sizeof request.name - 1);
  request.rank = own.rank;
  request.world_size = own.world_size;
  request.entry = own.own;
  TRIREME_RETURN_IF_ERROR(
      socket.send_all(&request, sizeof request, Deadline::after(patience), stop));
  TRIREME_FAILPOINT("meeting", "after_request");
  Reply reply;
  // The others may come at any time; operations of the group have the deadlines. Keep-alive notices
  // when the serving host vanishes.
  socket.keep_alive(period_of(kIdleNs, own.world_size, kLongestIdleNs));
  TRIREME_RETURN_IF_ERROR(wait_for_reply(socket, wait, stop, &reply));
  const bool known = reply.code <= TRIREME_OK && reply.code >= kLowestStatus;
  if (!known || (reply.code == TRIREME_OK && reply.count != own.world_size)) {
    return Status::failure(TRIREME_ERROR_CORRUPT, "the meeting's answer makes no sense");
  }
  if (reply.code != TRIREME_OK) {
    *refused = true;
    return Status::failure(reply.code, text_of(reply.text));
  }
  TRIREME_FAILPOINT("meeting", "after_reply");
  out->resize(static_cast<std::size_t>(own.world_size));
  TRIREME_RETURN_IF_ERROR(receive_entries(socket, stop, out));
  *seat = Seat(std::move(socket));
  return Status::success();
}

void ask(const Socket& seat, bool gives_up) noexcept {
  say(seat, {gives_up ? Word::give_up : Word::ask, 0});
}

bool Seat::receive_gone(std::vector<int>* gone) {
  bool open = true;
  for (int rank = 0; rank >= 0;) {
    open = next(&rank);
    if (rank >= 0) gone->push_back(rank);
  }
  return open;
}

int Seat::first_told() noexcept {
  int rank = -1;
  static_cast<void>(next(&rank));
  return rank;
}

// The next rank that has gone; -1: there is none yet. False if the seat has ended.
bool Seat::next(int* rank) noexcept {
  *rank = -1;
  std::size_t moved = 0;
  const Moved result = socket_.receive(number_ + got_, sizeof number_ - got_, &moved);
  got_ += moved;
  if (got_ == sizeof number_) {
    std::uint16_t number = 0;
    std::memcpy(&number, number_, sizeof number);
    *rank = number;
    got_ = 0;
  }
  return result != Moved::ended;
}

void Seat::say_last(int rank) noexcept {
  say(socket_, {Word::last, static_cast<std::uint16_t>(rank)});
  socket_.reset();
}

}  // namespace trireme::tcp
