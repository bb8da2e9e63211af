#include "libmaru/adapters/manifest.h"

#define XXH_INLINE_ALL
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <xxhash.h>

namespace maru::adapters {
namespace {

constexpr uint64_t kMagic = 0x61'72'6f'6c'75'72'61'6dull;  // "marulora"
constexpr uint32_t kVersion = 1;

struct EncodedHead {
  uint64_t magic;
  uint32_t version;
  uint32_t element;
  uint64_t bytes;  // of all, a multiple of 64
  uint64_t modules;
  Checksum checksum;
  uint64_t hash;  // of all, with 0 here
  uint64_t reserved;
};
static_assert(sizeof(EncodedHead) == 64);

struct EncodedModule {
  uint64_t in_features, out_features;
  uint32_t rank;
  float scaling;
  uint64_t name_bytes;  // that follow, padded to a multiple of 8
};
static_assert(sizeof(EncodedModule) == 32);

constexpr uint64_t aligned(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

struct NameParts {
  std::string module;
  bool is_a;
};

// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", also with an adapter's name before "weight".
std::optional<NameParts> parts_of(std::string name) {
  constexpr std::string_view kPrefix = "base_model.model.", kSuffix = ".weight";
  if (!name.ends_with(kSuffix)) return {};
  name.resize(name.size() - kSuffix.size());
  if (name.ends_with(".default")) name.resize(name.size() - std::strlen(".default"));
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  for (const bool is_a : {true, false}) {
    const std::string_view matrix = is_a ? ".lora_A" : ".lora_B";
    if (name.ends_with(matrix) && name.size() > matrix.size())
      return NameParts{name.substr(0, name.size() - matrix.size()), is_a};
  }
  return {};
}

int fit_base(const Module& module, const std::vector<BaseModule>& base, maru_adapters_reason* reason) {
  if (base.empty()) return 0;
  const size_t dot = module.name.rfind('.');
  const std::string last = dot == std::string::npos ? module.name : module.name.substr(dot + 1);
  const auto found = std::ranges::find(base, last, &BaseModule::name);
  if (found == base.end())
    return fail(reason, EXDEV, "module \"%s\": the base model has no module \"%s\"; is this adapter of another model?",
                shown(module.name).c_str(), shown(last).c_str());
  if (found->in_features != module.in_features || found->out_features != module.out_features)
    return fail(reason, EXDEV,
                "module \"%s\" goes from %llu to %llu features; in the base model it goes from %llu to %llu",
                shown(module.name).c_str(), ull{module.in_features}, ull{module.out_features}, ull{found->in_features},
                ull{found->out_features});
  return 0;
}

int make_module(const std::string& name, const Tensor& a, const Tensor& b, const PeftConfig& config, Module* ret,
                maru_adapters_reason* reason) {
  const uint32_t rank = config.rank_of(name);
  if (a.rows != rank || b.columns != rank)
    return fail(reason, EBADMSG, "module \"%s\": A is [%llu, %llu] and B is [%llu, %llu]; the config's rank is %u",
                shown(name).c_str(), ull{a.rows}, ull{a.columns}, ull{b.rows}, ull{b.columns}, rank);
  if (a.element != b.element)
    return fail(reason, EOPNOTSUPP, "module \"%s\": A has dtype %s and B has %s; expected one for both",
                shown(name).c_str(), element_name(a.element), element_name(b.element));
  if (a.columns > kFeaturesMax || b.rows > kFeaturesMax)
    return fail(reason, EBADMSG, "module \"%s\" has more than %llu features", shown(name).c_str(), ull{kFeaturesMax});
  const double scaling = config.scaling_of(name);
  if (!std::isfinite(float(scaling)))
    return fail(reason, EBADMSG, "module \"%s\": lora_alpha / rank is no number", shown(name).c_str());
  *ret = {name, a.columns, b.rows, rank, float(scaling)};
  return 0;
}

}  // namespace

uint32_t Manifest::rank_max() const {
  uint32_t most = 0;
  for (const Module& module : modules) most = std::max(most, module.rank);
  return most;
}

int make_manifest(const PeftConfig& config, const std::vector<Tensor>& tensors, const std::vector<BaseModule>& base,
                  Manifest* ret_manifest, std::vector<ModuleTensors>* ret_tensors, maru_adapters_reason* reason) {
  struct Pair {
    std::optional<size_t> a, b;
  };
  std::map<std::string, Pair> pairs;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::optional<NameParts> parts = parts_of(tensors[i].name);
    if (!parts)
      return fail(reason, EOPNOTSUPP, "tensor \"%s\": expected a name that ends in .lora_A.weight or .lora_B.weight",
                  shown(tensors[i].name).c_str());
    std::optional<size_t>& place = parts->is_a ? pairs[parts->module].a : pairs[parts->module].b;
    if (place) return fail(reason, EBADMSG, "module \"%s\" has one matrix twice", shown(parts->module).c_str());
    place = i;
  }
  if (pairs.empty()) return fail(reason, EBADMSG, "the file has no tensors");
  Manifest manifest;
  std::vector<ModuleTensors> own;
  manifest.element = tensors[0].element;
  for (const auto& [name, pair] : pairs) {
    if (!pair.a || !pair.b)
      return fail(reason, EBADMSG, "module \"%s\" lacks its matrix %s", shown(name).c_str(), pair.a ? "B" : "A");
    Module module;
    int status = make_module(name, tensors[*pair.a], tensors[*pair.b], config, &module, reason);
    if (status == 0) status = fit_base(module, base, reason);
    if (status < 0) return status;
    if (tensors[*pair.a].element != manifest.element)
      return fail(reason, EOPNOTSUPP, "module \"%s\" has dtype %s, others have %s; expected one for all",
                  shown(name).c_str(), element_name(tensors[*pair.a].element), element_name(manifest.element));
    manifest.modules.push_back(std::move(module));
    own.push_back({*pair.a, *pair.b});
  }
  *ret_manifest = std::move(manifest);
  *ret_tensors = std::move(own);
  return 0;
}

std::vector<std::byte> encode_manifest(const Manifest& manifest) {
  uint64_t bytes = sizeof(EncodedHead);
  for (const Module& module : manifest.modules) bytes += sizeof(EncodedModule) + aligned(module.name.size(), 8);
  std::vector<std::byte> encoded(aligned(bytes, 64));
  EncodedHead head = {
      kMagic, kVersion, uint32_t(manifest.element), encoded.size(), manifest.modules.size(), manifest.checksum, 0, 0};
  uint64_t at = sizeof(head);
  for (const Module& module : manifest.modules) {
    const EncodedModule entry = {module.in_features, module.out_features, module.rank, module.scaling,
                                 module.name.size()};
    std::memcpy(&encoded[at], &entry, sizeof(entry));
    at += sizeof(entry);
    std::memcpy(encoded.data() + at, module.name.data(), module.name.size());
    at += aligned(module.name.size(), 8);
  }
  std::memcpy(encoded.data(), &head, sizeof(head));
  head.hash = XXH3_64bits(encoded.data(), encoded.size());
  std::memcpy(encoded.data(), &head, sizeof(head));
  return encoded;
}

std::optional<Manifest> decode_manifest(std::span<const std::byte> bytes, uint64_t* ret_encoded_bytes) {
  EncodedHead head;
  if (bytes.size() < sizeof(head)) return {};
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != kMagic || head.version != kVersion || head.reserved != 0) return {};
  if (head.bytes > bytes.size() || head.bytes < sizeof(head) || head.bytes % 64 != 0) return {};
  if (head.element < uint32_t(Element::kFloat32) || head.element > uint32_t(Element::kInt8)) return {};
  std::vector<std::byte> copy(bytes.begin(), bytes.begin() + ptrdiff_t(head.bytes));
  std::memset(&copy[offsetof(EncodedHead, hash)], 0, sizeof(head.hash));
  if (XXH3_64bits(copy.data(), copy.size()) != head.hash) return {};
  Manifest manifest;
  manifest.element = Element(head.element);
  manifest.checksum = head.checksum;
  uint64_t at = sizeof(head);
  if (head.modules == 0 || head.modules > (head.bytes - at) / sizeof(EncodedModule)) return {};
  for (uint64_t i = 0; i < head.modules; ++i) {
    EncodedModule entry;
    if (head.bytes - at < sizeof(entry)) return {};
    std::memcpy(&entry, &copy[at], sizeof(entry));
    at += sizeof(entry);
    if (entry.name_bytes > kTensorNameBytesMax || aligned(entry.name_bytes, 8) > head.bytes - at) return {};
    if (entry.in_features == 0 || entry.in_features > kFeaturesMax || entry.out_features == 0 ||
        entry.out_features > kFeaturesMax || entry.rank == 0 || entry.rank > kRankMax || !std::isfinite(entry.scaling))
      return {};
    manifest.modules.push_back({std::string(reinterpret_cast<const char*>(copy.data() + at), entry.name_bytes),
                                entry.in_features, entry.out_features, entry.rank, entry.scaling});
    at += aligned(entry.name_bytes, 8);
  }
  if (ret_encoded_bytes != nullptr) *ret_encoded_bytes = head.bytes;
  return manifest;
}

}  // namespace maru::adapters
