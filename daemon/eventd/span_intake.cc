#include "daemon/eventd/span_intake.h"

#include "daemon/base/log.h"
#include "daemon/base/plain_text.h"
#include "libmaru/wire/passed_descriptors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/magic.h>
#include <optional>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace maru::eventd {
namespace {

using format::Span;
using format::SpanHello;
using Got = spans::RingReader::Got;

constexpr size_t kStrangersMax = 64;
constexpr int kErrnoMax = 4096;
// A thread that was stopped in the middle of a span goes on within this time, or its span is given up.
constexpr std::chrono::seconds kUnfinishedMax{1};
constexpr std::chrono::seconds kComplaintPause{10};  // clients cause these lines, again and again

int bind_to(int socket, const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return 0;
  if (errno != EADDRINUSE) return errno;
  // An earlier life of this program may have left the file.
  const FileDescriptor probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno != ECONNREFUSED)
    return EADDRINUSE;
  ::unlink(path.c_str());
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

std::string text_of(const char (&field)[64]) {
  return daemon::plain_text(std::string_view(field, ::strnlen(field, sizeof(field))));
}

std::optional<uid_t> user_of(int connection) {
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return std::nullopt;
  return peer.uid;
}

bool has_ended(int connection) {
  pollfd entry = {connection, POLLIN, 0};  // a client says nothing more: anything to read is its end
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

bool is_whole(const Span& span) {
  return span.id != 0 && (span.trace_high | span.trace_low) != 0 && uint8_t(span.operation) != 0 &&
         uint8_t(span.operation) < format::kSpanOperations && span.begun_ns <= span.ended_ns &&
         span.result > -kErrnoMax;
}

Result<std::unique_ptr<SpanIntake>> SpanIntake::open(const TraceSettings& settings,
                                                     daemon::beside::Counters& counters) {
  const std::string& path = settings.socket_path;
  const std::string doing = "take spans at " + path;
  std::unique_ptr<SpanIntake> made(new SpanIntake(settings, counters));
  FileDescriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.is_open()) return failure(errno, doing);
  if (const int code = bind_to(listener.get(), path); code != 0) return failure(code, doing);
  made->listener_ = std::move(listener);
  // Every user of this machine may have spans: a program that connects gets nothing.
  if (::chmod(path.c_str(), 0666) != 0 || ::listen(made->listener_.get(), SOMAXCONN) != 0) return failure(errno, doing);
  return made;
}

SpanIntake::SpanIntake(const TraceSettings& settings, daemon::beside::Counters& counters)
    : path_(settings.socket_path),
      clients_max_(settings.clients_max),
      user_clients_max_(settings.user_clients_max != 0 ? settings.user_clients_max : (clients_max_ + 1) / 2),
      present_(counters.gauge("maru_eventd_span_clients", "Clients whose spans are read.")),
      refused_(counters.counter("maru_eventd_span_clients_refused_total",
                                "Clients that were too many, or whose rings made no sense.")),
      lost_(counters.counter("maru_eventd_spans_lost_total",
                             "Spans that clients overwrote before they were read, or never finished.")) {}

SpanIntake::~SpanIntake() {
  if (listener_.is_open()) ::unlink(path_.c_str());
}

void SpanIntake::add_to_poll(std::vector<int>& descriptors) const {
  descriptors.push_back(listener_.get());
  for (const FileDescriptor& stranger : strangers_) descriptors.push_back(stranger.get());
  for (const auto& client : clients_)
    if (client->connection.is_open()) descriptors.push_back(client->connection.get());
}

// -- clients ----------------------------------------------------------------------------------------------------------

void SpanIntake::serve() {
  accept_all();
  std::vector<FileDescriptor> strangers = std::exchange(strangers_, {});
  for (FileDescriptor& stranger : strangers) greet(std::move(stranger));
  for (const auto& client : clients_) {
    if (!client->connection.is_open() || !has_ended(client->connection.get())) continue;
    client->connection.reset();
    spans::RingReader look = client->reader;  // the client may have written spans since it was read last
    Span unread;
    client->is_empty = look.read(&unread) == Got::kNothing;
  }
  std::erase_if(clients_, [&](const auto& client) {
    return client->is_damaged || (!client->connection.is_open() && client->is_empty);
  });
  present_.set(clients_.size());
}

void SpanIntake::accept_all() {
  // No more in one turn, however fast others come.
  for (size_t taken = 0; taken < kStrangersMax; ++taken) {
    FileDescriptor accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!accepted.is_open()) return;
    if (strangers_.size() == kStrangersMax)
      strangers_.erase(strangers_.begin());  // the stranger that has said nothing longest
    strangers_.push_back(std::move(accepted));
  }
}

void SpanIntake::greet(FileDescriptor connection) {
  SpanHello hello;
  iovec part = {&hello, sizeof(hello)};
  wire::DescriptorRoom room;
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room.bytes;
  message.msg_controllen = sizeof(room.bytes);
  const ssize_t got = ::recvmsg(connection.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    strangers_.push_back(std::move(connection));
    return;
  }
  std::vector<FileDescriptor> descriptors = got >= 0 ? wire::take_descriptors(message) : std::vector<FileDescriptor>();
  if (got == 0) return;
  std::string trouble;
  if (got != ssize_t(sizeof(hello)) || descriptors.size() != 1 || hello.magic != format::kSpanRingMagic)
    trouble = "what it sent is no greeting with one descriptor";
  else if (hello.version != format::kSpanRingVersion)
    trouble = "it has version " + std::to_string(hello.version) + " of the rings, and this program reads " +
              std::to_string(format::kSpanRingVersion) + "; install libmaru and maru-eventd from one release";
  else
    trouble = take(std::move(connection), hello, std::move(descriptors.front()));
  if (trouble.empty()) return;
  refused_.add();
  complain("a client is refused: " + trouble, Clock::now());
}

