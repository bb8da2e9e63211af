#include "daemon/tools/provision/changes.h"
#include "daemon/tools/provision/contexts.h"
#include "daemon/tools/provision/cxl_sysfs.h"
#include "daemon/tools/provision/device_executor.h"

#include <cerrno>
#include <sys/random.h>

namespace maru::daemon::provision {
namespace {

cxl_decoder* find_window(cxl_ctx* context, const std::string& name) {
  cxl_bus* bus;
  cxl_bus_foreach(context, bus) {
    cxl_decoder* window;
    cxl_decoder_foreach(cxl_bus_get_port(bus),
                        window) if (name == text_of(cxl_decoder_get_devname(window))) return window;
  }
  return nullptr;
}

cxl_region* find_region(cxl_ctx* context, const std::string& name) {
  cxl_bus* bus;
  cxl_bus_foreach(context, bus) {
    cxl_decoder* window;
    cxl_decoder_foreach(cxl_bus_get_port(bus), window) {
      cxl_region* region;
      cxl_region_foreach(window, region) if (name == text_of(cxl_region_get_devname(region))) return region;
    }
  }
  return nullptr;
}

cxl_memdev* find_memory(cxl_ctx* context, const std::string& name) {
  cxl_memdev* memory;
  cxl_memdev_foreach(context, memory) if (name == text_of(cxl_memdev_get_devname(memory))) return memory;
  return nullptr;
}

// A decoder of the device that maps nothing yet. They are used in order.
cxl_decoder* free_decoder(cxl_memdev* memory) {
  cxl_endpoint* endpoint = cxl_memdev_get_endpoint(memory);
  if (!endpoint) return nullptr;
  cxl_decoder* decoder;
  cxl_decoder_foreach(
      cxl_endpoint_get_port(endpoint),
      decoder) if (cxl_decoder_get_dpa_size(decoder) == 0 || cxl_decoder_get_dpa_size(decoder) == ~0ull) return decoder;
  return nullptr;
}

// Takes apart a region, complete or not, from its end to its beginning. `settle` follows when a reversal enables it again.
void take_apart(cxl_region* region, Changes& changes, const Changes::Call& settle) {
  const std::string name = text_of(cxl_region_get_devname(region));
  const std::string doing = "take apart the CXL region " + name;
  if (cxl_region_is_enabled(region) == 1)
    changes.attempt(
        doing, [&] { return cxl_region_disable(region); }, name + " is disabled",
        [=] {
          const int wrong = cxl_region_enable(region);
          return wrong < 0 ? wrong : settle();
        });
  if (cxl_region_decode_is_committed(region) == 1)
    changes.attempt(
        doing, [&] { return cxl_region_decode_reset(region); }, name + " is out of force",
        [=] { return cxl_region_decode_commit(region); });
  const unsigned ways = cxl_region_get_interleave_ways(region);
  for (unsigned i = 0; ways != ~0u && i < ways; ++i) {
    cxl_decoder* target = cxl_region_get_target_decoder(region, int(i));
    if (!target) continue;
    const unsigned long long bytes = cxl_decoder_get_dpa_size(target);
    changes.attempt(
        doing, [&] { return cxl_region_clear_target(region, int(i)); }, name + " lacks a device",
        [=] { return cxl_region_set_target(region, int(i), target); });
    changes.attempt(
        doing, [&] { return cxl_decoder_set_dpa_size(target, 0); }, name + " lacks the memory of a device",
        [=] { return cxl_decoder_set_dpa_size(target, bytes); });
  }
  changes.attempt(doing, [&] { return cxl_region_delete(region); });
}

}  // namespace

StepResult make_cxl_region(const Step& step) {
  std::string made;
  if (!step.is_persistent) {
    auto region = make_volatile_region(step.target);
    if (!region) return tl::unexpected<Error>(region.error());
    made = *region;
  }
  const CxlContext context = open_cxl();
  cxl_decoder* window = context ? find_window(context.get(), step.target) : nullptr;
  cxl_region* region = !window              ? nullptr
                       : step.is_persistent ? cxl_decoder_create_pmem_region(window)
                                            : find_region(context.get(), made);
  if (!region) {
    const int wrong = window && errno ? errno : ENODEV;
    const bool is_left = !made.empty() && !delete_region(step.target, made);
    return tl::unexpected<StepError>({Error{wrong, "make a region in " + step.target},
                                      is_left ? made + " is left, empty" : "", is_left ? made : ""});
  }
  const std::string name = text_of(cxl_region_get_devname(region));

  Changes changes;
  const auto attempt = [&](const std::string& what, const Changes::Call& change) {
    changes.attempt(what + " (" + name + " in " + step.target + ")", change);
  };
  const unsigned ways = unsigned(step.memories.size());
  attempt("say how it interleaves", [&] { return cxl_region_set_interleave_ways(region, ways); });
  attempt("say how it interleaves", [&] {
    return cxl_region_set_interleave_granularity(region, cxl_decoder_get_interleave_granularity(window));
  });
  if (step.is_persistent)
    attempt("give it a uuid", [&] {
      unsigned char uuid[16];
      if (::getrandom(uuid, sizeof(uuid), 0) != sizeof(uuid)) return -EIO;
      uuid[6] = uint8_t((uuid[6] & 0x0f) | 0x40);
      uuid[8] = uint8_t((uuid[8] & 0x3f) | 0x80);
      return cxl_region_set_uuid(region, uuid);
    });
  attempt("give it a size", [&] { return cxl_region_set_size(region, step.bytes); });
  std::vector<cxl_decoder*> taken;
  for (unsigned i = 0; i < ways; ++i) {
    const std::string& memory_name = step.memories[i];
    attempt("use " + memory_name, [&] {
      cxl_memdev* memory = find_memory(context.get(), memory_name);
      cxl_decoder* decoder = memory ? free_decoder(memory) : nullptr;
      if (!decoder) return -ENODEV;
      int result = cxl_decoder_set_mode(decoder, step.is_persistent ? CXL_DECODER_MODE_PMEM : CXL_DECODER_MODE_RAM);
      if (result == 0) result = cxl_decoder_set_dpa_size(decoder, step.bytes / ways);
      if (result == 0) taken.push_back(decoder);
      return result != 0 ? result : cxl_region_set_target(region, int(i), decoder);
    });
  }
  attempt("put it into force", [&] { return cxl_region_decode_commit(region); });
  attempt("enable it", [&] { return cxl_region_enable(region); });
  if (changes.is_good()) return name;
  StepError error = changes.finish(name).error();
  Changes back;
  take_apart(region, back, [] { return 0; });
  for (cxl_decoder* decoder : taken)
    if (const auto bytes = cxl_decoder_get_dpa_size(decoder); bytes != 0 && bytes != ~0ull)
      back.attempt("give back memory", [&] { return cxl_decoder_set_dpa_size(decoder, 0); });
  if (!back.is_good()) {
    error.left = name + " is left: " + back.finish(name).error().text();
    error.there = name;
  }
  return tl::unexpected<StepError>(std::move(error));
}

StepResult remove_cxl_region(const std::string& name, bool takes_memory) {
  const CxlContext context = open_cxl();
  cxl_region* region = context ? find_region(context.get(), name) : nullptr;
  if (!region) return failure(ENODEV, "find the CXL region " + name);
  // Without it a driver of its DAX devices would lose their memory while it has them.
  const auto disabled = disable_cxl_devices(name, takes_memory);
  if (!disabled) return tl::unexpected<StepError>(disabled.error());
  Changes changes;
  changes.attempt(
      "disable the devices of " + name, [] { return 0; },
      "devices of " + name + " are disabled, or are another one now",
      [&] {
        int wrong = 0;
        for (const std::string& device : *disabled)
          if (const int result = code_of(enable_device(device)); result < 0) wrong = result;
        return wrong;
      });
  // The kernel makes one device of a volatile region that is enabled again.
  take_apart(region, changes, [&] { return disabled->empty() ? 0 : code_of(settle_cxl_device(name)); });
  return changes.finish(name);
}

}  // namespace maru::daemon::provision
