#include "daemon/eventd/sequence.h"

#include "daemon/base/log.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace maru::eventd {
namespace {

Result<uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  if (!file) return errno == ENOENT ? Result<uint64_t>(0) : failure(errno, "read the last sequence number in " + path);
  std::string line;
  std::getline(file, line);
  uint64_t number = 0;
  const auto read = std::from_chars(line.data(), line.data() + line.size(), number);
  if (line.empty() || read.ec != std::errc() || read.ptr != line.data() + line.size())
    return failure(EBADMSG, "read the last sequence number in " + path + ": found \"" + daemon::printable(line) +
                                "\", expected a number; delete the file if the clock of this machine never goes back");
  return number;
}

}  // namespace

Result<Sequence> Sequence::begin(std::string path, uint64_t unix_ms) {
  Sequence sequence;
  sequence.path_ = std::move(path);
  sequence.next_ = unix_ms * kEachMs;
  if (sequence.path_.empty()) {
    sequence.promised_ = UINT64_MAX;
    return sequence;
  }
  const auto before = read_number(sequence.path_);
  if (!before) return tl::unexpected(before.error());
  sequence.next_ = std::max(sequence.next_, *before + 1);
  if (auto promised = sequence.promise(); !promised) return tl::unexpected(promised.error());
  return sequence;
}

// In a file beside it first, so that no death leaves half a number.
Result<void> Sequence::promise() {
  promised_ = next_ + kPromise;
  const std::string fresh = path_ + ".new";
  {
    std::ofstream file(fresh, std::ios::trunc);
    file << promised_ << "\n" << std::flush;
    if (!file)
      return failure(errno == 0 ? EIO : errno,
                     "write " + fresh + " (state_dir must name a folder that the user of maru-eventd may write to)");
  }
  if (std::rename(fresh.c_str(), path_.c_str()) != 0) return failure(errno, "rename " + fresh);
  return {};
}

uint64_t Sequence::next() {
  // A full disk keeps no event back: the clock still is a promise.
  if (next_ >= promised_)
    if (auto promised = promise(); !promised) daemon::log_warning("cannot {}", promised.error().text());
  return next_++;
}

}  // namespace maru::eventd
