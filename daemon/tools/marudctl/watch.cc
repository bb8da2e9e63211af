// marudctl watch: prints stored and removed blocks. It follows the pool (maru/follow.h), as routers do: it reads events from
// the pool, without messages. A reader that is too slow learns how many events it lost.
#include "daemon/base/request_fields.h"
#include "daemon/base/size_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/output.h"
#include "daemon/tools/marudctl/reply_fields.h"
#include "maru/follow.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <span>

namespace maru::marudctl {
namespace {

using nlohmann::json;

constexpr int kWaitMs = 200;  // and a signal is seen
constexpr size_t kEventsAtOnce = 256;
constexpr size_t kKeyBytesShown = 128;

volatile std::sig_atomic_t is_stopped = 0;
void note_stop(int) { is_stopped = 1; }

// "13:04:11.250"
std::string time_text(uint64_t unix_ms) {
  const auto seconds = time_t(unix_ms / 1000);
  tm local = {};
  ::localtime_r(&seconds, &local);
  char out[32];
  const size_t bytes = std::strftime(out, sizeof(out), "%H:%M:%S", &local);
  std::snprintf(out + bytes, sizeof(out) - bytes, ".%03u", unsigned(unix_ms % 1000));
  return out;
}

constexpr size_t kKeyWidthMin = 16;

// On a terminal of this width the key is cut so that the other columns fit; 0: the whole key.
std::string line_of(const json& event, size_t width) {
  const std::string key = text(event, "key"), reason = text(event, "reason");
  char start[64];
  std::snprintf(start, sizeof(start), "%s %-8s %9s  ", time_text(number(event, "at_ms")).c_str(),
                text(event, "event").c_str(),
                event.contains("length_bytes") ? daemon::size_text(number(event, "length_bytes")).c_str() : "-");
  const std::string line = start;
  std::string end;
  if (number(event, "key_bytes") != 0) end += "... (" + std::to_string(number(event, "key_bytes")) + " bytes)";
  if (const std::string tenant = tenant_text(event); !tenant.empty()) end += "  tenant " + tenant;
  if (!reason.empty()) end += "  by " + reason;
  if (key.empty()) return line + "(key not known, page " + std::to_string(number(event, "page")) + ")" + end + "\n";
  const size_t taken = line.size() + end.size(), room = width > taken ? width - taken : 0;
  return line + (width == 0 ? key : shortened(key, std::max(kKeyWidthMin, room))) + end + "\n";
}

// Something about the watch itself: a line of its own kind, or a word beside the output.
void note(const Arguments& arguments, const json& event, const std::string& said) {
  if (arguments.json)
    print(printable_json(event, -1) + "\n");
  else
    complain(kExitDone, said);
}

std::string bytes_text(const void* data, size_t bytes) {
  return daemon::key_text({static_cast<const std::byte*>(data), bytes});
}

// As marud wrote it when it kept the events itself.
json row_of(const maru_follow_event& event) {
  const bool is_removed = event.kind == MARU_FOLLOW_REMOVED;
  json row = {{"number", event.sequence},
              {"at_ms", event.at_ms},
              {"event", is_removed ? "removed" : "stored"},
              {"page", (event.block >> 32) - 1},
              {"key", bytes_text(event.key.data, std::min<size_t>(event.key.size, kKeyBytesShown))}};
  if (is_removed) row["reason"] = maru_follow_reason_name(event.reason);
  row["length_bytes"] = event.length;
  if (event.key.size > kKeyBytesShown) row["key_bytes"] = event.key.size;
  if (event.key.tenant == 0) return row;
  row["tenant"] = std::to_string(event.key.tenant);
  if (event.tenant_name_bytes != 0)
    row["tenant_name"] = daemon::tenant_name_text(std::string(event.tenant_name, event.tenant_name_bytes));
  return row;
}

uint64_t unix_ms() {
  timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return uint64_t(now.tv_sec) * 1000 + uint64_t(now.tv_nsec) / 1'000'000;
}

struct CloseFollower {
  void operator()(maru_follower* follower) const { maru_follow_close(follower); }
};

// Shows events until a number of them was shown, or a signal came.
class Watch {
 public:
  explicit Watch(const Arguments& arguments)
      : arguments_(arguments), left_(arguments.limit.value_or(std::numeric_limits<uint64_t>::max())) {}

