// The tier in a Redis or a Valkey behind maru/tier.h.
#include "daemon/tierd/tiers/built_in.h"
#include "daemon/tierd/tiers/options.h"
#include "daemon/tierd/tiers/resp_tier.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>

namespace maru::tierd {
namespace {

RespTier& of(maru_tier* tier) { return *reinterpret_cast<RespTier*>(tier); }

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
  return reader.mistake(
      "host, port, socket, user, password, password_file, database, prefix, ttl_ms, connect_timeout_ms, timeout_ms, "
      "chunk_bytes or "
      "depth_bytes");
}

int open_resp(const maru_tier_option* options, size_t n, maru_tier** ret_tier, char* problem, size_t problem_bytes) {
  OptionReader reader(options, n);
  RespWish wish;
  if (const std::string mistake = read_wish(reader, wish); !mistake.empty()) {
    std::snprintf(problem, problem_bytes, "%s", mistake.c_str());
    return -EINVAL;
  }
  auto tier = RespTier::open(wish);
  if (tier) {
    *ret_tier = reinterpret_cast<maru_tier*>(tier->release());
    return 0;
  }
  std::snprintf(problem, problem_bytes, "%s", tier.error().doing.c_str());
  return -tier.error().code;
}

}  // namespace

const maru_tier_calls kRespTier = {
    .size = sizeof(maru_tier_calls),
    .abi = MARU_TIER_ABI,
    .reserved0 = 0,
    .name = "resp",
    .open = open_resp,
    .close = [](maru_tier* tier) { delete &of(tier); },
    .event_descriptor = [](maru_tier* tier) { return of(tier).completions().descriptor(); },
    .submit = [](maru_tier* tier, const maru_tier_request* requests, size_t n) { return of(tier).submit(requests, n); },
    .complete = [](maru_tier* tier, maru_tier_completion* done,
                   size_t n) { return of(tier).completions().take(done, n); },
    .get_properties = [](maru_tier* tier, maru_tier_properties* properties) { of(tier).get_properties(*properties); },
    .get_usage = [](maru_tier* tier, maru_tier_usage* usage) { of(tier).get_usage(*usage); },
    .get_health = [](maru_tier* tier, maru_tier_health* health) { of(tier).get_health(*health); },
    .list = [](maru_tier*, uint64_t*, maru_tier_entry*, size_t) { return -EOPNOTSUPP; },
    .get_group = nullptr,
    .list_groups = nullptr,
    .list_oldest = nullptr,
};

}  // namespace maru::tierd