void SpanIntake::complain(const std::string& trouble, Clock::time_point now) {
  if (now < complain_at_) return;
  complain_at_ = now + kComplaintPause;
  daemon::log_warning("spans: {}", trouble);
}

// Empty: one more of this user has room.
std::string SpanIntake::why_no_more(uid_t user) const {
  if (clients_.size() >= clients_max_)
    return "there are " + std::to_string(clients_max_) + " already; traces.clients in the configuration allows more";
  const auto has = size_t(std::ranges::count(clients_, user, [](const auto& client) { return client->user; }));
  if (has < user_clients_max_) return "";
  return "user " + std::to_string(user) + " has " + std::to_string(has) +
         " already; traces.user_clients in the configuration allows more";
}

// Returns the fault; empty: none.
std::string SpanIntake::take(FileDescriptor&& connection, const SpanHello& hello, FileDescriptor memory) {
  struct stat status = {};
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(memory.get(), &status) != 0)
    return "its memory could shrink while it is read; expected a memfd that is sealed";
  // Huge pages can be missing when they are first touched, and that would end this process.
  struct statfs system = {};
  if (::fstatfs(memory.get(), &system) != 0 || system.f_type != TMPFS_MAGIC)
    return "its memory is not of the machine's usual pages; expected a plain memfd";
  const auto known = std::find_if(clients_.begin(), clients_.end(), [&](const auto& client) {
    return client->device == status.st_dev && client->inode == status.st_ino;
  });
  if (known != clients_.end()) {  // it has connected again
    (*known)->connection = std::move(connection);
    return "";
  }
  const auto user = user_of(connection.get());
  if (!user) return "the kernel does not say which user it is";
  if (std::string why = why_no_more(*user); !why.empty()) return why;
  const uint64_t bytes = std::min(uint64_t(status.st_size), format::span_ring_bytes(format::kSpanSlotsMax));
  if (bytes < format::span_ring_bytes(format::kSpanSlotsMin)) return "its memory is smaller than the smallest ring";
  auto mapping = Mapping::map_shared(memory.get(), 0, bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return mapping.error().text();
  auto client = std::make_unique<Client>();
  if (const char* wrong = spans::RingView::attach(mapping->bytes(), &client->ring)) return wrong;
  client->reader = spans::RingReader(client->ring);
  client->memory = std::move(*mapping);
  client->connection = std::move(connection);
  client->user = *user;
  client->device = status.st_dev;
  client->inode = status.st_ino;
  client->source = {text_of(hello.service), text_of(hello.pool), hello.process, hello.lane};
  daemon::log_debug("spans: process {} ({}) is read", client->source.process, client->source.service);
  clients_.push_back(std::move(client));
  return "";
}

// -- spans ------------------------------------------------------------------------------------------------------------

SpanBatch SpanIntake::drain(size_t spans_max, Clock::time_point now) {
  SpanBatch batch;
  for (size_t i = 0; i < clients_.size(); ++i) {
    Client& client = *clients_[(first_ + i) % clients_.size()];
    const size_t share = std::max<size_t>(1, (spans_max - batch.spans) / (clients_.size() - i));
    read(client, std::min(share, spans_max - batch.spans), now, batch);
  }
  if (!clients_.empty()) first_ = (first_ + 1) % clients_.size();
  return batch;
}

void SpanIntake::read(Client& client, size_t spans_max, Clock::time_point now, SpanBatch& batch) {
  SpanBatch::Part part;
  client.is_empty = false;
  Span span;
  for (size_t reads = 0; reads < spans_max; ++reads) {
    const Got got = client.reader.read(&span);
    if (got == Got::kSpan) {
      client.unfinished_since = {};
      if (is_whole(span))
        part.spans.push_back(span);
      else
        lost_.add();
      continue;
    }
    client.is_empty = got == Got::kNothing;
    client.is_damaged = got == Got::kDamaged;
    if (got != Got::kUnfinished) break;
    if (client.unfinished_since == Clock::time_point()) client.unfinished_since = now;
    if (client.connection.is_open() && now - client.unfinished_since < kUnfinishedMax) break;
    client.reader.pass();
    client.unfinished_since = {};
  }
  lost_.add(client.reader.lost() - std::exchange(client.lost_told, client.reader.lost()));
  if (client.is_damaged) {
    refused_.add();
    complain("process " + std::to_string(client.source.process) + " has damaged its ring, and is left", now);
  }
  if (part.spans.empty()) return;
  part.source = client.source;
  batch.spans += part.spans.size();
  batch.parts.push_back(std::move(part));
}

void SpanIntake::note_taken() {
  for (const auto& client : clients_) client->reader.note_taken(client->reader.next());
}

}  // namespace maru::eventd
