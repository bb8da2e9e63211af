#include "daemon/tools/provision/changes.h"
#include "daemon/tools/provision/contexts.h"
#include "daemon/tools/provision/device_executor.h"
#include "daemon/tools/provision/inventory.h"
#include "daemon/tools/provision/namespace_notes.h"

#include <cerrno>
#include <sys/random.h>

namespace maru::daemon::provision {
namespace {

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

// As the kernel shows it now.
int activate(const std::string& name) {
  const NdctlContext context = open_ndctl();
  ndctl_namespace* one = context ? find_namespace(context.get(), name) : nullptr;
  if (!one) return -ENODEV;
  return ndctl_namespace_is_active(one) ? 0 : ndctl_namespace_enable(one);
}

using Rewrite = int (*)(ndctl_dimm*);

// Rewrites the labels of all modules of a region while it is off; `back` restores the earlier labels.
StepResult rewrite_labels(const std::string& name, Rewrite rewrite, Rewrite back, const std::string& doing) {
  const NdctlContext context = open_ndctl();
  ndctl_region* region = context ? find_region(context.get(), name) : nullptr;
  if (!region) return absent(name);
  Changes changes;
  // Even with --force, a mounted file system stays.
  ndctl_namespace* one;
  ndctl_namespace_foreach(region, one) if (ndctl_namespace_is_active(one)) {
    const std::string at = text_of(ndctl_namespace_get_devname(one));
    changes.attempt(
        "disable " + at + " of " + name + " (is it mounted?)",
        [&] {
          const int busy = ndctl_namespace_disable_safe(one);
          if (busy < 0) ndctl_namespace_enable(one);
          return busy;
        },
        at + " is disabled", [at] { return activate(at); });
  }
  const auto enable_region = [&] { return ndctl_region_enable(region); };
  changes.attempt(
      "disable " + name, [&] { return ndctl_region_disable_invalidate(region); }, name + " is disabled", enable_region);
  ndctl_dimm* dimm;
  ndctl_dimm_foreach_in_region(region, dimm) {
    const std::string at = text_of(ndctl_dimm_get_devname(dimm));
    // The kernel reads labels when it starts a module.
    const auto start_again = [dimm] {
      const int wrong = ndctl_dimm_disable(dimm);
      return wrong == 0 ? ndctl_dimm_enable(dimm) : wrong;
    };
    changes.attempt(
        doing + " on " + at + " of " + name,
        [&] {
          if (ndctl_dimm_is_active(dimm)) return -EBUSY;  // part of another region, too
          return rewrite(dimm);
        },
        at + " has other labels, or is disabled",
        [=] {
          const int wrong = back(dimm);
          return wrong < 0 ? wrong : start_again();
        });
    changes.attempt("start " + at + " of " + name + " again", start_again);
  }
  changes.attempt("enable " + name + " again", enable_region);
  return changes.finish(name);
}

int write_empty_labels(ndctl_dimm* dimm) {
  ndctl_cmd* index = ndctl_dimm_read_label_index(dimm);
  if (!index) return -EIO;
  const int labels = ndctl_dimm_init_labels(dimm, NDCTL_NS_VERSION_1_2);
  ndctl_cmd_unref(index);
  return labels;
}

int erase_labels(ndctl_dimm* dimm) { return ndctl_dimm_zero_labels(dimm); }

// Does something with the block device that a namespace which is off would be without the kernel's notes.
template <typename Work>
int with_raw(ndctl_namespace* one, Work work) {
  ndctl_namespace_set_raw_mode(one, 1);
  int wrong = ndctl_namespace_enable(one);
  if (wrong >= 0) wrong = work(text_of(ndctl_namespace_get_block_device(one)));
  ndctl_namespace_set_raw_mode(one, 0);
  ndctl_namespace_disable_invalidate(one);
  return wrong;
}

// Gives the memory of a namespace back that is off.
int drop(ndctl_namespace* one) {
  const ndctl_namespace_mode before = ndctl_namespace_get_enforce_mode(one);
  ndctl_namespace_set_enforce_mode(one, NDCTL_NS_MODE_RAW);
  const int wrong = ndctl_namespace_delete(one);
  if (wrong < 0) ndctl_namespace_set_enforce_mode(one, before);
  return wrong;
}

}  // namespace

StepResult make_labels(const std::string& region) {
  return rewrite_labels(region, write_empty_labels, erase_labels, "write labels");
}

StepResult remove_labels(const std::string& region) {
  return rewrite_labels(region, erase_labels, write_empty_labels, "erase the labels");
}

StepResult make_namespace(const std::string& region_name, const std::string& label, uint64_t bytes, uint64_t align) {
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
  const std::string of = " " + name + " on " + region_name + " (" + std::to_string(bytes) + " bytes)";
  bool is_enabled = false;
  std::string device;
  Changes changes;
  changes.attempt("name" + of, [&] { return ndctl_namespace_set_uuid(seed, uuid); });
  changes.attempt("name" + of, [&] { return ndctl_namespace_set_alt_name(seed, label.c_str()); });
  changes.attempt(
      "give memory to" + of, [&] { return ndctl_namespace_set_size(seed, bytes); }, name + " has its memory",
      [&] { return drop(seed); });
  // As far as the kernel knows this.
  if (changes.is_good()) ndctl_namespace_set_enforce_mode(seed, NDCTL_NS_MODE_DEVDAX);
  changes.attempt("describe" + of, [&] { return ndctl_dax_set_uuid(dax, dax_uuid); });
  // The kernel's notes about each page lie in the namespace itself: for a large namespace they would fill the machine's memory.
  changes.attempt("describe" + of, [&] { return ndctl_dax_set_location(dax, NDCTL_PFN_LOC_PMEM); });
  if (align != 0) changes.attempt("align" + of, [&] { return ndctl_dax_set_align(dax, align); });
  changes.attempt(
      "describe" + of, [&] { return ndctl_dax_set_namespace(dax, seed); }, name + " is described",
      [&] { return is_enabled ? 0 : ndctl_dax_set_namespace(dax, nullptr); });
  changes.attempt(
      "enable" + of,
      [&] {
        const int wrong = ndctl_dax_enable(dax);
        is_enabled = wrong == 0;
        return wrong;
      },
      name + " is enabled", [&] { return ndctl_namespace_disable_safe(seed); });
  changes.attempt("find the device of" + of, [&] {
    daxctl_region* dax_region = ndctl_dax_get_daxctl_region(dax);
    daxctl_dev* made = dax_region ? daxctl_dev_get_first(dax_region) : nullptr;
    device = made ? text_of(daxctl_dev_get_devname(made)) : "";
    return device.empty() ? -ENODEV : 0;
  });
  changes.attempt("clear" + of, [&] { return code_of(clear_whole_device(device)); });
  return changes.finish(name);
}

StepResult remove_namespace(const std::string& name) {
  const NdctlContext context = open_ndctl();
  ndctl_namespace* one = context ? find_namespace(context.get(), name) : nullptr;
  if (!one) return absent(name);
  const bool was_active = ndctl_namespace_is_active(one);
  NamespaceNotes notes;
  Changes changes;
  changes.attempt(
      "disable " + name, [&] { return ndctl_namespace_disable_safe(one); }, name + " is disabled",
      [&] { return was_active ? activate(name) : 0; });
  // A namespace that is made there later must not find the notes of this one.
  const auto write_back = [&] {
    return with_raw(one, [&](const std::string& device) { return write_notes(device, notes); });
  };
  const std::string left = name + " has lost the kernel's notes, and is in the mode raw";
  changes.attempt(
      "erase the description of " + name,
      [&] {
        const int wrong = with_raw(one, [&](const std::string& device) { return exchange_notes(device, notes); });
        if (wrong < 0 && !notes.empty() && write_back() < 0) changes.leave(left);
        return wrong;
      },
      left, write_back);
  changes.attempt("give back the memory of " + name, [&] { return drop(one); });
  return changes.finish(name);
}

StepResult enable_namespace(const std::string& name) {
  Changes changes;
  changes.attempt("enable " + name, [&] { return activate(name); });
  return changes.finish(name);
}

StepResult disable_namespace(const std::string& name) {
  const NdctlContext context = open_ndctl();
  ndctl_namespace* one = context ? find_namespace(context.get(), name) : nullptr;
  if (!one) return absent(name);
  Changes changes;
  changes.attempt("disable " + name, [&] { return ndctl_namespace_disable_safe(one); });
  return changes.finish(name);
}

}  // namespace maru::daemon::provision
