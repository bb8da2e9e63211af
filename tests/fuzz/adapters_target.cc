// Any bytes as the files of an adapter, and as the manifest in a block: each is read or refused with a reason, and what is read
// agrees with itself. The first byte says which.
#include "libmaru/adapters/manifest.h"
#include "libmaru/adapters/peft_config.h"
#include "libmaru/adapters/placement.h"
#include "libmaru/adapters/tensor_list.h"
#include "tests/fuzz/target.h"

#include <cstring>
#include <string_view>

namespace maru::fuzz {
namespace {

using namespace maru::adapters;

constexpr unsigned kForms = 4;
enum Form : unsigned { kTensors, kConfig, kBoth, kManifest };

constexpr std::string_view kHeader =
    R"({"__metadata__":{"format":"pt"},)"
    R"("base_model.model.m.q_proj.lora_A.weight":{"dtype":"F16","shape":[2,4],"data_offsets":[0,16]},)"
    R"("base_model.model.m.q_proj.lora_B.weight":{"dtype":"F16","shape":[3,2],"data_offsets":[16,28]}})";
constexpr std::string_view kText =
    R"({"peft_type":"LORA","r":2,"lora_alpha":4,"base_model_name_or_path":"b","target_modules":["q_proj"],)"
    R"("rank_pattern":{"v":3},"alpha_pattern":{},"use_rslora":false,"bias":"none"})";

void must_say_why(int status, const maru_adapters_reason& reason) {
  must(status <= 0, "a status that is neither success nor an errno");
  must((status == 0) == (reason.text[0] == 0), "a refusal without a reason, or a reason without a refusal");
  must(std::memchr(reason.text, 0, sizeof(reason.text)) != nullptr, "a reason without an end");
}

void must_cover(const std::vector<Tensor>& tensors, uint64_t data_bytes) {
  uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    must(tensor.offset == end, "a gap or an overlap between tensors");
    must(tensor.rows > 0 && tensor.columns > 0 &&
             tensor.bytes == tensor.rows * tensor.columns * element_bytes(tensor.element),
         "a tensor whose shape is not its bytes");
    end += tensor.bytes;
  }
  must(end == data_bytes, "a rest that no tensor has");
}

// A manifest that was accepted has a place for each of its rows, and comes back from its bytes.
void use(const Manifest& manifest) {
  for (const Module& module : manifest.modules)
    must(module.rank >= 1 && module.rank <= kRankMax, "a rank out of bounds");
  const std::vector<std::byte> bytes = encode_manifest(manifest);
  uint64_t encoded = 0;
  const std::optional<Manifest> again = decode_manifest(bytes, &encoded);
  must(again && encoded == bytes.size() && again->modules.size() == manifest.modules.size(),
       "a manifest does not come back");
  if (manifest.modules.size() > 64) return;
  const std::optional<Placement> placement = place(manifest, manifest.element, bytes.size(), 64u << 20);
  if (!placement) return;
  for (const ModulePlace& module : placement->modules)
    for (const RowsPlace* rows : {&module.a, &module.bt})
      for (const uint64_t row : {uint64_t{0}, rows->rows - 1}) {
        const RowsPlace::Spot spot = rows->spot(row);
        must(spot.part < placement->part_bytes.size() &&
                 spot.offset + rows->slot_bytes <= placement->part_bytes[spot.part],
             "a row outside of its part");
      }
}

}  // namespace

std::vector<Input> first_inputs() {
  std::vector<Input> inputs;
  inputs.push_back(Writer().number(kTensors, 1).number(28, 4).bytes(kHeader).take());
  inputs.push_back(Writer().number(kConfig, 1).bytes(kText).take());
  inputs.push_back(
      Writer().number(kBoth, 1).number(28, 4).number(kHeader.size(), 2).bytes(kHeader).bytes(kText).take());
  Manifest manifest;
  manifest.modules = {{"m.q_proj", 4, 3, 2, 2.0f}, {"m.v_proj", 8, 3, 2, 2.0f}};
  inputs.push_back(Writer().number(kManifest, 1).bytes(encode_manifest(manifest)).take());
  return inputs;
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru::fuzz;
  Reader reader(data, size);
  const auto form = Form(reader.number(1) % kForms);
  maru_adapters_reason reason = {};
  if (form == kManifest) {
    const std::vector<uint8_t> bytes = reader.bytes(reader.left());
    const std::optional<Manifest> manifest = decode_manifest(std::as_bytes(std::span(bytes)), nullptr);
    if (manifest) use(*manifest);
    return 0;
  }
  std::vector<Tensor> tensors;
  PeftConfig config;
  if (form != kConfig) {
    const uint64_t data_bytes = reader.number(4);
    // In memory of just that size, so that a read beyond is seen.
    const std::vector<uint8_t> header = reader.bytes(form == kBoth ? reader.number(2) : reader.left());
    const int status = parse_tensor_list(std::as_bytes(std::span(header)), data_bytes, &tensors, &reason);
    must_say_why(status, reason);
    if (status < 0) return 0;
    must_cover(tensors, data_bytes);
  }
  if (form == kTensors) return 0;
  const std::vector<uint8_t> text = reader.bytes(reader.left());
  int status = parse_peft_config({reinterpret_cast<const char*>(text.data()), text.size()}, &config, &reason);
  must_say_why(status, reason);
  if (status < 0 || form == kConfig) return 0;
  Manifest manifest;
  std::vector<ModuleTensors> own;
  status = make_manifest(config, tensors, {}, &manifest, &own, &reason);
  must_say_why(status, reason);
  if (status == 0) use(manifest);
  return 0;
}
