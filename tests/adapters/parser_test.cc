// What the files of adapters may say, and what is refused, by name.
#include "libmaru/adapters/adapter_file.h"
#include "libmaru/adapters/placement.h"
#include "libmaru/adapters/weights.h"
#include "tests/support/adapter_folder.h"
#include "tests/support/temporary_directory.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <unistd.h>

namespace maru::adapters {
namespace {

using test::AdapterWish;
using test::TemporaryDirectory;
using test::TensorsFile;

struct Outcome {
  int status = 0;
  std::string reason;
};

// Reads all of an adapter, as loading does.
Outcome read_adapter(const std::string& folder, const std::string& root = {},
                     const std::vector<BaseModule>& base = {}) {
  maru_adapters_reason reason = {};
  AdapterFile file;
  Manifest manifest;
  std::vector<ModuleTensors> tensors;
  Checksum checksum = {};
  int status = file.open(root, folder, &reason);
  if (status == 0) status = make_manifest(file.config(), file.tensors(), base, &manifest, &tensors, &reason);
  if (status == 0)
    status = file.read_tensors([&] { return std::make_unique<CheckingSink>(file.tensors()); }, &checksum, &reason);
  return {status, reason.text};
}

class Parser : public ::testing::Test {
 protected:
  std::string folder(const std::string& name = "adapter") const { return directory_.file(name); }
  Outcome with_tensors(const std::string& bytes) const {
    test::write_adapter(folder(), test::config_of(wish_), bytes);
    return read_adapter(folder());
  }
  Outcome with_config(const nlohmann::json& config) const {
    test::write_adapter(folder(), config, test::tensors_of(wish_).bytes());
    return read_adapter(folder());
  }
  static void expect_refusal(const Outcome& outcome, int code, const std::string& words) {
    EXPECT_EQ(outcome.status, -code) << outcome.reason;
    EXPECT_NE(outcome.reason.find(words), std::string::npos)
        << "\"" << outcome.reason << "\" does not say \"" << words << "\"";
  }