  int run(const std::string& pool) {
    maru_follow_options options = {};
    options.size = sizeof(options);
    options.socket_path = arguments_.socket_path.c_str();
    options.pool = pool.c_str();
    options.flags = MARU_FOLLOW_NO_METADATA;
    options.timeout_ms = arguments_.timeout_ms;
    maru_follower* made = nullptr;
    if (const int code = maru_follow_open(&options, &made); code < 0) {
      const bool is_absent = code == -ECONNREFUSED || code == -ETIMEDOUT || code == -ECONNRESET;
      return complain(is_absent ? kExitUnreachable : kExitRefused,
                      "cannot follow pool \"" + pool + "\": " + std::strerror(-code));
    }
    const std::unique_ptr<maru_follower, CloseFollower> follower(made);
    begun_ms_ = unix_ms();
    while (is_stopped == 0 && left_ != 0) {
      maru_follow_event events[kEventsAtOnce];
      const int found = maru_follow_next(follower.get(), events, kEventsAtOnce, kWaitMs);
      if (found < 0)
        wait_for_marud(found);
      else
        show({events, size_t(found)});
      if (std::fflush(stdout) != 0) break;  // the reader of the pipe is gone
    }
    return kExitDone;
  }

 private:
  // Said once: marud is expected to come back, as after an upgrade. Its pool may refuse for a while then.
  void wait_for_marud(int code) {
    if (is_lost_ || is_stopped != 0) return;
    is_lost_ = true;
    note(arguments_, {{"event", "waiting"}},
         std::string("marud does not answer (") + std::strerror(-code) + "); watching goes on when it does");
  }

  void show(std::span<const maru_follow_event> events) {
    const size_t width = line_width();  // it may change meanwhile
    for (const maru_follow_event& event : events) {
      if (left_ == 0 || is_stopped != 0) return;
      if (event.kind == MARU_FOLLOW_RESET) reset(event);
      if (event.kind == MARU_FOLLOW_STORED || event.kind == MARU_FOLLOW_REMOVED) show(event, width);
      last_ = event.sequence;
    }
  }

  void reset(const maru_follow_event& event) {
    is_lost_ = false;
    if (event.reason == MARU_FOLLOW_OVERRUN) {
      const uint64_t count = event.sequence - std::min(event.sequence, last_);
      note(arguments_, {{"event", "lost"}, {"count", count}},
           std::to_string(count) + " events were lost: they came faster than they were read");
      begun_ms_ =
          std::numeric_limits<uint64_t>::max();  // the snapshot's blocks cannot be told from older blocks: no event
      return;
    }
    if (event.reason != MARU_FOLLOW_BEGIN) begun_ms_ = std::numeric_limits<uint64_t>::max();
    note(arguments_, {{"event", "watching"}},
         event.reason == MARU_FOLLOW_BEGIN
             ? "watching; Ctrl-C ends it"
             : "marud began to watch anew: what happened since the last line is not known");
  }

  void show(const maru_follow_event& event, size_t width) {
    // A block from before the start of this program is no event. A block from between the start and the snapshot is one.
    if ((event.flags & MARU_FOLLOW_IN_SNAPSHOT) != 0 && event.stored_ms < begun_ms_) return;
    const json row = row_of(event);
    print(arguments_.json ? printable_json(row, -1) + "\n" : line_of(row, width));
    --left_;
  }

  const Arguments& arguments_;
  uint64_t left_;          // to be shown
  uint64_t begun_ms_ = 0;  // blocks of a snapshot that were stored since are news
  uint64_t last_ = 0;      // sequence
  bool is_lost_ = false;
};

}  // namespace

int watch(const Arguments& arguments) {
  struct sigaction action = {};
  action.sa_handler = note_stop;
  action.sa_flags = SA_RESTART | SA_RESETHAND;  // the first signal lets a write finish, the second ends the program
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  std::string pool;
  Conversation conversation(arguments);
  if (const int code = pool_meant(arguments, conversation, pool); code != kExitDone) return code;
  return Watch(arguments).run(pool);
}

}  // namespace maru::marudctl
