#include "daemon/provision/device_executor.h"

#include "daemon/provision/inventory.h"

namespace maru::daemon::provision {
namespace {

// A device that somebody may get holds nothing of its memory's former users; one that cannot be cleared is not left.
Result<std::string> cleared(Result<std::string> made, Result<std::string> (*unmake)(const std::string&)) {
  if (!made) return made;
  if (auto clear = clear_whole_device(*made); !clear) {
    const auto unmade = unmake(*made);
    return failure(
        clear.error().code,
        clear.error().doing + (unmade ? "" : ", and then " + unmade.error().text() + " (" + *made + " is left)"));
  }
  return made;
}

// A volatile region is done when the device that the kernel makes of it is devdax and cleared, or gone where others take its
// place.
Result<std::string> with_device(const Step& step, Result<std::string> region) {
  if (!region || step.is_persistent) return region;
  auto device = settle_cxl_device(*region);
  if (device) device = step.is_divided ? remove_device(*device) : cleared(device, disable_device);
  if (device) return region;
  const auto removed = remove_cxl_region(*region);
  return failure(
      device.error().code,
      device.error().doing + (removed ? "" : ", and then " + removed.error().text() + " (" + *region + " is left)"));
}

}  // namespace

Result<std::string> DeviceExecutor::run(const Step& step) {
  switch (step.kind) {
    case Step::Kind::kMakeCxlRegion: return with_device(step, make_cxl_region(step));
    case Step::Kind::kRemoveCxlRegion: return remove_cxl_region(step.target);
    case Step::Kind::kMakeLabels: return make_labels(step.target);
    case Step::Kind::kMakeNamespace: return make_namespace(step.target, step.wish, step.bytes, step.align);
    case Step::Kind::kRemoveNamespace: return remove_namespace(step.target);
    case Step::Kind::kEnableNamespace: return enable_namespace(step.target);
    case Step::Kind::kMakeDevice: return cleared(make_device(step.target, step.bytes, step.align), remove_device);
    case Step::Kind::kResizeDevice: {
      auto resized = resize_device(step.target, step.bytes);
      if (!resized || step.bytes <= step.before) return resized;
      if (auto clear = clear_device(step.target, step.before, step.bytes, step.align); !clear) {
        const auto back = resize_device(step.target, step.before);
        return failure(clear.error().code, clear.error().doing + (back ? "" : ", and then " + back.error().text()));
      }
      return resized;
    }
    case Step::Kind::kRemoveDevice: return remove_device(step.target);
    case Step::Kind::kTakeFromKernel: return cleared(take_from_kernel(step.target), give_to_kernel);
    case Step::Kind::kGiveToKernel: return give_to_kernel(step.target);
    case Step::Kind::kEnableDevice: return enable_device(step.target);
  }
  return failure(EINVAL, "do an unknown step");
}

Result<void> DeviceExecutor::undo(const Step& step, const std::string& name) {
  const auto back = [&]() -> Result<std::string> {
    switch (step.kind) {
      case Step::Kind::kMakeCxlRegion: return remove_cxl_region(name);
      case Step::Kind::kMakeLabels: return remove_labels(name);
      case Step::Kind::kMakeNamespace: return remove_namespace(name);
      case Step::Kind::kMakeDevice: return remove_device(name);
      case Step::Kind::kResizeDevice: return resize_device(name, step.before);
      case Step::Kind::kRemoveDevice: {
        auto made = make_device(step.region, step.bytes, step.align);
        return made && step.was_system_ram ? give_to_kernel(*made) : made;
      }
      case Step::Kind::kTakeFromKernel: return give_to_kernel(name);
      case Step::Kind::kGiveToKernel: return cleared(take_from_kernel(name), give_to_kernel);
      case Step::Kind::kEnableDevice: return disable_device(name);
      case Step::Kind::kEnableNamespace: return name;
      case Step::Kind::kRemoveNamespace: return make_namespace(step.region, step.wish, step.bytes, step.align);
      case Step::Kind::kRemoveCxlRegion: break;
    }
    return failure(EOPNOTSUPP, "put back " + step.target);
  }();
  if (!back) return tl::unexpected<Error>(back.error());
  return {};
}

}  // namespace maru::daemon::provision