  TemporaryDirectory directory_;
  AdapterWish wish_;
};

TEST_F(Parser, ReadsWhatPeftWrites) {
  for (const auto dtype : {test::Dtype::kFloat16, test::Dtype::kBfloat16, test::Dtype::kFloat32}) {
    wish_.dtype = dtype;
    test::write_adapter(folder(), wish_);
    const Outcome outcome = read_adapter(folder());
    EXPECT_EQ(outcome.status, 0) << outcome.reason;
  }
  AdapterFile file;
  ASSERT_EQ(file.open({}, folder(), nullptr), 0);
  Manifest manifest;
  std::vector<ModuleTensors> tensors;
  ASSERT_EQ(make_manifest(file.config(), file.tensors(), {}, &manifest, &tensors, nullptr), 0);
  ASSERT_EQ(manifest.modules.size(), 4u);
  EXPECT_EQ(manifest.modules[1].name, "model.layers.0.self_attn.v_proj");
  EXPECT_EQ(manifest.modules[1].in_features, 64u);
  EXPECT_EQ(manifest.modules[1].out_features, 32u);
  EXPECT_EQ(manifest.modules[1].rank, 8u);
  EXPECT_EQ(manifest.modules[1].scaling, 2.0f);
  EXPECT_EQ(file.config().target_modules, "q_proj,v_proj");
}

TEST_F(Parser, ScalesAsPeftDoes) {
  nlohmann::json config = test::config_of(wish_);
  config["use_rslora"] = true;
  config["rank_pattern"] = {{"v_proj", 4}};
  config["alpha_pattern"] = {{"layers.1.self_attn.q_proj", 32}};
  PeftConfig parsed;
  ASSERT_EQ(parse_peft_config(config.dump(), &parsed, nullptr), 0);
  EXPECT_DOUBLE_EQ(parsed.scaling_of("model.layers.0.self_attn.q_proj"), 16 / std::sqrt(8.0));
  EXPECT_DOUBLE_EQ(parsed.scaling_of("model.layers.1.self_attn.q_proj"), 32 / std::sqrt(8.0));
  EXPECT_DOUBLE_EQ(parsed.scaling_of("model.layers.1.self_attn.v_proj"), 16 / std::sqrt(4.0));
  EXPECT_EQ(parsed.rank_of("model.layers.0.self_attn.xv_proj"), 8u);  // the end of a name is not a name
}

TEST_F(Parser, RefusesHeadersThatLie) {
  const TensorsFile good = test::tensors_of(wish_);
  const std::string bytes = good.bytes();
  expect_refusal(with_tensors(bytes.substr(0, 5)), EBADMSG, "cut off in its header");
  expect_refusal(with_tensors(bytes.substr(0, 100)), EBADMSG, "says that its header has");
  expect_refusal(with_tensors(bytes.substr(0, bytes.size() - 1)), EBADMSG, "lie outside of the");
  expect_refusal(with_tensors(bytes + "x"), EBADMSG, "bytes of data; its tensors have");
  std::string huge = bytes;
  std::memset(huge.data(), 0xFF, 8);
  expect_refusal(with_tensors(huge), EBADMSG, "says that its header has 18446744073709551615 bytes");
  std::string broken = bytes;
  broken[40] = '\x01';
  EXPECT_EQ(with_tensors(broken).status, -EBADMSG);
  const auto changed = [&](const auto& change) {
    TensorsFile file = good;
    change(file.header.begin().value(), file);
    return with_tensors(file.bytes());
  };
  using Json = nlohmann::json;
  expect_refusal(changed([](Json& tensor, TensorsFile&) { tensor["data_offsets"][1] = 1u << 30; }), EBADMSG,
                 "lie outside");
  expect_refusal(changed([](Json& tensor, TensorsFile&) { tensor["data_offsets"] = {64, 0}; }), EBADMSG, "lie outside");
  expect_refusal(changed([](Json& tensor, TensorsFile&) { tensor["shape"] = {8, 65}; }), EBADMSG,
                 "shape and dtype need");
  expect_refusal(changed([](Json& tensor, TensorsFile&) { tensor["shape"] = {1ull << 62, 1ull << 62}; }), EBADMSG,
                 "too many");
  expect_refusal(changed([](Json& tensor, TensorsFile&) { tensor["shape"] = {8, -64}; }), EBADMSG, "a negative number");
  expect_refusal(changed([](Json& tensor, TensorsFile&) { tensor["shape"] = {8, 8, 8}; }), EOPNOTSUPP, "3 dimensions");
  expect_refusal(changed([](Json& tensor, TensorsFile&) { tensor["dtype"] = "F8_E4M3"; }), EOPNOTSUPP,
                 "dtype \"F8_E4M3\"");
  expect_refusal(changed([](Json& tensor, TensorsFile&) { tensor.erase("dtype"); }), EBADMSG, "a field is missing");
  expect_refusal(changed([](Json& tensor, TensorsFile&) { tensor["more"] = 1; }), EBADMSG, "an unknown field");
  // Two tensors over the same bytes, and so a rest that is none's.
  expect_refusal(changed([](Json& tensor, TensorsFile& file) {
                   auto second = std::next(file.header.begin(), 2);
                   second.value()["data_offsets"] = tensor["data_offsets"];
                 }),
                 EBADMSG, "the one before ends at byte");
  expect_refusal(with_tensors(std::string("\x02\0\0\0\0\0\0\0{}", 10)), EBADMSG, "no tensors");
}

TEST_F(Parser, RefusesANameThatComesTwice) {
  const std::string text =
      R"({"a":{"dtype":"F16","shape":[1,1],"data_offsets":[0,2]},"a":{"dtype":"F16","shape":[1,1],"data_offsets":[2,4]}})";
  const uint64_t size = text.size();
  expect_refusal(with_tensors(std::string(reinterpret_cast<const char*>(&size), 8) + text + "1234"), EBADMSG,
                 "the name comes twice");
}

TEST_F(Parser, RefusesShapesThatDoNotFitTheConfig) {
  nlohmann::json config = test::config_of(wish_);
  config["r"] = 16;
  expect_refusal(with_config(config), EBADMSG, "the config's rank is 16");
  TensorsFile file = test::tensors_of(wish_);
  file.header.erase("base_model.model." + test::module_path(1, "v_proj") + ".lora_B.weight");
  file.data.resize(file.data.size() - 32 * 8 * 2);
  expect_refusal(with_tensors(file.bytes()), EBADMSG, "lacks its matrix B");
}

TEST_F(Parser, RefusesOtherKindsOfAdapters) {
  const auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json config = test::config_of(wish_);
    config[key] = value;
    return with_config(config);
  };
  expect_refusal(with("peft_type", "IA3"), EOPNOTSUPP, "peft_type is \"IA3\"");
  expect_refusal(with("use_dora", true), EOPNOTSUPP, "use_dora");
  expect_refusal(with("bias", "all"), EOPNOTSUPP, "bias is \"all\"");
  expect_refusal(with("modules_to_save", {"lm_head"}), EOPNOTSUPP, "modules_to_save");
  expect_refusal(with("fan_in_fan_out", true), EOPNOTSUPP, "fan_in_fan_out");
  expect_refusal(with("rank_pattern", {{".*q_proj", 4}}), EOPNOTSUPP, "without a pattern");
  expect_refusal(with("r", 0), EBADMSG, "r is missing");
  expect_refusal(with("r", "8"), EBADMSG, "r is missing");
  expect_refusal(with("lora_alpha", nullptr), EBADMSG, "lora_alpha");
  test::write_file(folder() + "/adapter_config.json", "{\"peft_type\": \"LORA\", ");
  expect_refusal(read_adapter(folder()), EBADMSG, "no JSON object");
}

TEST_F(Parser, RefusesDeepValuesWithoutWritingThem) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const auto said = [](const std::string& key, const std::string& value) {
    maru_adapters_reason reason = {};
    PeftConfig config;
    const std::string text = R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, ")" + key + "\": " + value + "}";
    EXPECT_LT(parse_peft_config(text, &config, &reason), 0) << key;
    return std::string(reason.text);
  };
  EXPECT_EQ(said("peft_type", deep), "adapter_config.json: peft_type is an array; expected \"LORA\"");
  EXPECT_EQ(said("bias", deep), "adapter_config.json: bias is an array; expected \"none\"");
  for (const std::string key : {"rank_pattern", "alpha_pattern"})
    EXPECT_EQ(said(key, "{\"q_proj\": {\"a\": " + deep + "}}"),
              "adapter_config.json: " + key + " of \"q_proj\" is an object");
}

