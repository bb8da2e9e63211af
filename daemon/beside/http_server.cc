#include "daemon/beside/http_server.h"

#include "daemon/base/browser_headers.h"
#include "daemon/config/table.h"

#include <arpa/inet.h>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <microhttpd.h>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace maru::daemon::beside {
namespace {

constexpr unsigned kConnectionsMax = 32;
constexpr unsigned kIdleSeconds = 15;
constexpr size_t kMemoryOfConnection = 16u << 10;
constexpr size_t kBodyMax = 4u << 10;
constexpr size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;

struct LoopbackAddress {
  bool is_v6;
  uint16_t port;
};

std::optional<LoopbackAddress> loopback_address(std::string_view text) {
  for (const std::string_view host : {"127.0.0.1:", "[::1]:"}) {
    if (!text.starts_with(host)) continue;
    text.remove_prefix(host.size());
    LoopbackAddress address = {host.front() == '[', 0};
    const auto read = std::from_chars(text.data(), text.data() + text.size(), address.port);
    if (text.empty() || read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
    return address;
  }
  return std::nullopt;
}

// An earlier life of the program left a socket without a listener.
bool is_abandoned(const sockaddr_un& address) {
  FileDescriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe.is_open() && ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
         errno == ECONNREFUSED;
}

}  // namespace

HttpSettings read_http(ConfigTable table) {
  HttpSettings settings;
  if (auto value = table.text("socket")) {
    if (value->front() != '/' || value->size() > kSocketPathMax)
      table.wrong("socket", "an absolute path of at most " + std::to_string(kSocketPathMax) + " bytes");
    settings.socket_path = *value;
  }
  if (auto value = table.text("listen")) {
    if (!loopback_address(*value))
      table.wrong("listen", "an address of this machine alone, such as \"127.0.0.1:9102\" or \"[::1]:9102\"");
    settings.listen = *value;
  }
  if (!table.has("socket") && !table.has("listen"))
    table.missing("socket", "the path of a Unix socket, or listen with an address such as \"127.0.0.1:9102\"");
  table.refuse_unknown();
  return settings;
}

// -- requests ---------------------------------------------------------------------------------------------------------

namespace {

// The other end is root or this program's own user. Others may open the socket as well, to look.
bool is_operator(MHD_Connection* connection) {
  const MHD_ConnectionInfo* const info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  return info != nullptr && ::getsockopt(info->connect_fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
         (peer.uid == 0 || peer.uid == ::geteuid());
}

}  // namespace

struct HttpServer::Answering {
  static MHD_Result send(MHD_Connection* connection, unsigned status, const char* type, const std::string& body,
                         const char* allowed = "GET, HEAD") {
    MHD_Response* response =
        MHD_create_response_from_buffer(body.size(), const_cast<char*>(body.data()), MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(response, MHD_HTTP_HEADER_VARY, MHD_HTTP_HEADER_ACCEPT);
    for (const auto& [name, value] : kSafetyHeaders) MHD_add_response_header(response, name, value);
    MHD_add_response_header(response, "Content-Security-Policy", kPagePolicy);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, allowed);
    const MHD_Result queued = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return queued;
  }

  struct Body {
    std::string text;
    bool is_too_long = false;
  };

  static void on_end(void*, MHD_Connection*, void** context, MHD_RequestTerminationCode) {
    delete static_cast<Body*>(*context);
  }

  // The path as it was asked for: the program's handler decodes it.
  static size_t on_percent(void*, MHD_Connection*, char* text) { return std::strlen(text); }

