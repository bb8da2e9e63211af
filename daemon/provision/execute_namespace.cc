#include "daemon/provision/contexts.h"
#include "daemon/provision/device_executor.h"
#include "daemon/provision/inventory.h"
#include "libmaru/base/file_descriptor.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <linux/ndctl.h>
#include <sys/random.h>

namespace maru::daemon::provision {
namespace {

constexpr size_t kInfoBytes = 8192;  // the kernel's notes about a namespace lie in its second page

tl::unexpected<Error> absent(const std::string& name) { return failure(ENODEV, "find " + name); }
tl::unexpected<Error> failed(int negative, const std::string& doing) {
  return failure(negative < 0 ? -negative : EIO, doing);
}

ndctl_region* find_region(ndctl_ctx* context, const std::string& name) {
  ndctl_region* found = nullptr;
  for_each_nvdimm_region(context, [&](ndctl_bus*, ndctl_region* region) {
    if (name == text_of(ndctl_region_get_devname(region))) found = region;
  });
  return found;
}

ndctl_namespace* find_namespace(ndctl_ctx* context, const std::string& name) {
  ndctl_namespace* found = nullptr;
  for_each_nvdimm_region(context, [&](ndctl_bus*, ndctl_region* region) {
    ndctl_namespace* one;
    ndctl_namespace_foreach(region, one) if (name == text_of(ndctl_namespace_get_devname(one))) found = one;
  });
  return found;
}

bool make_uuid(unsigned char* uuid) {
  if (::getrandom(uuid, 16, 0) != 16) return false;
  uuid[6] = uint8_t((uuid[6] & 0x0f) | 0x40);  // version 4, random
  uuid[8] = uint8_t((uuid[8] & 0x3f) | 0x80);
  return true;
}

// Rewrites the labels of all modules of a region while it is off.
Result<std::string> rewrite_labels(const std::string& name, int (*rewrite)(ndctl_dimm*), const std::string& doing) {
  const NdctlContext context = open_ndctl();
  ndctl_region* region = context ? find_region(context.get(), name) : nullptr;
  if (!region) return absent(name);
  // Whatever was forced, a file system that is mounted there stays.
  ndctl_namespace* one;
  ndctl_namespace_foreach(region, one) if (ndctl_namespace_is_active(one)) {
    const int busy = ndctl_namespace_disable_safe(one);
    if (busy >= 0) continue;
    ndctl_namespace_enable(one);
    return failed(busy, "disable " + text_of(ndctl_namespace_get_devname(one)) + " of " + name + " (is it mounted?)");
  }
  if (const int wrong = ndctl_region_disable_invalidate(region); wrong != 0) return failed(wrong, "disable " + name);
  int wrong = 0;
  std::string at;
  ndctl_dimm* dimm;
  ndctl_dimm_foreach_in_region(region, dimm) {
    if (wrong != 0) break;
    at = text_of(ndctl_dimm_get_devname(dimm));
    if (ndctl_dimm_is_active(dimm)) {
      wrong = -EBUSY;  // part of another region, too
      break;
    }
    wrong = rewrite(dimm);
    if (wrong > 0) wrong = 0;
    // The kernel reads labels when it starts a module.
    if (wrong == 0) wrong = ndctl_dimm_disable(dimm);
    if (wrong == 0) wrong = ndctl_dimm_enable(dimm);
  }
  const int unusable = ndctl_region_enable(region);
  if (wrong != 0) return failed(wrong, doing + " on " + at + " of " + name);
  if (unusable != 0) return failed(unusable, "enable " + name + " again");
  return name;
}

int write_empty_labels(ndctl_dimm* dimm) {
  ndctl_cmd* index = ndctl_dimm_read_label_index(dimm);
  if (!index) return -EIO;
  const int labels = ndctl_dimm_init_labels(dimm, NDCTL_NS_VERSION_1_2);
  ndctl_cmd_unref(index);
  return labels;
}

// A namespace that is made there later must not find the notes of this one.
int erase_notes(ndctl_namespace* one) {
  ndctl_namespace_set_raw_mode(one, 1);
  int wrong = ndctl_namespace_enable(one);
  if (wrong >= 0) {
    FileDescriptor fd(::open(("/dev/" + text_of(ndctl_namespace_get_block_device(one))).c_str(),
                             O_RDWR | O_DIRECT | O_EXCL | O_CLOEXEC));
    void* zeros = fd.is_open() ? std::aligned_alloc(4096, kInfoBytes) : nullptr;
    wrong = zeros ? 0 : fd.is_open() ? -ENOMEM : -errno;
    if (zeros) {
      std::fill_n(static_cast<char*>(zeros), kInfoBytes, '\0');
      if (::pwrite(fd.get(), zeros, kInfoBytes, 0) != ssize_t(kInfoBytes)) wrong = errno ? -errno : -EIO;
      std::free(zeros);
    }
  }
  ndctl_namespace_set_raw_mode(one, 0);
  ndctl_namespace_disable_invalidate(one);
  return wrong;
}

// Gives the memory of a namespace back that is off.
int drop(ndctl_namespace* one) {
  ndctl_namespace_set_enforce_mode(one, NDCTL_NS_MODE_RAW);
  return ndctl_namespace_delete(one);
}

}  // namespace

Result<std::string> make_labels(const std::string& region) {
  return rewrite_labels(region, write_empty_labels, "write labels");
}

Result<std::string> remove_labels(const std::string& region) {
  return rewrite_labels(region, [](ndctl_dimm* dimm) { return ndctl_dimm_zero_labels(dimm); }, "erase the labels");
}

Result<std::string> make_namespace(const std::string& region_name, const std::string& label, uint64_t bytes,
                                   uint64_t align) {
  const NdctlContext context = open_ndctl();
  ndctl_region* region = context ? find_region(context.get(), region_name) : nullptr;
  if (!region) return absent(region_name);
  // The kernel keeps one namespace without memory, to be filled in.
  ndctl_namespace* seed = nullptr;
  ndctl_namespace* one;
  ndctl_namespace_foreach(region, one) if (!seed && ndctl_namespace_is_configuration_idle(one) &&
                                           ndctl_namespace_get_size(one) == 0) seed = one;
  if (!seed) seed = ndctl_region_get_namespace_seed(region);
  ndctl_dax* dax = ndctl_region_get_dax_seed(region);
  if (!seed || !dax) return failure(ENODEV, "find room for a namespace in " + region_name);
  unsigned char uuid[16], dax_uuid[16];
  if (!make_uuid(uuid) || !make_uuid(dax_uuid)) return failure(errno, "get random bytes for a uuid");

  const std::string name = text_of(ndctl_namespace_get_devname(seed));
  std::string doing;
  int wrong = 0;
  const auto attempt = [&](const char* what, auto call) {
    if (wrong != 0) return;
    doing = what;
    wrong = call();
  };
  attempt("name", [&] { return ndctl_namespace_set_uuid(seed, uuid); });
  attempt("name", [&] { return ndctl_namespace_set_alt_name(seed, label.c_str()); });
  attempt("give memory to", [&] { return ndctl_namespace_set_size(seed, bytes); });
  if (wrong == 0) ndctl_namespace_set_enforce_mode(seed, NDCTL_NS_MODE_DEVDAX);  // as far as the kernel knows this
  attempt("describe", [&] { return ndctl_dax_set_uuid(dax, dax_uuid); });
  // What the kernel needs to know about each page lies in the namespace itself: a large one would fill the machine's memory.
  attempt("describe", [&] { return ndctl_dax_set_location(dax, NDCTL_PFN_LOC_PMEM); });
  if (align != 0) attempt("align", [&] { return ndctl_dax_set_align(dax, align); });
  attempt("describe", [&] { return ndctl_dax_set_namespace(dax, seed); });
  attempt("enable", [&] { return ndctl_dax_enable(dax); });
  std::string device;
  if (wrong == 0) {
    daxctl_region* dax_region = ndctl_dax_get_daxctl_region(dax);
    daxctl_dev* made = dax_region ? daxctl_dev_get_first(dax_region) : nullptr;
    device = made ? text_of(daxctl_dev_get_devname(made)) : "";
    if (device.empty()) doing = "find the device of", wrong = -ENODEV;
  }
  Error error{wrong < 0 ? -wrong : EIO,
              doing + " " + name + " on " + region_name + " (" + std::to_string(bytes) + " bytes)"};
  if (wrong == 0) {
    const auto clear = clear_whole_device(device);
    if (clear) return name;
    error = clear.error();
    ndctl_namespace_disable_safe(seed);
  } else {
    ndctl_dax_set_namespace(dax, nullptr);
  }
  if (drop(seed) != 0) error.doing += " (and " + name + " is left)";
  return tl::unexpected<Error>(error);
}

Result<std::string> remove_namespace(const std::string& name) {
  const NdctlContext context = open_ndctl();
  ndctl_namespace* one = context ? find_namespace(context.get(), name) : nullptr;
  if (!one) return absent(name);
  if (const int wrong = ndctl_namespace_disable_safe(one); wrong < 0) return failed(wrong, "disable " + name);
  if (const int wrong = erase_notes(one); wrong != 0) return failed(wrong, "erase the description of " + name);
  if (const int wrong = drop(one); wrong != 0) return failed(wrong, "give back the memory of " + name);
  return name;
}

Result<std::string> enable_namespace(const std::string& name) {
  const NdctlContext context = open_ndctl();
  ndctl_namespace* one = context ? find_namespace(context.get(), name) : nullptr;
  if (!one) return absent(name);
  if (const int wrong = ndctl_namespace_enable(one); wrong < 0) return failed(wrong, "enable " + name);
  return name;
}

}  // namespace maru::daemon::provision
