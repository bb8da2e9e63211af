// Folders with adapters as PEFT writes them: a config, and a file of safetensors, whole or with a lie in it.
#pragma once

#include "tests/support/random.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace maru::test {

enum class Dtype { kFloat32, kFloat16, kBfloat16 };

inline const char* dtype_name(Dtype dtype) {
  return dtype == Dtype::kFloat32 ? "F32" : dtype == Dtype::kFloat16 ? "F16" : "BF16";
}

// A weight in the bits of a type, by truncation: what the type holds, exactly.
inline std::string weight_bytes(float value, Dtype dtype) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (dtype == Dtype::kFloat32) return std::string(reinterpret_cast<const char*>(&bits), 4);
  uint16_t half = uint16_t(bits >> 16);
  if (dtype == Dtype::kFloat16) {
    const int exponent = int(bits >> 23 & 0xFF) - 127 + 15;
    half = uint16_t(bits >> 16 & 0x8000);
    if (exponent > 0 && exponent < 31) half = uint16_t(half | exponent << 10 | (bits >> 13 & 0x3FF));
  }
  return std::string(reinterpret_cast<const char*>(&half), 2);
}

// Of the shapes given: A is [rank, in], B is [out, rank], in each layer.
struct AdapterWish {
  struct Linear {
    std::string name = "q_proj";
    uint64_t in = 64, out = 64;
  };
  uint32_t rank = 8;
  double alpha = 16;
  uint32_t layers = 2;
  std::vector<Linear> modules = {{"q_proj", 64, 64}, {"v_proj", 64, 32}};
  Dtype dtype = Dtype::kFloat16;
  std::string base = "base/model";
  uint64_t seed = 1;
};

inline std::string module_path(uint32_t layer, const std::string& name) {
  return "model.layers." + std::to_string(layer) + ".self_attn." + name;
}

// A file of safetensors in its two parts, so that a test can change either.
struct TensorsFile {
  nlohmann::json header = nlohmann::json::object();
  std::string data;

  void add(const std::string& name, const char* dtype, std::vector<uint64_t> shape, const std::string& bytes) {
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  std::string bytes() const {
    const std::string text = header.dump();
    const uint64_t size = text.size();
    return std::string(reinterpret_cast<const char*>(&size), 8) + text + data;
  }
};

inline TensorsFile tensors_of(const AdapterWish& wish) {
  TensorsFile file;
  Random random(wish.seed);
  const auto weights = [&](uint64_t count) {
    std::string bytes;
    bytes.reserve(count * 4);
    for (uint64_t i = 0; i < count; ++i)
      bytes += weight_bytes((float(random.next() >> 40) / float(1 << 24) - 0.5f) * 0.25f, wish.dtype);
    return bytes;
  };
  for (uint32_t layer = 0; layer < wish.layers; ++layer)
    for (const AdapterWish::Linear& linear : wish.modules) {
      const std::string path = "base_model.model." + module_path(layer, linear.name);
      file.add(path + ".lora_A.weight", dtype_name(wish.dtype), {wish.rank, linear.in}, weights(wish.rank * linear.in));
      file.add(path + ".lora_B.weight", dtype_name(wish.dtype), {linear.out, wish.rank},
               weights(wish.rank * linear.out));
    }
  return file;
}

inline nlohmann::json config_of(const AdapterWish& wish) {
  nlohmann::json targets = nlohmann::json::array();
  for (const AdapterWish::Linear& linear : wish.modules) targets.push_back(linear.name);
  return {{"peft_type", "LORA"},    {"r", wish.rank},        {"lora_alpha", wish.alpha},
          {"bias", "none"},         {"use_dora", false},     {"base_model_name_or_path", wish.base},
          {"use_rslora", false},    {"modules_to_save", {}}, {"target_modules", targets},
          {"fan_in_fan_out", false}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::streamsize(bytes.size()));
}

inline void write_adapter(const std::string& folder, const nlohmann::json& config, const std::string& tensors) {
  std::filesystem::create_directories(folder);
  write_file(folder + "/adapter_config.json", config.dump());
  write_file(folder + "/adapter_model.safetensors", tensors);
}
inline void write_adapter(const std::string& folder, const AdapterWish& wish) {
  write_adapter(folder, config_of(wish), tensors_of(wish).bytes());
}

// The float that a tensor's element is, read straight from the file's bytes.
inline float tensor_weight(const TensorsFile& file, const std::string& name, uint64_t at) {
  const nlohmann::json& entry = file.header.at(name);
  const std::string dtype = entry.at("dtype");
  const uint64_t first = entry.at("data_offsets").at(0);
  if (dtype == "F32") {
    float value;
    std::memcpy(&value, file.data.data() + first + 4 * at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, file.data.data() + first + 2 * at, 2);
  if (dtype == "BF16") return std::bit_cast<float>(uint32_t(bits) << 16);
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 0x3FF;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  return exponent == 0 ? sign * float(fraction) * 0x1p-24f
                       : sign * (1.0f + float(fraction) / 1024.0f) * std::ldexp(1.0f, int(exponent) - 15);
}

}  // namespace maru::test
