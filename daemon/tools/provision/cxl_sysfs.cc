#include "daemon/tools/provision/cxl_sysfs.h"

#include "libmaru/base/file_descriptor.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

namespace maru::daemon::provision {
namespace {

std::string attribute(const std::string& window, const char* name) {
  return "/sys/bus/cxl/devices/" + window + "/" + name;
}

Result<std::string> read_attribute(const std::string& path) {
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) return failure(errno, "open " + path);
  char text[64];  // a name
  const ssize_t got = ::read(fd.get(), text, sizeof(text));
  if (got < 0) return failure(errno, "read " + path);
  std::string value(text, size_t(got));
  while (!value.empty() && value.back() == '\n') value.pop_back();
  return value;
}

Result<void> write_attribute(const std::string& path, const std::string& value) {
  FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.is_open()) return failure(errno, "open " + path);
  const ssize_t put = ::write(fd.get(), value.data(), value.size());
  if (put != ssize_t(value.size())) return failure(put < 0 ? errno : EIO, "write \"" + value + "\" to " + path);
  return {};
}

}  // namespace

bool can_make_volatile_region(const std::string& window) {
  return ::access(attribute(window, "create_ram_region").c_str(), F_OK) == 0;
}

Result<std::string> make_volatile_region(const std::string& window) {
  if (!can_make_volatile_region(window))
    return failure(EOPNOTSUPP, "make a volatile CXL region in " + window +
                                   ": found no create_ram_region there, expected Linux 6.3 or newer and a window that "
                                   "takes volatile memory");
  // The kernel says which name is next, and makes the region when that name is written.
  const std::string path = attribute(window, "create_ram_region");
  const auto name = read_attribute(path);
  if (!name) return name;
  if (auto made = write_attribute(path, *name); !made) return tl::unexpected<Error>(made.error());
  return name;
}

Result<void> delete_region(const std::string& window, const std::string& name) {
  return write_attribute(attribute(window, "delete_region"), name);
}

}  // namespace maru::daemon::provision
