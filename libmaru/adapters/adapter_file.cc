#include "libmaru/adapters/adapter_file.h"

#include "libmaru/adapters/processors.h"
#include "libmaru/adapters/weights.h"

#define XXH_INLINE_ALL
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <linux/openat2.h>
#include <memory>
#include <mutex>
#include <new>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <xxhash.h>

namespace maru::adapters {
namespace {

constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kWeightsName = "adapter_model.safetensors";
constexpr uint64_t kPieceBytes = 128u << 10;
constexpr uint64_t kRowsTogether = 32;  // as many as fill whole lines of the rows that they become
constexpr uint64_t kReadersMax = 8;
constexpr uint64_t kBytesAThread = 4u << 20;  // below, a thread costs more than it saves

uint64_t rows_of_piece(uint64_t row_bytes) {
  const uint64_t rows = std::max<uint64_t>(kPieceBytes / row_bytes, 1);
  return rows < kRowsTogether ? rows : rows / kRowsTogether * kRowsTogether;
}

// A path below a directory: neither "..", nor a link, nor a link of /proc leads out of it. The kernel checks it at each
// step, so a link that another process exchanges meanwhile changes nothing.
int open_below(int directory, const std::string& path, int flags) {
  open_how how = {};
  how.flags = uint64_t(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  int tries = 0;
  long fd = 0;
  do fd = ::syscall(SYS_openat2, directory, path.c_str(), &how, sizeof(how));
  while (fd < 0 && errno == EAGAIN && ++tries < 16);  // another process renamed a directory of the path
  return int(fd);
}

int open_failure(const std::string& folder, const char* name, maru_adapters_reason* reason) {
  const int code = errno;
  if (code == EXDEV || code == ELOOP)
    return fail(reason, EXDEV,
                "%s/%s leads out of the folder that adapters may lie in: copy the file there, or set the root",
                folder.c_str(), name);
  return fail(reason, code, "cannot open %s/%s: %s", folder.c_str(), name, std::strerror(code));
}

int read_exactly(int fd, uint64_t offset, std::byte* to, uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, to, bytes, off_t(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -errno;
    if (got == 0) return -ENODATA;
    to += got, offset += uint64_t(got), bytes -= uint64_t(got);
  }
  return 0;
}

int identify(int fd, FileIdentity* ret) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return -errno;
  if (!S_ISREG(status.st_mode)) return -EINVAL;
  *ret = {status.st_dev, status.st_ino, uint64_t(status.st_size),
          uint64_t(status.st_mtim.tv_sec) * 1'000'000'000 + uint64_t(status.st_mtim.tv_nsec)};
  return 0;
}

// Opens a plain file; a pipe or a device is refused before anything waits for it.
int open_plain(int top, const std::string& prefix, const std::string& folder, const char* name, FileDescriptor* ret,
               FileIdentity* ret_identity, maru_adapters_reason* reason) {
  FileDescriptor fd(open_below(top, prefix + name, O_RDONLY | O_NONBLOCK));
  if (!fd.is_open()) return open_failure(folder, name, reason);
  const int status = identify(fd.get(), ret_identity);
  if (status < 0)
    return fail(reason, -status, "%s/%s: %s", folder.c_str(), name,
                status == -EINVAL ? "no plain file" : std::strerror(-status));
  *ret = std::move(fd);
  return 0;
}

int read_file(const FileDescriptor& fd, uint64_t bytes, const std::string& folder, const char* name, std::string* ret,
              maru_adapters_reason* reason) {
  ret->resize(bytes);
  const int status = read_exactly(fd.get(), 0, reinterpret_cast<std::byte*>(ret->data()), bytes);
  if (status < 0) return fail(reason, -status, "cannot read %s/%s: %s", folder.c_str(), name, std::strerror(-status));
  return 0;
}

}  // namespace

int AdapterFile::open(const std::string& root, const std::string& folder, maru_adapters_reason* reason) {
  const bool has_root = !root.empty();
  FileDescriptor top(::open(has_root ? root.c_str() : folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top.is_open())
    return fail(reason, errno, "cannot open the folder %s: %s", has_root ? root.c_str() : folder.c_str(),
                std::strerror(errno));
  const std::string prefix = has_root ? folder + "/" : std::string();
  FileDescriptor config_fd;
  FileIdentity config_identity;
  if (int status = open_plain(top.get(), prefix, folder, kConfigName, &config_fd, &config_identity, reason); status < 0)
    return status;
  if (config_identity.bytes > kConfigBytesMax)
    return fail(reason, EBADMSG, "%s/%s has %llu bytes; at most %llu", folder.c_str(), kConfigName,
                ull{config_identity.bytes}, ull{kConfigBytesMax});
  std::string text;
  if (int status = read_file(config_fd, config_identity.bytes, folder, kConfigName, &text, reason); status < 0)
    return status;
  if (int status = parse_peft_config(text, &config_, reason); status < 0) return status;
  if (int status = open_plain(top.get(), prefix, folder, kWeightsName, &weights_, &weights_identity_, reason);
      status < 0)
    return status;
  uint64_t header_bytes = 0;
  const uint64_t file_bytes = weights_identity_.bytes;
  if (file_bytes < 8 || read_exactly(weights_.get(), 0, reinterpret_cast<std::byte*>(&header_bytes), 8) < 0)
    return fail(reason, EBADMSG, "%s/%s has %llu bytes: it was cut off in its header", folder.c_str(), kWeightsName,
                ull{file_bytes});
  if (header_bytes > kTensorHeaderBytesMax || header_bytes > file_bytes - 8)
    return fail(reason, EBADMSG,
                "%s/%s says that its header has %llu bytes; the file has %llu, and a header at most %llu",
                folder.c_str(), kWeightsName, ull{header_bytes}, ull{file_bytes}, ull{kTensorHeaderBytesMax});
  data_offset_ = 8 + header_bytes;
  std::vector<std::byte> header(header_bytes);
  if (int status = read_exactly(weights_.get(), 8, header.data(), header_bytes); status < 0)
    return fail(reason, -status, "cannot read %s/%s: %s", folder.c_str(), kWeightsName, std::strerror(-status));
  headers_hash_ = XXH3_64bits_withSeed(header.data(), header.size(), XXH3_64bits(text.data(), text.size()));
  return parse_tensor_list(header, file_bytes - data_offset_, &tensors_, reason);
}

// A piece stays in the second level of the cache from its reading to its last use.
int AdapterFile::read_tensor(size_t number, TensorSink& sink, Checksum* ret_checksum,
                             maru_adapters_reason* reason) const {
  const Tensor& tensor = tensors_[number];
  const uint64_t row_bytes = tensor.bytes / tensor.rows;
  const auto refuse = [&](int code, const char* why) {
    return fail(reason, code, "cannot read tensor \"%s\": %s", shown(tensor.name).c_str(), why);
  };
  const std::unique_ptr<Checksummer> sum = make_checksummer();
  if (!sum) return refuse(ENOMEM, std::strerror(ENOMEM));
  for (uint64_t first = 0, rows = 0; first < tensor.rows; first += rows) {
    rows = std::min(tensor.rows - first, rows_of_piece(row_bytes));
    std::byte* const piece = sink.place(number, first, &rows);
    const uint64_t bytes = rows * row_bytes;
    if (int status = read_exactly(weights_.get(), data_offset_ + tensor.offset + first * row_bytes, piece, bytes);
        status < 0)
      return status == -ENODATA ? refuse(ESTALE, "the file became shorter meanwhile")
                                : refuse(-status, std::strerror(-status));
    const uint64_t count = rows * tensor.columns;
    if (const uint64_t at = find_no_number(piece, tensor.element, count); at < count)
      return fail(reason, EBADMSG, "tensor \"%s\": the weight [%llu, %llu] is NaN or infinite",
                  shown(tensor.name).c_str(), ull{first + at / tensor.columns}, ull{at % tensor.columns});
    sum->add(piece, bytes);
    sink.take(number, first, rows);
  }
  *ret_checksum = sum->sum();
  return 0;
}

int AdapterFile::read_tensors(const std::function<std::unique_ptr<TensorSink>()>& make_sink, Checksum* ret_checksum,
                              maru_adapters_reason* reason) const {
  std::vector<Checksum> sums(tensors_.size());
  std::atomic<size_t> next = 0;
  // Of the first tensor that was refused; tensors behind it may have been left out.
  std::mutex mutex;
  size_t refused = tensors_.size();
  int refusal = 0;
  const auto work = [&] {
    const auto say = [&](size_t tensor, int status, const maru_adapters_reason& why) {
      const std::lock_guard guard(mutex);
      next.store(tensors_.size(), std::memory_order_relaxed);
      if (tensor >= refused && refusal != 0) return;
      refused = tensor, refusal = status;
      if (reason != nullptr) *reason = why;
    };
    maru_adapters_reason why = {};
    try {
      const std::unique_ptr<TensorSink> sink = make_sink();
      for (size_t at = 0; (at = next.fetch_add(1, std::memory_order_relaxed)) < tensors_.size();)
        if (const int status = read_tensor(at, *sink, &sums[at], &why); status < 0) return say(at, status, why);
    } catch (const std::bad_alloc&) {
      say(tensors_.size(), fail(&why, ENOMEM, "this process has no memory left to read the weights"), why);
    }
  };
  {
    std::vector<std::jthread> helpers;
    const uint64_t threads =
        std::min({uint64_t(processors()), kReadersMax, tensors_.size(), weights_identity_.bytes / kBytesAThread + 1});
    try {
      while (helpers.size() + 1 < threads) helpers.emplace_back(work);
    } catch (const std::system_error&) {
      // With fewer, then.
    }
    work();
  }
  if (refusal != 0) return refusal;
  FileIdentity now;
  if (identify(weights_.get(), &now) < 0 || now != weights_identity_)
    return fail(reason, ESTALE, "the file of the weights changed while it was read: load the adapter again");
  const std::unique_ptr<Checksummer> all = make_checksummer();
  if (!all) return fail(reason, ENOMEM, "this process has no memory left to read the weights");
  all->add(reinterpret_cast<const std::byte*>(sums.data()), sums.size() * sizeof(Checksum));
  *ret_checksum = all->sum();
  return 0;
}

}  // namespace maru::adapters
