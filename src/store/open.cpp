// Finds the store that a URL means.
#include <cstdlib>

#include "net/endpoint.hpp"
#include "store/client.hpp"
#include "store/file.hpp"
#include "store/server.hpp"
#include "store/store.hpp"

namespace trireme::cluster {
namespace {

constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kFile = "file://";
constexpr std::string_view kEnvironment = "env://";

Status wrong(std::string_view url, const std::string& why) {
  return invalid_argument("the store's URL \"" + std::string(url) + "\": " + why);
}

// Replaces "env://" by the URL in the environment.
Status look_into_environment(std::string_view url, std::string* out) {
  *out = url;
  if (url != kEnvironment) return Status::success();
  const auto value = [](const char* name) {
    const char* const text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  *out = value("TRIREME_STORE");
  if (*out == kEnvironment) return wrong(url, "TRIREME_STORE is env:// itself");
  if (!out->empty()) return Status::success();
  const std::string host = value("MASTER_ADDR"), port = value("MASTER_PORT");
  if (host.empty() || port.empty()) {
    return wrong(url, "neither TRIREME_STORE nor MASTER_ADDR and MASTER_PORT are set");
  }
  *out = std::string(kTcp) + tcp::endpoint_text(host, port);
  return Status::success();
}

}  // namespace

Status serve_store(std::string_view url, const Token& token, Deadline deadline,
                   std::unique_ptr<Store>* out) {
  std::string text;
  TRIREME_RETURN_IF_ERROR(look_into_environment(url, &text));
  if (!text.starts_with(kTcp)) return wrong(text, "a store is served at tcp://ADDRESS:PORT");
  std::string host, why;
  std::uint16_t port = 0;
  tcp::Endpoint endpoint;
  if (!tcp::split_endpoint(std::string_view(text).substr(kTcp.size()), 0, &host, &port, &why)) {
    return wrong(text, why);
  }
  if (!tcp::look_up(host, port, &endpoint, &why)) return wrong(text, why);
  if (endpoint.is_any()) {
    return wrong(text, "it is every address of this host; a store is served at one");
  }
  std::unique_ptr<StoreServer> server;
  TRIREME_RETURN_IF_ERROR(StoreServer::start(endpoint, token, &server));
  if (!tcp::split_endpoint(server->endpoint().text(), 1, &host, &port, &why)) {
    return wrong(text, why);
  }
  auto client = std::make_unique<StoreClient>(host, port, token, std::move(server));
  TRIREME_RETURN_IF_ERROR(client->open(deadline));
  *out = std::move(client);
  return Status::success();
}

Status connect_store(std::string_view url, const Token& token, Deadline deadline,
                     std::unique_ptr<Store>* out) {
  std::string text;
  TRIREME_RETURN_IF_ERROR(look_into_environment(url, &text));
  const std::string_view view = text;
  if (view.starts_with(kFile)) {
    const std::string_view path = view.substr(kFile.size());
    if (!path.starts_with('/')) return wrong(text, "a path begins with /: file:///PATH");
    auto file = std::make_unique<StoreFile>(std::string(path), token);
    TRIREME_RETURN_IF_ERROR(file->open(deadline));
    *out = std::move(file);
    return Status::success();
  }
  if (!view.starts_with(kTcp)) {
    return wrong(text, "it begins with none of tcp://, file://, env://");
  }
  std::string host, why;
  std::uint16_t port = 0;
  if (!tcp::split_endpoint(view.substr(kTcp.size()), 1, &host, &port, &why)) {
    return wrong(text, why);
  }
  auto client = std::make_unique<StoreClient>(host, port, token, nullptr);
  TRIREME_RETURN_IF_ERROR(client->open(deadline));
  *out = std::move(client);
  return Status::success();
}

}  // namespace trireme::cluster
