// The modules of an adapter with their shapes, read from the files, and as bytes in the first block of a form.
#pragma once

#include "libmaru/adapters/checksum.h"
#include "libmaru/adapters/peft_config.h"
#include "libmaru/adapters/tensor_list.h"

#include <array>
#include <optional>

namespace maru::adapters {

inline constexpr uint64_t kFeaturesMax = 1u << 22;
inline constexpr uint64_t kModulesMax = kTensorsMax / 2;
inline constexpr uint64_t kManifestBytesMax = 64u << 20;

struct Module {
  std::string name;
  uint64_t in_features = 0, out_features = 0;
  uint32_t rank = 0;
  float scaling = 0;
};

struct Manifest {
  Element element = Element::kFloat16;  // of the weights in this form
  Checksum checksum = {};               // of the tensors' bytes in the file
  std::vector<Module> modules;          // in the order of their names

  uint32_t rank_max() const;
};

// Which tensors of the file are a module's.
struct ModuleTensors {
  size_t a, b;
};

// A module of the base model that adapters may have.
struct BaseModule {
  std::string name;
  uint64_t in_features, out_features;
};

// Puts config and tensors together. Errors: -EBADMSG they do not fit each other; -EXDEV they do not fit the base model;
// -EOPNOTSUPP a tensor is none of LoRA's.
int make_manifest(const PeftConfig& config, const std::vector<Tensor>& tensors, const std::vector<BaseModule>& base,
                  Manifest* ret_manifest, std::vector<ModuleTensors>* ret_tensors, maru_adapters_reason* reason);

// The manifest as bytes, a multiple of 64.
std::vector<std::byte> encode_manifest(const Manifest& manifest);

// Reads those bytes, which another process may have written: `bytes` is the caller's own copy, and may go on behind the
// manifest. Nothing where they are none.
std::optional<Manifest> decode_manifest(std::span<const std::byte> bytes, uint64_t* ret_encoded_bytes);

}  // namespace maru::adapters
