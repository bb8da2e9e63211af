// The tier in a Redis or a Valkey behind maru/tier.h.
#include "daemon/tierd/tiers/built_in.h"
#include "daemon/tierd/tiers/calls_of.h"
#include "daemon/tierd/tiers/resp_tier.h"

#include <fstream>

namespace maru::tierd {
namespace {

std::string read_wish(OptionReader& reader, RespWish& wish) {
  wish.host = reader.text("host", wish.host);
  wish.port = uint16_t(reader.number("port", wish.port, 1, UINT16_MAX));
  wish.socket_path = reader.text("socket", "");
  wish.user = reader.text("user", "");
  wish.password = reader.text("password", "");
  if (const std::string path = reader.text("password_file", ""); !path.empty()) {
    std::ifstream file(path);
    if (!file) return "password_file: cannot read " + path + "; expected a file with the password in its first line";
    std::getline(file, wish.password);
  }
  wish.database = uint32_t(reader.number("database", 0, 0, 1u << 20));
  wish.prefix = reader.text("prefix", wish.prefix);
  wish.ttl_ms = reader.number("ttl_ms", 0, 0, 1ull << 50);
  wish.connect_timeout_ms = uint32_t(reader.number("connect_timeout_ms", wish.connect_timeout_ms, 1, 600'000));
  wish.timeout_ms = uint32_t(reader.number("timeout_ms", wish.timeout_ms, 1, 600'000));
  wish.chunk_bytes = reader.number("chunk_bytes", wish.chunk_bytes, 4096, 512u << 20);
  wish.depth_bytes = reader.number("depth_bytes", wish.depth_bytes, 4096, 1ull << 40);
  wish.lists = reader.flag("list", true);
  wish.list_every_s = uint32_t(reader.number("list_every_s", wish.list_every_s, 0, 1u << 30));
  wish.list_memory = reader.number("list_memory", wish.list_memory, 64u << 10, 1ull << 40);
  return reader.mistake(
      "host, port, socket, user, password, password_file, database, prefix, ttl_ms, connect_timeout_ms, timeout_ms, "
      "chunk_bytes, depth_bytes, list, list_every_s or list_memory");
}

struct RespPlugin {
  using Tier = RespTier;
  using Wish = RespWish;
  static constexpr const char* kName = "resp";
  static constexpr auto read = read_wish;
  static std::string problem(const Error& error) { return error.doing; }
};

}  // namespace

const maru_tier_calls kRespTier = calls_of<RespPlugin>();

}  // namespace maru::tierd
