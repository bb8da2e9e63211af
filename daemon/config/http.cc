// The table [http].
#include "daemon/config/table.h"
#include "daemon/http/door.h"

#include <sys/un.h>

namespace maru::daemon {

void read_http(ConfigTable table, HttpConfig& http) {
  constexpr size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;
  http.is_on = true;
  http.lines = table.lines();
  if (auto value = table.text("socket")) {
    if (value->front() != '/' || value->size() > kSocketPathMax)
      table.wrong("socket", "an absolute path of at most " + std::to_string(kSocketPathMax) + " bytes");
    http.socket_path = *value;
  }
  if (auto value = table.text("listen")) {
    if (!http::loopback_address(*value))
      table.wrong("listen", "an address of this machine alone, such as \"127.0.0.1:9101\" or \"[::1]:9101\"");
    http.listen = *value;
  }
  for (auto [key, path] :
       {std::pair("token_file", &http.token_file), std::pair("read_token_file", &http.read_token_file)}) {
    const auto value = table.text(key);
    if (!value) continue;
    if (value->front() != '/') table.wrong(key, "an absolute path");
    if (http.listen.empty())
      table.wrong(key, "nothing: it is for listen, which is not there (the socket needs no token)");
    *path = *value;
  }
  if (!http.listen.empty() && !table.has("token_file") && !table.has("read_token_file"))
    table.missing("token_file",
                  "the path of a file with the token that clients of listen must send, or read_token_file "
                  "that of one which may only look");
  if (!http.token_file.empty() && normal_path(http.token_file) == normal_path(http.read_token_file))
    table.wrong("read_token_file", "another file than token_file: whoever has that token may do everything");
  if (auto value = table.integer("connections", 4, 1024)) http.connections = uint32_t(*value);
  if (auto value = table.integer("timeout_ms", 10, 60'000)) http.timeout_ms = uint32_t(*value);
  table.refuse_unknown();
}

std::string http_socket_path(const Config& config) {
  if (!config.http.socket_path.empty()) return config.http.socket_path;
  return config.socket_path.substr(0, config.socket_path.find_last_of('/')) + "/http.sock";
}

void check_http(const Config& config, bool with_tokens, std::vector<ConfigProblem>& problems) {
  if (!config.http.is_on) return;
  const auto line_of = [&](const char* key) {
    const auto found = config.http.lines.find(key);
    return found == config.http.lines.end() ? 0 : found->second;
  };
  const std::string socket = http_socket_path(config);
  if (normal_path(socket) == normal_path(config.socket_path))
    problems.push_back({line_of("socket"), "http.socket: found \"" + printable(socket) +
                                               "\", which is daemon.socket, expected a socket of its own"});
  if (!with_tokens) return;
  bool is_good = true;
  const auto complain = [&](const char* key, const Error& error) {
    problems.push_back({line_of(key), "http." + std::string(key) + ": cannot " + error.text()});
    is_good = false;
  };
  for (auto [key, path] :
       {std::pair("token_file", &config.http.token_file), std::pair("read_token_file", &config.http.read_token_file)})
    if (!path->empty())
      if (const auto token = http::Token::read(*path); !token) complain(key, token.error());
  if (!is_good) return;
  if (const auto tokens = http::Tokens::read(config.http); !tokens) complain("read_token_file", tokens.error());
}

}  // namespace maru::daemon