  static MHD_Result on_request(void* self, MHD_Connection* connection, const char* path, const char* method,
                               const char*, const char* upload, size_t* upload_bytes, void** context) {
    // The first call has the headers alone.
    if (*context == nullptr) {
      *context = new Body;
      return MHD_YES;
    }
    Body& body = *static_cast<Body*>(*context);
    if (*upload_bytes != 0) {
      body.is_too_long = body.is_too_long || body.text.size() + *upload_bytes > kBodyMax;
      if (!body.is_too_long) body.text.append(upload, *upload_bytes);
      *upload_bytes = 0;
      return MHD_YES;
    }
    const Entrance& entrance = *static_cast<const Entrance*>(self);
    const HttpServer& server = entrance.server;
    const std::string_view wanted = path;
    if (body.is_too_long)
      return send(connection, MHD_HTTP_CONTENT_TOO_LARGE, "text/plain", "A body has at most 4096 bytes here.\n");
    const char* accept = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);
    const bool wants_html = accept != nullptr && std::strstr(accept, "text/html") != nullptr;
    if (const auto reply =
            server.handlers_.call({method, path, body.text, entrance.is_unix && is_operator(connection), wants_html}))
      return send(connection, reply->status, reply->content_type, reply->body, "GET, HEAD, PUT, DELETE");
    if (std::strcmp(method, MHD_HTTP_METHOD_GET) != 0 && std::strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
      return send(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "text/plain", "This path takes GET and HEAD.\n");
    if (wanted == "/metrics")
      return send(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", server.counters_.text());
    if (wanted == "/healthcheck")
      return send(connection, unsigned(server.health_.http_status()), "application/json", server.health_.json() + "\n");
    return send(connection, wanted == "/" ? MHD_HTTP_OK : MHD_HTTP_NOT_FOUND, "text/plain",
                "GET /metrics      numbers for Prometheus\nGET /healthcheck  what does not work, as JSON\n");
  }
};

// -- sockets ----------------------------------------------------------------------------------------------------------

Result<void> HttpServer::serve(FileDescriptor listener, bool is_unix) {
  Entrance& entrance = entrances_.emplace_back(Entrance{*this, is_unix});
  // A thread for each connection: a handler may wait for the rest of the program, and other connections do not.
  constexpr unsigned kFlags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL;
  MHD_Daemon* daemon =
      MHD_start_daemon(kFlags, 0, nullptr, nullptr, &Answering::on_request, &entrance, MHD_OPTION_LISTEN_SOCKET,
                       listener.get(), MHD_OPTION_CONNECTION_LIMIT, kConnectionsMax, MHD_OPTION_CONNECTION_TIMEOUT,
                       kIdleSeconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, kMemoryOfConnection,
                       MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_COMPLETED, &Answering::on_end, nullptr,
                       MHD_OPTION_UNESCAPE_CALLBACK, &Answering::on_percent, nullptr, MHD_OPTION_END);
  if (daemon == nullptr) return failure(ENOMEM, "start libmicrohttpd");
  listener.release();  // MHD_stop_daemon() closes it
  daemons_.push_back(daemon);
  return {};
}

Result<void> HttpServer::open_unix(const std::string& path) {
  const std::string doing = "answer HTTP on " + path;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() > kSocketPathMax) return failure(ENAMETOOLONG, doing);
  std::memcpy(address.sun_path, path.data(), path.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return failure(errno, doing);
  const auto bind_it = [&] {
    return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  };
  if (!bind_it()) {
    if (errno != EADDRINUSE || !is_abandoned(address)) return failure(errno == 0 ? EADDRINUSE : errno, doing);
    ::unlink(path.c_str());
    if (!bind_it()) return failure(errno, doing);
  }
  socket_path_ = path;
  if (::chmod(path.c_str(), 0660) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) return failure(errno, doing);
  return serve(std::move(socket), true);
}

Result<void> HttpServer::open_tcp(const std::string& listen) {
  const std::string doing = "answer HTTP on " + listen;
  const auto wanted = loopback_address(listen);
  if (!wanted) return failure(EINVAL, doing);
  union {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
  } address = {};
  socklen_t bytes = wanted->is_v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (wanted->is_v6) {
    address.v6.sin6_family = AF_INET6;
    address.v6.sin6_addr = in6addr_loopback;
    address.v6.sin6_port = htons(wanted->port);
  } else {
    address.v4.sin_family = AF_INET;
    address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.v4.sin_port = htons(wanted->port);
  }
  FileDescriptor socket(::socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  if (!socket.is_open() || ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) != 0 ||
      ::bind(socket.get(), &address.any, bytes) != 0 || ::listen(socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(socket.get(), &address.any, &bytes) != 0)
    return failure(errno, doing);
  const uint16_t port = ntohs(wanted->is_v6 ? address.v6.sin6_port : address.v4.sin_port);
  tcp_address_ = (wanted->is_v6 ? "[::1]:" : "127.0.0.1:") + std::to_string(port);
  return serve(std::move(socket), false);
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpSettings& settings, const Counters& counters,
                                                      const Health& health, const HttpHandlers& handlers) {
  std::unique_ptr<HttpServer> server(new HttpServer(counters, health, handlers));
  if (!settings.socket_path.empty())
    if (auto opened = server->open_unix(settings.socket_path); !opened) return tl::unexpected(opened.error());
  if (!settings.listen.empty())
    if (auto opened = server->open_tcp(settings.listen); !opened) return tl::unexpected(opened.error());
  return server;
}

HttpServer::~HttpServer() {
  for (MHD_Daemon* daemon : daemons_) MHD_stop_daemon(daemon);
  if (!socket_path_.empty()) ::unlink(socket_path_.c_str());
}

}  // namespace maru::daemon::beside