TEST_F(Parser, RefusesWeightsThatAreNoNumbers) {
  for (const auto dtype : {test::Dtype::kFloat16, test::Dtype::kBfloat16, test::Dtype::kFloat32})
    for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      wish_.dtype = dtype;
      TensorsFile file = test::tensors_of(wish_);
      std::string bytes = test::weight_bytes(value, test::Dtype::kFloat32);
      if (dtype == test::Dtype::kFloat16)
        bytes = std::isnan(value) ? std::string("\x01\x7e", 2) : std::string("\x00\xfc", 2);
      if (dtype == test::Dtype::kBfloat16) bytes = bytes.substr(2);
      const std::string name = "base_model.model." + test::module_path(1, "q_proj") + ".lora_A.weight";
      const uint64_t first = file.header[name]["data_offsets"][0];
      file.data.replace(first + (3 * 64 + 5) * bytes.size(), bytes.size(), bytes);
      expect_refusal(with_tensors(file.bytes()), EBADMSG, "the weight [3, 5] is NaN or infinite");
    }
}

TEST_F(Parser, RefusesOtherBaseModels) {
  test::write_adapter(folder(), wish_);
  EXPECT_EQ(read_adapter(folder(), {}, {{"q_proj", 64, 64}, {"v_proj", 64, 32}}).status, 0);
  expect_refusal(read_adapter(folder(), {}, {{"q_proj", 64, 64}}), EXDEV, "no module \"v_proj\"");
  expect_refusal(read_adapter(folder(), {}, {{"q_proj", 64, 64}, {"v_proj", 64, 64}}), EXDEV, "it goes from 64 to 64");
}

TEST_F(Parser, RefusesPathsOutOfTheFolder) {
  test::write_adapter(folder(), wish_);
  test::write_adapter(folder("root/inside"), wish_);
  std::filesystem::create_directories(folder("root/links"));
  std::filesystem::create_symlink("../inside/adapter_config.json", folder("root/links") + "/adapter_config.json");
  std::filesystem::create_symlink("../inside/adapter_model.safetensors",
                                  folder("root/links") + "/adapter_model.safetensors");
  // As the cache of a hub has it: links from a folder to files elsewhere below the root.
  EXPECT_EQ(read_adapter("links", folder("root")).status, 0);
  expect_refusal(read_adapter(folder("root/links")), EXDEV, "leads out of the folder");
  expect_refusal(read_adapter("../adapter", folder("root")), EXDEV, "leads out of the folder");
  expect_refusal(read_adapter(folder(), folder("root")), EXDEV, "leads out of the folder");
  std::filesystem::create_symlink(folder(), folder("root/out"));
  expect_refusal(read_adapter("out", folder("root")), EXDEV, "leads out of the folder");
  expect_refusal(read_adapter(folder("missing")), ENOENT, "cannot open the folder");
}

TEST_F(Parser, RefusesWhatIsNoPlainFile) {
  test::write_adapter(folder(), wish_);
  std::filesystem::remove(folder() + "/adapter_model.safetensors");
  ASSERT_EQ(::mkfifo((folder() + "/adapter_model.safetensors").c_str(), 0600), 0);
  expect_refusal(read_adapter(folder()), EINVAL, "no plain file");
}

