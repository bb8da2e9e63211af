#include "daemon/tierd/tiers/tier.h"

#include "daemon/tierd/tiers/built_in.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <dlfcn.h>

namespace maru::tierd {

namespace {

struct Plugin {
  const maru_tier_calls* calls;
  void* library;
};

Result<Plugin> load(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const reason = dlerror();
    return failure(ELIBACC, std::string("load the tier ") + path + " (" + (reason ? reason : "no reason given") +
                                "); build it as docs/examples/tier shows");
  }
  const auto* const calls = static_cast<const maru_tier_calls*>(dlsym(library, "maru_tier_plugin"));
  if (calls && calls->abi == MARU_TIER_ABI && calls->size >= offsetof(maru_tier_calls, get_group))
    return Plugin{calls, library};
  const std::string why = !calls ? "it exports no maru_tier_plugin; see the end of maru/tier.h"
                                 : "found version " + std::to_string(calls->abi) + " of maru/tier.h, expected " +
                                       std::to_string(MARU_TIER_ABI) + "; build it again";
  dlclose(library);
  return failure(ELIBACC, "load the tier " + path + ": " + why);
}

}  // namespace

Result<std::unique_ptr<Tier>> Tier::open(const std::string& kind, const TierOptions& options) {
  Plugin plugin = {built_in_tier(kind), nullptr};
  if (kind.find('/') != std::string::npos) {
    auto loaded = load(kind);
    if (!loaded) return tl::unexpected(loaded.error());
    plugin = *loaded;
  }
  if (!plugin.calls)
    return failure(ENOENT, "open a tier: kind: found \"" + kind + "\", expected one of " + built_in_tier_names() +
                               ", or the path of a shared object");
  std::vector<maru_tier_option> texts;
  for (const auto& [name, value] : options) texts.push_back({name.c_str(), value.c_str()});
  char problem[1024] = "";
  maru_tier* tier = nullptr;
  const int result = plugin.calls->open(texts.data(), texts.size(), &tier, problem, sizeof problem);
  problem[sizeof problem - 1] = 0;
  if (result == 0) return std::unique_ptr<Tier>(new Tier(plugin.calls, plugin.library, tier));
  if (plugin.library) dlclose(plugin.library);
  return failure(
      -result, std::string("open the tier of kind ") + kind + ": " + (problem[0] ? problem : "it did not say why not"));
}

Tier::Tier(const maru_tier_calls* calls, void* library, maru_tier* tier)
    : calls_(calls), library_(library), tier_(tier) {
  const bool has_calls =
      calls->size >= sizeof(maru_tier_calls) && calls->get_group && calls->list_groups && calls->list_oldest;
  counts_groups_ = has_calls && (properties().capabilities & MARU_TIER_COUNTS_GROUPS) != 0;
}

maru_tier_group Tier::group(std::string_view name) {
  maru_tier_group found = {};
  if (counts_groups_) calls_->get_group(tier_, name.data(), uint32_t(name.size()), &found);
  return found;
}

std::vector<maru_tier_group> Tier::groups() {
  std::vector<maru_tier_group> all;
  std::array<maru_tier_group, 64> page;
  for (int n = 1; counts_groups_ && n > 0;) {
    n = calls_->list_groups(tier_, all.empty() ? nullptr : &all.back(), page.data(), page.size());
    for (int i = 0; i < n; ++i) all.push_back(page[size_t(i)]);
  }
  return all;
}

std::vector<std::pair<std::string, uint64_t>> Tier::oldest(std::string_view name, size_t n) {
  std::vector<std::pair<std::string, uint64_t>> all;
  if (!counts_groups_) return all;
  std::vector<maru_tier_entry> page(n);
  const int found = calls_->list_oldest(tier_, name.data(), uint32_t(name.size()), page.data(), page.size());
  for (int i = 0; i < found; ++i) {
    const maru_tier_entry& entry = page[size_t(i)];
    all.emplace_back(std::string(reinterpret_cast<const char*>(entry.key), entry.key_bytes),
                     entry.payload_bytes + entry.attributes_bytes);
  }
  return all;
}

Tier::~Tier() {
  calls_->close(tier_);
  if (library_) dlclose(library_);
}

}  // namespace maru::tierd
