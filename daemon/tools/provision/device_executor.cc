#include "daemon/tools/provision/device_executor.h"

#include <cerrno>

namespace maru::daemon::provision {
namespace {

StepResult left_as_well(Error error, const StepResult& unmade, const std::string& name) {
  if (unmade) return tl::unexpected<StepError>(std::move(error));
  return tl::unexpected<StepError>({std::move(error), name + " is left: " + unmade.error().text(), name});
}

// A new device must hold nothing of its memory's former users. So a device that cannot be cleared is removed, unless a marud
// has opened it by now: no device is taken from under a pool.
template <typename Unmake>
StepResult not_cleared(Error error, Unmake unmake, const std::string& name) {
  if (error.code == EBUSY)
    return tl::unexpected<StepError>(
        {std::move(error), name + " is left as it is: a marud has it, or a client of one", name});
  return left_as_well(std::move(error), unmake(), name);
}

template <typename Unmake>
StepResult cleared(StepResult made, Unmake unmake) {
  if (!made) return made;
  if (auto clear = clear_whole_device(*made); !clear)
    return not_cleared(clear.error(), [&] { return unmake(*made); }, *made);
  return made;
}

// A volatile region is done when the device that the kernel makes of it is devdax and cleared, or gone where others take its
// place.
StepResult with_device(const Step& step, StepResult region) {
  if (!region || step.is_persistent) return region;
  auto device = settle_cxl_device(*region);
  if (device) device = step.is_divided ? remove_device(*device) : cleared(device, disable_device);
  if (device) return region;
  return left_as_well(device.error().error, remove_cxl_region(*region, true), *region);
}

StepResult resize(const Step& step) {
  auto resized = resize_device(step.target, step.bytes);
  if (!resized || step.bytes <= step.before) return resized;
  if (auto clear = clear_part_of_device(step.target, step.before, step.bytes, step.align); !clear)
    return not_cleared(
        clear.error(), [&] { return resize_device(step.target, step.before, step.was_disabled); }, step.target);
  return resized;
}

// Another device may have had the cut-off memory since. So it is cleared, and a pool that lay there is no longer whole.
StepResult resize_back(const Step& step) {
  const bool grows = step.bytes < step.before;
  auto back = resize_device(step.target, step.before, step.was_disabled && !grows);
  if (!back || !grows) return back;
  if (auto clear = clear_part_of_device(step.target, step.loses_content ? 0 : step.bytes, step.before, step.align);
      !clear)
    return tl::unexpected<StepError>(clear.error());
  return step.was_disabled ? disable_device(step.target) : back;
}

StepResult take_back(const Step& step) {
  auto taken = cleared(take_from_kernel(step.target), [](const std::string& name) { return give_to_kernel(name); });
  return taken && step.was_disabled ? disable_device(step.target) : taken;
}

StepResult make_again(const Step& step) {
  const auto made = cleared(make_device(step.region, step.bytes, step.align, step.target), remove_device);
  if (!made || !step.was_disabled) return made;
  auto disabled = disable_device(*made);
  if (!disabled) disabled.error().there = *made;
  return disabled;
}

}  // namespace

StepResult DeviceExecutor::run(const Step& step) {
  switch (step.kind) {
    case Step::Kind::kMakeCxlRegion: return with_device(step, make_cxl_region(step));
    case Step::Kind::kRemoveCxlRegion: return remove_cxl_region(step.target);
    case Step::Kind::kMakeLabels: return make_labels(step.target);
    case Step::Kind::kMakeNamespace: return make_namespace(step.target, step.wish, step.bytes, step.align);
    case Step::Kind::kRemoveNamespace: return remove_namespace(step.target);
    case Step::Kind::kEnableNamespace: return enable_namespace(step.target);
    case Step::Kind::kMakeDevice: return cleared(make_device(step.target, step.bytes, step.align), remove_device);
    case Step::Kind::kResizeDevice: return resize(step);
    case Step::Kind::kRemoveDevice: return remove_device(step.target);
    case Step::Kind::kTakeFromKernel:
      return cleared(take_from_kernel(step.target),
                     [&](const std::string& name) { return give_to_kernel(name, step.kernel_use); });
    case Step::Kind::kGiveToKernel: return give_to_kernel(step.target);
    case Step::Kind::kEnableDevice: return enable_device(step.target);
  }
  return failure(EINVAL, "do an unknown step");
}

StepResult DeviceExecutor::undo(const Step& step, const std::string& name) {
  switch (step.kind) {
    case Step::Kind::kMakeCxlRegion: return remove_cxl_region(name);
    case Step::Kind::kMakeLabels: return remove_labels(name);
    case Step::Kind::kMakeNamespace: return remove_namespace(name);
    case Step::Kind::kMakeDevice: return remove_device(name);
    case Step::Kind::kResizeDevice: return resize_back(step);
    case Step::Kind::kRemoveDevice: return make_again(step);
    case Step::Kind::kTakeFromKernel: return give_to_kernel(name, step.kernel_use);
    case Step::Kind::kGiveToKernel: return take_back(step);
    case Step::Kind::kEnableDevice: return disable_device(name);
    case Step::Kind::kEnableNamespace: return disable_namespace(name);
    case Step::Kind::kRemoveNamespace: return make_namespace(step.region, step.wish, step.bytes, step.align);
    case Step::Kind::kRemoveCxlRegion: break;  // always the last one
  }
  return failure(EOPNOTSUPP, "put back " + step.target);
}

}  // namespace maru::daemon::provision
