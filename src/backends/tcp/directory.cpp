#include "backends/tcp/directory.hpp"

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <mutex>

#include "net/sha256.hpp"
#include "platform/failpoint.hpp"
#include "platform/thread.hpp"
#include "platform/utf8.hpp"

namespace trireme::tcp {
namespace {

constexpr std::int32_t kMostRanks = 256;
constexpr std::uint64_t kTurnNs = 100'000'000;
constexpr std::uint64_t kDirectoryCallNs = 10'000'000'000;

struct Request {
  char name[64];
  std::int32_t rank;
  std::int32_t world_size;
  Entry entry;
};
static_assert(sizeof(Request) == 216);

struct Reply {
  std::int32_t code;
  std::int32_t count;  // of the entries that follow
  char text[248];
};
static_assert(sizeof(Reply) == 256);

template <std::size_t n>
std::string text_of(const char (&field)[n]) {
  return clean_text({field, strnlen(field, n)});
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
      : token_(token), gate_(std::move(listener), token_, terms_of(-1), name) {}

  Status open() { return waker_.open(); }
  void stop() noexcept {
    stop_.store(true, std::memory_order_release);
    waker_.wake();
  }
  void run() noexcept {
    while (!stop_.load(std::memory_order_acquire)) {
      try {
        turn();
      } catch (...) {  // no memory for somebody who came: the rest goes on
      }
    }
    gate_.close();
    guests_.clear();
  }

 private:
  struct Guest {
    Socket socket;
    std::uint64_t since_ns;
    std::size_t got = 0;  // bytes of the request
    Request request{};
    bool admitted = false;  // its request was looked at, and its group waits for others
    bool whole() const { return got == sizeof request; }
  };

  void turn();
  bool read(Guest& guest);
  void admit(std::list<Guest>::iterator guest);
  static void tell(const Guest& guest, const Reply& reply, const std::vector<Entry>& entries);
  void refuse(const std::vector<std::list<Guest>::iterator>& guests, trireme_status code,
              const std::string& text);

  const Token token_;
  Waker waker_;
  Gate gate_;
  std::list<Guest> guests_;
  std::atomic<bool> stop_{false};
};

void Directory::Server::turn() {
  std::vector<pollfd> polled{{waker_.get(), POLLIN, 0}};
  for (const Guest& guest : guests_) polled.push_back({guest.socket.get(), POLLIN, 0});
  const std::size_t gate = polled.size();
  gate_.add_to(&polled);
  ::poll(polled.data(), polled.size(), static_cast<int>(kTurnNs / 1'000'000));
  std::size_t at = 1;
  std::vector<std::list<Guest>::iterator> complete;
  const std::uint64_t now = now_ns();
  for (auto it = guests_.begin(); it != guests_.end(); ++at) {
    const bool was_whole = it->whole();
    const bool stays = polled[at].revents == 0 || read(*it);
    if (!stays || (!it->whole() && now - it->since_ns > kDirectoryCallNs)) {
      it = guests_.erase(it);
      continue;
    }
    if (!was_whole && it->whole()) complete.push_back(it);
    ++it;
  }
  gate_.serve(polled, gate, {Purpose::store},
              [this](int, Purpose, Socket socket, const SessionKeys&) {
                // A host that vanishes sends no end, and would keep its rank for ever.
                socket.keep_alive();
                guests_.push_back({std::move(socket), now_ns()});
              });
  // Each of them may take all others of its group away with it.
  for (const auto& each : complete) {
    const auto there = [&](const Guest& guest) { return &guest == &*each; };
    if (std::any_of(guests_.begin(), guests_.end(), there)) admit(each);
  }
}

// False if it has gone, or says more than it should.
bool Directory::Server::read(Guest& guest) {
  char more = 0;
  std::size_t moved = 0;
  auto* const to = reinterpret_cast<char*>(&guest.request);
  const Moved result =
      guest.whole()
          ? guest.socket.receive(&more, 1, &moved)
          : guest.socket.receive(to + guest.got, sizeof guest.request - guest.got, &moved);
  if (result == Moved::ended || (guest.whole() && moved > 0)) return false;
  guest.got += moved;
  return true;
}

// A socket that waited for nothing but this has room for it.
void Directory::Server::tell(const Guest& guest, const Reply& reply,
                             const std::vector<Entry>& entries) {
  std::vector<char> bytes(sizeof reply + entries.size() * sizeof(Entry));
  std::memcpy(bytes.data(), &reply, sizeof reply);
  if (!entries.empty()) {
    std::memcpy(bytes.data() + sizeof reply, entries.data(), entries.size() * sizeof(Entry));
  }
  std::size_t moved = 0;
  static_cast<void>(guest.socket.send(bytes.data(), bytes.size(), &moved));
}

void Directory::Server::refuse(const std::vector<std::list<Guest>::iterator>& guests,
                               trireme_status code, const std::string& text) {
  Reply reply{code, 0, {}};
  std::memcpy(reply.text, text.data(), whole_letters(text, sizeof reply.text - 1));
  for (const auto& each : guests) {
    tell(*each, reply, {});
    guests_.erase(each);
  }
}

void Directory::Server::admit(std::list<Guest>::iterator guest) {
  const Request& own = guest->request;
  const std::string name = text_of(own.name);
  if (own.world_size < 1 || own.world_size > kMostRanks || own.rank < 0 ||
      own.rank >= own.world_size) {
    return refuse({guest}, TRIREME_ERROR_CORRUPT, "a rank that cannot be");
  }
  std::vector<std::list<Guest>::iterator> group(static_cast<std::size_t>(own.world_size),
                                                guests_.end());
  group[static_cast<std::size_t>(own.rank)] = guest;
  int there = 1;
  for (auto it = guests_.begin(); it != guests_.end(); ++it) {
    if (it == guest || !it->admitted || std::memcmp(it->request.name, own.name, sizeof own.name)) {
      continue;
    }
    const std::string both =
        "rank " + std::to_string(own.rank) + " at " + text_of(own.entry.endpoint);
    if (it->request.world_size != own.world_size) {
      // All hear of it: none of them could ever be complete.
      std::vector<std::list<Guest>::iterator> all;
      for (auto each = guests_.begin(); each != guests_.end(); ++each) {
        if ((each->admitted || each == guest) &&
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
  const Reply reply{TRIREME_OK, own.world_size, {}};
  bool told = failpoint("meeting", "before_tell").ok();
  for (const auto& each : group) {
    if (told) tell(*each, reply, entries);
    told = told && failpoint("meeting", "mid_tell").ok();
    guests_.erase(each);
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

Status visit(const Endpoint& endpoint, const Token& token, const Visit& own,
             const std::atomic<bool>& stop, std::vector<Entry>* out, bool* refused) {
  *refused = false;
  Socket socket;
  TRIREME_RETURN_IF_ERROR(call(endpoint, "who serves the meeting at " + endpoint.text(), token,
                               terms_of(own.rank), Deadline::after(kDirectoryCallNs), stop, &socket));
  Request request{};
  TRIREME_FAILPOINT("meeting", "before_request");
  own.name.copy(request.name, sizeof request.name - 1);
  request.rank = own.rank;
  request.world_size = own.world_size;
  request.entry = own.own;
  TRIREME_RETURN_IF_ERROR(
      socket.send_all(&request, sizeof request, Deadline::after(kDirectoryCallNs), stop));
  TRIREME_FAILPOINT("meeting", "after_request");
  Reply reply;
  // The others may come at any time; operations of the group have the deadlines. That who serves
  // them vanishes is noticed meanwhile.
  socket.keep_alive();
  const Deadline patient = Deadline::at(UINT64_MAX);
  TRIREME_RETURN_IF_ERROR(socket.receive_all(&reply, sizeof reply, patient, stop));
  const bool known = reply.code <= TRIREME_OK && reply.code >= TRIREME_ERROR_INTERNAL;
  if (!known || (reply.code == TRIREME_OK && reply.count != own.world_size)) {
    return Status::failure(TRIREME_ERROR_CORRUPT, "the meeting's answer makes no sense");
  }
  if (reply.code != TRIREME_OK) {
    *refused = true;
    return Status::failure(reply.code, text_of(reply.text));
  }
  TRIREME_FAILPOINT("meeting", "after_reply");
  out->resize(static_cast<std::size_t>(own.world_size));
  return socket.receive_all(out->data(), out->size() * sizeof(Entry), Deadline::after(kDirectoryCallNs),
                            stop);
}

}  // namespace trireme::tcp
