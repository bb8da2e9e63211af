#include "daemon/eventd/media.h"

#include <array>

namespace maru::eventd {
namespace {

struct Medium {
  std::string_view name;
  std::string_view tier;  // Dynamo's
};

// As Dynamo 1.6.1 and vLLM 0.33 have them. SGLang writes GPU, CPU_PINNED, DISK and EXTERNAL.
constexpr std::array<Medium, 13> kMedia = {{{"CPU", "host_pinned"},
                                            {"CPU_PINNED", "host_pinned"},
                                            {"CPU_TIER1", "host_pinned"},
                                            {"CPU_TIER2", "disk"},
                                            {"DISK", "disk"},
                                            {"NVME", "disk"},
                                            {"STORAGE", "disk"},
                                            {"EXTERNAL", "external"},
                                            {"NETWORK", "external"},
                                            {"REMOTE", "external"},
                                            {"SHARED", "external"},
                                            {"GPU", "device"},
                                            {"DEVICE", "device"}}};

const Medium* find(std::string_view name) {
  for (const Medium& medium : kMedia)
    if (medium.name == name) return &medium;
  return nullptr;
}

}  // namespace

std::string known_media() {
  std::string names;
  for (const Medium& medium : kMedia) names += (names.empty() ? "" : ", ") + std::string(medium.name);
  return names;
}

std::string medium_warning(std::string_view medium) {
  const Medium* known = find(medium);
  const std::string found = "found the medium \"" + std::string(medium) + "\"";
  if (known == nullptr)
    return found + ", which Dynamo drops, and llm-d counts as a GPU's memory; expected one of " + known_media() +
           ". For a pool in memory of this host write \"CPU\"";
  if (known->tier == "device")
    return found +
           ", so that routers count the pool's blocks as if they lay in a GPU's memory already; write \"CPU\" for "
           "memory of this host, \"STORAGE\" for files";
  return "";
}

std::string_view dynamo_tier(std::string_view medium) {
  const Medium* known = find(medium);
  return known ? known->tier : "external";
}

}  // namespace maru::eventd