TEST(Placement, RowsLieInOnePartAndNeverOverlap) {
  const uint64_t seed = test::fresh_seed();
  std::printf("seed %llu (MARU_SEED repeats it)\n", ull{seed});
  test::Random random(seed);
  for (int round = 0; round < 200; ++round) {
    Manifest manifest;
    for (uint64_t i = 0; i < 1 + random.below(6); ++i)
      manifest.modules.push_back(
          {"m" + std::to_string(i), 1 + random.below(300), 1 + random.below(300), uint32_t(1 + random.below(20)), 1});
    manifest.element = Element(1 + random.below(4));
    const uint64_t head = encode_manifest(manifest).size(), part_bytes = 4096 + 64 * random.below(64);
    const std::optional<Placement> placement = place(manifest, manifest.element, head, part_bytes);
    ASSERT_TRUE(placement);
    std::vector<std::vector<bool>> used(placement->part_bytes.size());
    for (size_t part = 0; part < used.size(); ++part) {
      EXPECT_LE(placement->part_bytes[part], part_bytes);
      used[part].resize(placement->part_bytes[part]);
    }
    std::fill_n(used[0].begin(), head, true);
    for (const ModulePlace& module : placement->modules)
      for (const RowsPlace* rows : {&module.a, &module.bt})
        for (uint64_t row = 0; row < rows->rows; ++row) {
          const RowsPlace::Spot spot = rows->spot(row);
          ASSERT_EQ(spot.offset % 64, 0u);
          ASSERT_LT(spot.part, used.size());
          ASSERT_LE(spot.offset + rows->slot_bytes, used[spot.part].size());
          for (uint64_t at = 0; at < rows->slot_bytes; ++at) {
            ASSERT_FALSE(used[spot.part][spot.offset + at]);
            used[spot.part][spot.offset + at] = true;
          }
        }
  }
}

TEST(Manifest, ComesBackFromItsBytesAndNoOthers) {
  Manifest manifest;
  manifest.element = Element::kBfloat16;
  manifest.checksum[3] = 9;
  manifest.modules = {{"model.layers.0.q_proj", 64, 32, 8, 2.0f}, {"x", 1, 1, 1, -1.0f}};
  std::vector<std::byte> bytes = encode_manifest(manifest);
  ASSERT_EQ(bytes.size() % 64, 0u);
  const size_t size = bytes.size();
  bytes.resize(size + 100);
  uint64_t encoded = 0;
  const std::optional<Manifest> again = decode_manifest(bytes, &encoded);
  ASSERT_TRUE(again);
  EXPECT_EQ(encoded, size);
  EXPECT_EQ(again->modules[0].name, "model.layers.0.q_proj");
  EXPECT_EQ(again->checksum, manifest.checksum);
  for (size_t at = 0; at < size; ++at) {
    bytes[at] ^= std::byte{4};
    EXPECT_FALSE(decode_manifest(bytes, nullptr)) << "a changed byte " << at;
    bytes[at] ^= std::byte{4};
  }
  for (size_t shorter = 0; shorter < size; ++shorter)
    EXPECT_FALSE(decode_manifest(std::span(bytes).first(shorter), nullptr));
}

TEST(Weights, ConvertHalvesAsTheProcessorDoes) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    if ((half & 0x7C00) == 0x7C00) continue;
    const uint32_t exponent = half >> 10 & 31, fraction = half & 0x3FF;
    const float sign = half & 0x8000 ? -1.0f : 1.0f;
    const float expected = exponent == 0
                               ? sign * float(fraction) * 0x1p-24f
                               : sign * (1.0f + float(fraction) / 1024.0f) * std::ldexp(1.0f, int(exponent) - 15);
    ASSERT_EQ(float_of_half(uint16_t(half)), expected) << half;
    // Through the processor's own way, 11 at a time so that its loop has a rest.
    uint16_t row[11];
    std::fill_n(row, 11, uint16_t(half));
    float floats[11];
    load_floats(reinterpret_cast<const std::byte*>(row), Element::kFloat16, 11, floats);
    for (const float value : floats) ASSERT_EQ(value, expected) << half;
  }
}

TEST(Weights, CompressionIsWithinHalfAScale) {
  const uint64_t seed = test::fresh_seed();
  std::printf("seed %llu (MARU_SEED repeats it)\n", ull{seed});
  test::Random random(seed);
  std::vector<float> scratch;
  for (int round = 0; round < 200; ++round) {
    const uint64_t columns = 1 + random.below(100);
    std::vector<float> row(columns), back(columns);
    const float size = std::ldexp(1.0f, int(random.below(60)) - 40);
    for (float& weight : row) weight = (float(random.next() >> 40) / float(1 << 24) - 0.5f) * size;
    if (round % 10 == 0) std::ranges::fill(row, 0.0f);
    std::vector<std::byte> slot(slot_bytes_of(Element::kInt8, columns));
    compress_row(reinterpret_cast<const std::byte*>(row.data()), Element::kFloat32, columns, scratch, slot.data());
    load_floats(slot.data(), Element::kInt8, columns, back.data());
    float most = 0;
    for (const float weight : row) most = std::max(most, std::fabs(weight));
    for (uint64_t i = 0; i < columns; ++i) EXPECT_LE(std::fabs(row[i] - back[i]), most / 254.0f * 1.0001f) << i;
  }
}

}  // namespace
}  // namespace maru::adapters
