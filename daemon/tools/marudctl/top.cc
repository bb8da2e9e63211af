// marudctl top: a live picture of marud. It uses a handful of escape sequences that every terminal has had for forty years, so
// it works over ssh, in tmux and in a serial console. However it ends, it restores the terminal.
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/sample.h"
#include "daemon/tools/marudctl/tierd_question.h"
#include "daemon/tools/marudctl/top_screen.h"
#include "libmaru/prefetch/message.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <memory>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

namespace maru::marudctl {
namespace {

using nlohmann::json;

constexpr uint32_t kTierPatienceMs = 200;  // the picture waits no longer for maru-tierd

uint64_t monotonic_ns() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

volatile std::sig_atomic_t stopped = 0, suspended = 0, continued = 0;
void on_stop(int) { stopped = 1; }
void on_suspend(int) { suspended = 1; }
void on_continue(int) { continued = 1; }
void on_resize(int) {}  // it ends the wait for a key, and the size is asked for each time

void on_signal(int signal, void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signal, &action, nullptr);
}

// The alternate screen with keys unbuffered, until the end of this object.
class Terminal {
 public:
  Terminal() {
    ::tcgetattr(STDIN_FILENO, &before_);
    enter();
  }
  ~Terminal() { leave(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void enter() const {
    termios raw = before_;
    raw.c_lflag &= ~tcflag_t(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);  // in the background this stops the process, until it is in front
    put("\033[?1049h\033[?25l");
  }
  void leave() const {
    put("\033[?25h\033[?1049l");
    ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  // Gives the terminal back while this process is stopped, as Ctrl-Z asks.
  void suspend() const {
    leave();
    on_signal(SIGTSTP, SIG_DFL, 0);
    ::raise(SIGTSTP);
    on_signal(SIGTSTP, on_suspend, 0);
    enter();
  }

  static void size(TopView& view) {
    winsize size = {};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 && size.ws_row >= 5) {
      view.width = size.ws_col;
      view.height = size.ws_row;
    }
  }
  static void show(const TopScreen& screen) {
    std::string out = "\033[H";
    for (size_t i = 0; i < screen.lines.size(); ++i) {
      const bool is_selected = screen.has_selected && i == screen.selected_line;
      out += (is_selected ? "\033[7m" : "") + screen.lines[i] + (is_selected ? "\033[0m" : "") + "\033[K";
      if (i + 1 < screen.lines.size()) out += "\r\n";
    }
    put(out + "\033[J");
  }

 private:
  static void put(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const ssize_t written = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
      if (written < 0 && errno != EINTR) return;  // the terminal went away; the next read says so
      at += written > 0 ? size_t(written) : 0;
    }
  }
  termios before_ = {};
};

int take(Conversation& conversation, Sample& ret_sample) {
  Sample sample;
  const uint64_t asked_ns = monotonic_ns();
  if (const int code = conversation.ask_for_list({{"command", "status"}}, "pools", std::nullopt, sample.status);
      code != kExitDone)
    return code;
  sample.taken_ns = monotonic_ns();
  sample.answer_ns = sample.taken_ns - asked_ns;
  json listed;
  const int code = conversation.ask_for_list({{"command", "clients"}}, "clients", std::nullopt, listed);
  if (code != kExitDone) return code;
  sample.clients = std::move(listed["clients"]);
  // Most pools have no tier, so its absence is nothing to say.
  std::string problem;
  if (ask_tierd(tierd_socket({}, 0), kTierPatienceMs, prefetch::kListTiers, "", sample.tiers, problem) != kExitDone)
    sample.tiers = json::object();
  ret_sample = std::move(sample);
  return kExitDone;
}

std::string next_pool(const json& figures, const std::string& pool) {
  bool is_next = pool.empty();
  for (const json& row : figures["pools"]) {
    const std::string name = row["name"].get<std::string>();  // changes() makes it a text
    if (is_next) return name;
    is_next = name == pool;
  }
  return "";
}

void choose(const TopScreen& screen, size_t row, TopView& view) {
  if (row >= screen.clients.size()) return;
  view.selected = row;
  view.chosen = screen.clients[row];
}

// Into the selected client, or back.
void look(const TopScreen& screen, bool is_looking, TopView& view) {
  view.is_looking = is_looking;
  if (is_looking)
    choose(screen, view.selected, view);
  else if (!screen.has_chosen)
    view.chosen.reset();
}

// Acts on a key. False: the end.
bool press(std::string_view key, const json& figures, const TopScreen& screen, TopView& view, uint64_t& interval_ms) {
  if (key == "q" || key == "\x03" || key == "\x04") return false;
  if (key == "h" || key == "?") view.has_help = !view.has_help;
  if (key == " ") view.is_paused = !view.is_paused;
  if (key == "s") view.order = TopOrder((size_t(view.order) + 1) % kTopOrders);
  if (key == "r") view.is_reversed = !view.is_reversed;
  if (key == "p" && !view.is_of_one_pool) {
    view.pool = next_pool(figures, view.pool);
    view.selected = 0;
    view.is_looking = false;
    view.chosen.reset();
  }
  if (key == "+") interval_ms = std::max(kIntervalMinMs, interval_ms / 2);
  if (key == "-") interval_ms = std::min(kIntervalMaxMs, interval_ms * 2);
  if (key == "\n" || key == "\r") look(screen, !view.is_looking, view);
  if (key == "\033") {
    view.has_help = false;
    look(screen, false, view);
  }
  const bool is_up = key == "k" || key == "\033[A" || key == "\033OA";
  const bool is_down = key == "j" || key == "\033[B" || key == "\033OB";
  if (is_up && view.selected > 0) choose(screen, view.selected - 1, view);
  if (is_down) choose(screen, view.selected + 1, view);
  return true;
}

// The first key in `typed`. An arrow and the like is several bytes: "ESC [", parameters and a letter or "~", or "ESC O" and a
// letter. An unknown sequence does nothing: it counts as one key, and never as Escape and letters.
std::string_view first_key(std::string_view typed) {
  if (typed.starts_with("\033O") && typed.size() >= 3) return typed.substr(0, 3);
  if (!typed.starts_with("\033[")) return typed.substr(0, 1);
  size_t at = 2;
  while (at < typed.size() && (typed[at] < '@' || typed[at] > '~')) ++at;
  return typed.substr(0, at + 1);
}

// Until `until_ns`, a key, or a signal. False: the end.
bool wait(uint64_t until_ns, const json& figures, const TopScreen& screen, TopView& view, uint64_t& interval_ms) {
  const uint64_t now_ns = monotonic_ns();
  const uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
  const timespec left = {time_t(left_ns / 1'000'000'000), long(left_ns % 1'000'000'000)};
  pollfd keys = {STDIN_FILENO, POLLIN, 0};
  if (::ppoll(&keys, 1, &left, nullptr) <= 0) return stopped == 0;
  char typed[64];
  const ssize_t count = ::read(STDIN_FILENO, typed, sizeof(typed));
  if (count <= 0) return false;  // the terminal went away
  for (std::string_view rest(typed, size_t(count)); !rest.empty(); rest.remove_prefix(first_key(rest).size()))
    if (!press(first_key(rest), figures, screen, view, interval_ms)) return false;
  return stopped == 0;
}

int live(const Arguments& arguments, uint64_t interval_ms, TopView view) {
  Sample before, after;
  // Takes the first sample before it changes the terminal, so that errors are printed in the ordinary way.
  auto conversation = std::make_unique<Conversation>(arguments);
  if (const int code = take(*conversation, after); code != kExitDone) return code;
  // A first signal lets the program finish a write or a question. A second signal ends it at once.
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) on_signal(signal, on_stop, SA_RESTART | SA_RESETHAND);
  for (int signal : {SIGTSTP, SIGCONT}) on_signal(signal, signal == SIGCONT ? on_continue : on_suspend, SA_RESTART);
  on_signal(SIGWINCH, on_resize, SA_RESTART);

