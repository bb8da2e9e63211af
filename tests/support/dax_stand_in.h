// DAX devices on a machine that has none: files, and a folder that tells of them as sysfs does. What they cannot do as devices
// do (refuse to be mapped in other multiples, lack read and write) is tested in a virtual machine.
#pragma once

#include "daemon/memory/dax_sysfs.h"
#include "tests/support/temporary_directory.h"

#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace maru::test {

class DaxStandIn {
 public:
  explicit DaxStandIn(const std::string& root) : root_(root) {
    std::filesystem::create_directories(root_ + "/sys/bus/dax/devices");
    std::filesystem::create_directories(root_ + "/sys/bus/dax/drivers/device_dax");
    std::filesystem::create_directories(root_ + "/sys/bus/dax/drivers/kmem");
    std::filesystem::create_directories(root_ + "/dev");
  }

  daemon::DaxRules rules() const { return {root_ + "/sys", root_ + "/dev", false}; }
  std::string path(const std::string& name) const { return root_ + "/dev/" + name; }

  static constexpr const char* kPersistent = "devices/platform/e820_pmem/ndbus0/region0/dax0.0/dax";
  static constexpr const char* kVolatile = "devices/platform/hmem.0";
  static constexpr const char* kCxl = "devices/platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0";

  void add(const std::string& name, uint64_t bytes, const std::string& parent = kPersistent, int node = 0,
           uint64_t alignment = 2u << 20, const std::string& driver = "device_dax") {
    const std::string directory = root_ + "/sys/" + parent + "/" + name;
    std::filesystem::create_directories(directory);
    write(directory + "/size", std::to_string(bytes));
    write(directory + "/align", std::to_string(alignment));
    write(directory + "/target_node", std::to_string(node));
    if (!driver.empty())
      std::filesystem::create_symlink(root_ + "/sys/bus/dax/drivers/" + driver, directory + "/driver");
    std::ofstream(path(name)).close();
    std::filesystem::resize_file(path(name), bytes);
    // Last: a marud that looks for it finds all of it or nothing.
    std::filesystem::create_symlink(directory, root_ + "/sys/bus/dax/devices/" + name);
  }
  // What the kernel calls a device changes from boot to boot.
  void rename(const std::string& from, const std::string& to, const std::string& parent = kPersistent) {
    const std::string kept = path(from) + ".content";
    const uint64_t bytes = std::filesystem::file_size(path(from));
    std::filesystem::rename(path(from), kept);
    remove(from, parent);
    add(to, bytes, parent);
    std::filesystem::rename(kept, path(to));
  }
  // As after its namespace was made anew with another size: what lies at its beginning stays.
  void resize(const std::string& name, uint64_t bytes, const std::string& parent = kPersistent) const {
    write(root_ + "/sys/" + parent + "/" + name + "/size", std::to_string(bytes));
    std::filesystem::resize_file(path(name), bytes);
  }
  void remove(const std::string& name, const std::string& parent = kPersistent) {
    std::filesystem::remove(root_ + "/sys/bus/dax/devices/" + name);
    std::filesystem::remove_all(root_ + "/sys/" + parent + "/" + name);
    std::filesystem::remove(path(name));
  }

  void put(const std::string& name, uint64_t offset, const std::string& bytes) const {
    const int fd = ::open(path(name).c_str(), O_RDWR | O_CLOEXEC);
    const bool is_put = ::pwrite(fd, bytes.data(), bytes.size(), off_t(offset)) == ssize_t(bytes.size());
    ::close(fd);
    if (!is_put) throw std::runtime_error("cannot write to " + name);
  }
  std::string get(const std::string& name, uint64_t offset, size_t size) const {
    std::string bytes(size, 0);
    const int fd = ::open(path(name).c_str(), O_RDONLY | O_CLOEXEC);
    const bool is_got = ::pread(fd, bytes.data(), size, off_t(offset)) == ssize_t(size);
    ::close(fd);
    if (!is_got) throw std::runtime_error("cannot read " + name);
    return bytes;
  }

 private:
  static void write(const std::string& file, const std::string& text) { std::ofstream(file) << text << "\n"; }

  std::string root_;
};

}  // namespace maru::test
