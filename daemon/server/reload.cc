// The configuration read again, and the news of marud's condition.
#include "daemon/base/log.h"
#include "daemon/base/plain_text.h"
#include "daemon/hosting/reread.h"
#include "daemon/http/door.h"
#include "daemon/server/server.h"
#include "daemon/system/notify.h"

#include <utility>

namespace maru::daemon {
namespace {

constexpr size_t kStatusBytesMax = 4096;  // of the text for the service manager

}  // namespace

// The lacks of HTTP: sockets, which its thread reports, and members of the admin group without access to the socket. Both
// change when a socket was opened after all, and with the configuration.
void Server::look_at_http() {
  http_opened_ = desk_->trouble();
  const std::string closed = http::closed_to_group(http_socket_path(config_), config_.admin_group);
  std::string trouble = http_opened_ + (http_opened_.empty() || closed.empty() ? "" : "; ") + closed;
  if (trouble == requests_.http_trouble) return;
  requests_.http_trouble = std::move(trouble);
  tell_status();
}

// One line for "systemctl status": each condition out of order, and the result of the last reload.
void Server::tell_status() {
  std::string text = unavailable_said_;
  const auto add = [&](const std::string& more) { text += (text.empty() || more.empty() ? "" : "; ") + more; };
  add(requests_.socket_trouble);
  add(requests_.http_trouble.empty() ? "" : "HTTP: " + requests_.http_trouble);
  add(reread_said_);
  notify("STATUS=" + plain_text(text, kStatusBytesMax));
}

// Requests are answered meanwhile, by the configuration before.
void Server::reload() {
  notify("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(now_.monotonic_ms * 1000));
  reads_again_ = reading_.is_begun();  // its text may be older than this signal
  if (!reads_again_) reading_.begin(reread_, failed_reading());
}

void Server::finish_reload() {
  auto reading = reading_.take();
  if (!reading) return;
  if (std::exchange(reads_again_, false)) return reading_.begin(reread_, failed_reading());
  if (const auto reread = usable(std::move(*reading)))
    take_over(*reread);
  else
    reread_said_ = "the configuration was changed and cannot be used, the one before is in force (the log says why)";
  tell_status();
  notify("READY=1");
}

void Server::take_over(const Config& reread) {
  config_.admin_group = reread.admin_group;
  config_.adopt_grace_ms = reread.adopt_grace_ms;
  config_.log_level = reread.log_level;
  config_.user_limits = reread.user_limits;
  config_.user_limit_rules = reread.user_limit_rules;
  config_.subordinate_users = reread.subordinate_users;
  log_set_level(config_.log_level);
  if (desk_) {
    desk_->read_again();
    http::give_to_group(http_socket_path(config_), config_.admin_group);
    look_at_http();
  }
  for (const auto& hosted : pools_)
    for (const PoolSpec& spec : reread.pools)
      if (spec.pool.name == hosted->name()) hosted->set_access(spec);
  lifecycle_.let_in();
  std::string status;
  const auto tell = [&](const std::vector<std::string>& changes) {
    for (const std::string& change : changes) {
      log_warning("{}", change);
      status += (status.empty() ? "" : "; ") + change;
    }
  };
  tell(lifecycle_.rescan(reread));
  tell(waiting_changes(config_, pools_, reread));
  log_info(
      "the configuration was read again: log level, admin group, grace, access lists and limits of users are in "
      "force, and so are new pools; the tokens of HTTP are read again");
  reread_said_ = status.empty() ? "the configuration was read again" : status;
}

}  // namespace maru::daemon