  Terminal terminal;
  std::string said;
  while (true) {
    if (suspended != 0)
      terminal.suspend();
    else if (continued != 0)  // a shell may have taken the terminal meanwhile
      terminal.enter();
    suspended = 0;
    continued = 0;
    Terminal::size(view);
    const json figures = changes(before, after);
    const TopScreen screen = draw_top(figures, view, said);
    view.selected = screen.selected;
    if (!screen.has_chosen && !view.is_looking) view.chosen.reset();
    Terminal::show(screen);
    const uint64_t next_ns = after.taken_ns + interval_ms * 1'000'000;
    if (!wait(view.is_paused ? monotonic_ns() + 1'000'000'000 : next_ns, figures, screen, view, interval_ms))
      return kExitDone;
    if (view.is_paused || monotonic_ns() < next_ns) continue;
    Sample taken;
    conversation->be_silent(true);
    if (take(*conversation, taken) == kExitDone) {
      before = std::move(after);
      after = std::move(taken);
      said.clear();
    } else {
      said = "marud does not answer (" + conversation->said() + "); trying again";
      after.taken_ns = monotonic_ns();
      conversation = std::make_unique<Conversation>(arguments);
    }
  }
}

}  // namespace

int top(const Arguments& arguments) {
  const uint64_t interval_ms = arguments.interval_ms.value_or(1000);
  TopView view;
  view.is_of_one_pool = arguments.pool.has_value();
  if (arguments.pool) view.pool = *arguments.pool;
  if (!arguments.json && !arguments.once && ::isatty(STDIN_FILENO) && ::isatty(STDOUT_FILENO))
    return live(arguments, interval_ms, view);

  // Once: takes two samples and prints their changes.
  Conversation conversation(arguments);
  Sample before, after;
  if (const int code = take(conversation, before); code != kExitDone) return code;
  const timespec pause = {time_t(interval_ms / 1000), long(interval_ms % 1000) * 1'000'000};
  ::nanosleep(&pause, nullptr);
  if (const int code = take(conversation, after); code != kExitDone) return code;
  const json figures = changes(before, after);
  if (arguments.json) return print_json(figures), kExitDone;
  view.height = 0;
  view.width = line_width() != 0 ? line_width() : 80;
  for (const std::string& line : draw_top(figures, view, "").lines) print(line + "\n");
  return kExitDone;
}

}  // namespace maru::marudctl
