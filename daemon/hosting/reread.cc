#include "daemon/hosting/reread.h"

#include "daemon/base/log.h"
#include "daemon/config/changes.h"

#include <algorithm>
#include <tuple>

namespace maru::daemon {
namespace {

using provision::Wish;

// Wherever it stands in the file.
bool is_same(const Wish& a, const Wish& b) {
  const auto all = [](const Wish& wish) {
    return std::tie(wish.name, wish.kind, wish.region, wish.device, wish.bytes, wish.align, wish.is_system_ram,
                    wish.is_persistent, wish.memories, wish.replace);
  };
  return all(a) == all(b);
}

const Wish* find(const std::vector<Wish>& wishes, const std::string& name) {
  const auto found = std::find_if(wishes.begin(), wishes.end(), [&](const Wish& wish) { return wish.name == name; });
  return found == wishes.end() ? nullptr : &*found;
}

void add_wishes(const std::vector<Wish>& running, const std::vector<Wish>& fresh, std::vector<std::string>& changes) {
  const auto add = [&](const Wish& wish, const char* what) {
    changes.push_back("provision " + printable(wish.name) + ": " + what +
                      " now: marud-provision looks at it when marud is started again, and marudctl provision apply at "
                      "once");
  };
  for (const Wish& wish : running)
    if (const Wish* now = find(fresh, wish.name); !now || !is_same(wish, *now))
      add(wish, now ? "is another one" : "is not there");
  for (const Wish& wish : fresh)
    if (!find(running, wish.name)) add(wish, "is new");
}

void append(std::vector<std::string> more, std::vector<std::string>& changes) {
  std::move(more.begin(), more.end(), std::back_inserter(changes));
}

}  // namespace

Reading failed_reading() { return {std::nullopt, {"there was no memory to read it"}}; }

std::optional<Config> usable(Reading reading) {
  for (const std::string& problem : reading.problems) log_error("the configuration stays as it is: {}", problem);
  return std::move(reading.config);
}

std::vector<std::string> waiting_changes(const Config& running, const HostedPools& pools, const Config& fresh) {
  std::vector<std::string> changes = waiting_changes("daemon", running.written_daemon, fresh.written_daemon);
  if (running.http.is_on != fresh.http.is_on)
    changes.push_back(
        std::string("http: the table ") +
        (fresh.http.is_on ? "is new now: HTTP is answered" : "is not there now: HTTP is answered no more") +
        " after a restart of marud");
  else
    append(waiting_changes("http", running.written_http, fresh.written_http), changes);
  add_wishes(running.wishes, fresh.wishes, changes);
  for (const auto& hosted : pools)
    for (const PoolSpec& spec : fresh.pools)
      if (spec.pool.name == hosted->name() && !hosted->is_gone())
        append(waiting_changes("pool " + hosted->name(), hosted->spec().written, spec.written), changes);
  return changes;
}

}  // namespace maru::daemon
