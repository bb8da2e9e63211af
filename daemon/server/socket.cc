// The files of the socket that clients connect to may be taken away while marud serves (socket_files.h). Connected clients go
// on. A thread looks for the files, and makes the socket again where marud made it, since both may wait for a disk.
#include "daemon/base/log.h"
#include "daemon/server/server.h"
#include "daemon/system/notify.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace maru::daemon {
namespace {

constexpr uint64_t kLookPauseMs = 10'000;  // where the kernel had no descriptor to tell of changes
constexpr uint64_t kNever = UINT64_MAX;    // until it tells: each look is a thread, and the allocator gives that a heap
constexpr uint64_t kAgainPauseMs = 1000, kAgainPauseMaxMs = 60'000;
constexpr uid_t kNobody = uid_t(-1);

}  // namespace

void Server::watch_socket_files() {
  const int changes = listener_.files().changes_fd();
  if (socket_watch_ != 0) loop_->cancel(EventKind::kFiles, socket_watch_);
  ++socket_watch_;
  if (changes >= 0) loop_->watch_files(socket_watch_, changes);
  socket_look_due_ms_ = next_look_ms();
}

uint64_t Server::next_look_ms() const {
  return listener_.files().changes_fd() >= 0 ? kNever : now_.monotonic_ms + kLookPauseMs;
}

void Server::on_socket_files(const Event& event) {
  if (event.id != socket_watch_ || event.result < 0) return;
  listener_.files().clear_changes();
  loop_->watch_files(socket_watch_, listener_.files().changes_fd());
  socket_look_due_ms_ = 0;
  looks_again_ = socket_look_.is_begun();  // the look under way may have looked before
}

void Server::look_at_socket_files() {
  if (auto look = socket_look_.take()) finish_look_at_socket_files(std::move(*look));
  if (socket_look_.is_begun() || now_.monotonic_ms < socket_look_due_ms_) return;
  socket_look_due_ms_ = next_look_ms();
  const auto look = [files = listener_.share_files(), is_passed = listener_.is_passed(),
                     for_everybody = others_may_connect(config_)] {
    SocketLook found = {files->why_lost(), std::nullopt};
    if (!found.lost.empty() && !is_passed)
      found.fresh = Listener::open(files->path(), for_everybody, {}, SOCK_SEQPACKET, files.get());
    return found;
  };
  socket_look_.begin(look, {});
}

void Server::finish_look_at_socket_files(SocketLook look) {
  if (std::exchange(looks_again_, false)) socket_look_due_ms_ = 0;
  std::string trouble;
  if (!look.lost.empty()) {
    const bool is_made = look.fresh && *look.fresh;
    if (requests_.socket_trouble.empty()) ++requests_.sockets_lost;
    trouble = "clients cannot connect: " + look.lost +
              (listener_.is_passed() ? "; the service manager listens there: start marud.socket again"
               : is_made             ? ""
                                     : "; cannot make the socket again: " + look.fresh->error().text());
  }
  if (look.fresh && *look.fresh) {
    log_warning("{}: the socket is made again; connected clients go on", look.lost);
    trouble.clear();
    take_new_listener(std::move(**look.fresh));
  }
  if (trouble.empty()) {
    socket_pause_ms_ = 0;
  } else {
    socket_pause_ms_ = std::clamp(2 * socket_pause_ms_, kAgainPauseMs, kAgainPauseMaxMs);
    socket_look_due_ms_ = now_.monotonic_ms + socket_pause_ms_;
  }
  if (std::exchange(requests_.socket_trouble, trouble) == trouble) return;
  if (!trouble.empty()) log_error("{}; it is tried again, and connected clients go on", trouble);
  tell_status();
}

// The closer closes connections that still wait in the old one. Their clients try again.
void Server::take_new_listener(Listener fresh) {
  if (accepts_ > 0) loop_->cancel_accepts();
  const int old = listener_.release_socket();
  listener_ = std::move(fresh);
  closer_.close(old, kNobody);
  lifecycle_.let_in();
  watch_socket_files();
}

}  // namespace maru::daemon
