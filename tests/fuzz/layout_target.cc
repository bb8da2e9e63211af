// Any bytes as a layout, in its binary form and as JSON, and any numbers in its fields: each is read or refused with a
// reason, and what is read stays within its storages. The first byte says which.
#include "maru/layout.h"
#include "tests/fuzz/guarded_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace maru::fuzz {
namespace {

constexpr unsigned kForms = 5;
enum Form : unsigned { kBytes, kJson, kFields, kPlan, kKind };

maru_layout usual(uint32_t kind, uint32_t order) {
  maru_layout layout = {};
  layout.size = sizeof(layout);
  layout.kind = kind;
  layout.order = order;
  layout.dtype = MARU_LAYOUT_FLOAT16;
  layout.outer = 2;
  layout.blocks = 3;
  layout.layers = 4;
  layout.page_tokens = 4;
  layout.heads = 8;
  layout.head_dim = 4;
  layout.alignment = 64;
  return layout;
}

// A refusal says why, and leaves what it would have written.
void must_say_why(int status, const maru_layout_reason& reason) {
  must(status <= 0, "a status that is neither success nor an errno");
  must((status == 0) == (reason.text[0] == 0), "a refusal without a reason, or a reason without a refusal");
  must(std::memchr(reason.text, 0, sizeof(reason.text)) != nullptr, "a reason without an end");
}

void must_lie_within(const maru_layout_part& part, const maru_layout_sizes& sizes) {
  must(part.storage < sizes.storages, "a part in no storage");
  must(part.bytes <= sizes.storage_bytes && part.offset <= sizes.storage_bytes - part.bytes,
       "a part outside of its storage");
}

void must_go_there_and_back(const maru_layout& layout) {
  uint8_t bytes[MARU_LAYOUT_ENCODED_BYTES];
  char text[MARU_LAYOUT_JSON_BYTES_MAX];
  maru_layout again = {};
  must(maru_layout_encode(&layout, bytes, nullptr) == 0, "a layout has no bytes");
  must(maru_layout_decode(bytes, sizeof(bytes), &again, nullptr) == 0, "a layout's bytes are refused");
  maru_layout_reason reason = {};
  must(maru_layout_to_json(&layout, text, sizeof(text), &reason) == 0, "a layout has no JSON");
  maru_layout from_text = {};
  must(maru_layout_from_json(text, std::strlen(text), &from_text, &reason) == 0, "a layout's JSON is refused");
  must(std::memcmp(&again, &from_text, sizeof(again)) == 0, "bytes and JSON are two layouts");
  uint8_t encoded_again[MARU_LAYOUT_ENCODED_BYTES];
  must(maru_layout_encode(&again, encoded_again, nullptr) == 0, "a layout that was read has no bytes");
  must(std::memcmp(bytes, encoded_again, sizeof(bytes)) == 0, "one layout has two forms");
}

// First, last and any indices of a layout that was accepted.
void use(const maru_layout& layout, Reader& reader) {
  maru_layout_sizes sizes = {};
  maru_layout_reason reason = {};
  const int status = maru_layout_measure(&layout, &sizes, &reason);
  must_say_why(status, reason);
  if (status < 0) return;
  must_go_there_and_back(layout);
  maru_layout_element element = {};
  uint64_t* const indices[] = {&element.block, &element.layer, &element.outer,
                               &element.token, &element.head,  &element.dim};
  const uint64_t counts[] = {layout.blocks,      layout.layers, layout.outer,
                             layout.page_tokens, layout.heads,  layout.head_dim};
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < std::size(counts); ++i)
      *indices[i] = round == 0 ? counts[i] - 1 : round == 1 ? reader.number(8) % counts[i] : reader.number(8);
    maru_layout_part part = {};
    maru_layout_reason why = {};
    const int located = maru_layout_locate_element(&layout, &element, &part, &why);
    must_say_why(located, why);
    must(round == 2 || located == 0, "an element of the layout is refused");
    if (located < 0) continue;
    must_lie_within(part, sizes);
    must(maru_layout_locate(&layout, element.block, element.layer, element.outer, &part, nullptr) == 0,
         "a region of the layout is refused");
    must_lie_within(part, sizes);
  }
  const size_t room = std::min<uint64_t>(2 * layout.layers, 64);
  maru_layout_part parts[64];
  size_t count = 0;
  const int divided = maru_layout_block_parts(&layout, layout.blocks - 1, parts, room, &count, nullptr);
  must(divided == 0 || divided == -ENOSPC, "the last block is refused");
  if (divided < 0) return;
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) must_lie_within(parts[i], sizes), bytes += parts[i].bytes;
  must(bytes == sizes.block_bytes, "the parts of a block are not the block");
}

maru_layout read_fields(Reader& reader) {
  maru_layout layout = {};
  layout.size = sizeof(layout);
  layout.kind = uint32_t(reader.number(1));
  layout.order = uint32_t(reader.number(1));
  layout.dtype = uint32_t(reader.number(1));
  layout.outer = uint32_t(reader.number(1));
  for (uint64_t maru_layout::* field :
       {&maru_layout::blocks, &maru_layout::layers, &maru_layout::page_tokens, &maru_layout::heads,
        &maru_layout::head_dim, &maru_layout::alignment, &maru_layout::heads_total, &maru_layout::first_head,
        &maru_layout::layers_total, &maru_layout::first_layer})
    layout.*field = reader.number(8);
  return layout;
}

// All of a small layout, so that a plan and its storages stay small.
maru_layout read_small(Reader& reader) {
  maru_layout layout = usual(uint32_t(1 + reader.number(1) % 3), uint32_t(1 + reader.number(1) % 2));
  const uint8_t split = uint8_t(reader.number(1));
  layout.blocks = 1 + reader.number(1) % 4;
  layout.page_tokens = 1 + reader.number(1) % 5;
  layout.alignment = uint64_t{1} << reader.number(1) % 8;
  layout.heads_total = 8;
  layout.layers_total = 4;
  layout.heads = 1 + split % 8;
  layout.first_head = reader.number(1) % 8;
  layout.layers = 1 + split / 8 % 4;
  layout.first_layer = reader.number(1) % 4;
  return layout;
}

class Storages {
 public:
  explicit Storages(const std::vector<maru_layout>& layouts) {
    for (const maru_layout& layout : layouts) {
      maru_layout_sizes sizes = {};
      must(maru_layout_measure(&layout, &sizes, nullptr) == 0, "a layout of a plan is refused");
      for (uint64_t i = 0; i < sizes.storages; ++i) {
        memory_.emplace_back(sizes.allocation_bytes);
        storages_.push_back({memory_.back().data(), sizes.allocation_bytes});
      }
    }
  }
  const std::vector<maru_reslice_storage>& all() const { return storages_; }
  void must_be_whole() const {
    for (const GuardedMemory& each : memory_) each.must_be_whole("a copy went beyond a storage");
  }

 private:
  std::vector<GuardedMemory> memory_;
  std::vector<maru_reslice_storage> storages_;
};

void must_run_within(const maru_reslice* plan, const Storages& sources, const Storages& targets) {
  maru_reslice_totals totals = {};
  must(maru_reslice_measure(plan, &totals) == 0, "a plan has no totals");
  must(totals.source_storages == sources.all().size() && totals.target_storages == targets.all().size(),
       "a plan has another number of storages");
  uint64_t bytes = 0;
  maru_reslice_run runs[16];
  size_t count = 0;
  for (uint64_t first = 0; first < totals.runs; first += count) {
    must(maru_reslice_runs(plan, first, runs, std::size(runs), &count) == 0, "a run of a plan is refused");
    for (size_t i = 0; i < count; ++i) {
      must(runs[i].source_storage < sources.all().size() && runs[i].target_storage < targets.all().size(),
           "no such storage");
      must(runs[i].source_offset + runs[i].bytes <= sources.all()[runs[i].source_storage].bytes,
           "a run beyond a source");
      must(runs[i].target_offset + runs[i].bytes <= targets.all()[runs[i].target_storage].bytes,
           "a run beyond a target");
      bytes += runs[i].bytes;
    }
  }
  must(bytes == totals.bytes, "the runs are not what the plan copies");
}

void plan_and_copy(Reader& reader) {
  std::vector<maru_layout> sources(1 + reader.number(1) % 3), targets(1 + reader.number(1) % 3);
  for (maru_layout& layout : sources) layout = read_small(reader);
  for (maru_layout& layout : targets) layout = read_small(reader);
  // Mostly of as many tokens, so that more than a refusal is tried.
  for (std::vector<maru_layout>* side : {&sources, &targets})
    for (maru_layout& layout : *side) {
      layout.blocks = side->front().blocks;
      layout.page_tokens = side->front().page_tokens;
    }
  std::vector<uint64_t> source_blocks(reader.number(1) % 4), target_blocks(reader.number(1) % 4);
  for (uint64_t& block : source_blocks) block = reader.number(1) % 6;
  for (uint64_t& block : target_blocks) block = reader.number(1) % 6;
  maru_reslice_options options = {};
  options.size = sizeof(options);
  if (!source_blocks.empty()) options.source_blocks = source_blocks.data();
  options.source_blocks_count = source_blocks.size();
  if (!target_blocks.empty()) options.target_blocks = target_blocks.data();
  options.target_blocks_count = target_blocks.size();
  maru_reslice* plan = nullptr;
  maru_layout_reason reason = {};
  const int status =
      maru_reslice_plan(&options, sources.data(), sources.size(), targets.data(), targets.size(), &plan, &reason);
  must_say_why(status, reason);
  must((status == 0) == (plan != nullptr), "a refusal with a plan, or a success without");
  if (status < 0) return;
  const Storages from(sources), to(targets);
  must_run_within(plan, from, to);
  must(maru_reslice_copy(plan, from.all().data(), from.all().size(), to.all().data(), to.all().size(), &reason) == 0,
       "a copy of a plan is refused");
  from.must_be_whole();
  to.must_be_whole();
  maru_reslice_free(plan);
}

// A kind that a layout can have, from any wish, shape and name.
void choose_kind(Reader& reader) {
  const auto wish = uint32_t(reader.number(1) % 6), outer = uint32_t(reader.number(1) % 4);
  std::vector<uint64_t> shape(reader.number(1) % 5);
  const uint64_t blocks = reader.number(2);
  for (uint64_t& extent : shape) extent = reader.number(2);
  uint32_t kind = 0;
  maru_layout_reason reason = {};
  const int status = maru_layout_choose_kind(wish, shape.data(), shape.size(), blocks, outer, &kind, &reason);
  must_say_why(status, reason);
  must(status < 0 || (kind >= MARU_LAYOUT_CONTIGUOUS && kind <= MARU_LAYOUT_SEPARATE_BLOCK),
       "a kind that no layout has");
  std::vector<uint8_t> name = reader.bytes(reader.left());
  name.push_back(0);
  reason = {};
  must_say_why(maru_layout_kind_from_text(reinterpret_cast<const char*>(name.data()), &kind, &reason), reason);
}

}  // namespace

std::vector<Input> first_inputs() {
  std::vector<Input> inputs;
  for (const uint32_t kind : {MARU_LAYOUT_CONTIGUOUS, MARU_LAYOUT_SEPARATE_OUTER, MARU_LAYOUT_SEPARATE_BLOCK}) {
    const maru_layout layout = usual(kind, kind % 2 == 0 ? MARU_LAYOUT_NHD : MARU_LAYOUT_HND);
    uint8_t bytes[MARU_LAYOUT_ENCODED_BYTES];
    char text[MARU_LAYOUT_JSON_BYTES_MAX];
    must(maru_layout_encode(&layout, bytes, nullptr) == 0, "the first layout is refused");
    must(maru_layout_to_json(&layout, text, sizeof(text), nullptr) == 0, "the first layout is refused");
    Writer choice;
    choice.number(kKind, 1)
        .number(kind + 1, 1)
        .number(2, 1)
        .number(2, 1)
        .number(9, 2)
        .number(kind == 2 ? 9 : 2, 2)
        .number(9, 2);
    inputs.push_back(choice.bytes(std::string_view("Layer-Separate_Outer_Contiguous")).take());
    inputs.push_back(Writer().number(kBytes, 1).bytes(bytes).take());
    inputs.push_back(Writer().number(kJson, 1).bytes(std::string_view(text)).take());
    Writer fields;
    fields.number(kFields, 1).number(kind, 1).number(layout.order, 1).number(layout.dtype, 1).number(layout.outer, 1);
    for (const uint64_t field : {layout.blocks, layout.layers, layout.page_tokens, layout.heads, layout.head_dim,
                                 layout.alignment, layout.heads, uint64_t{0}, layout.layers, uint64_t{0}})
      fields.number(field, 8);
    inputs.push_back(fields.take());
    Writer plan;
    plan.number(kPlan, 1).number(1, 1).number(0, 1);
    plan.number(kind - 1, 1)
        .number(0, 1)
        .number(3 + 8 * 3, 1)
        .number(2, 1)
        .number(3, 1)
        .number(6, 1)
        .number(0, 1)
        .number(0, 1);
    plan.number(kind - 1, 1)
        .number(0, 1)
        .number(3 + 8 * 3, 1)
        .number(2, 1)
        .number(3, 1)
        .number(0, 1)
        .number(4, 1)
        .number(0, 1);
    plan.number(0, 1)
        .number(1, 1)
        .number(7 + 8 * 3, 1)
        .number(2, 1)
        .number(3, 1)
        .number(0, 1)
        .number(0, 1)
        .number(0, 1);
    inputs.push_back(plan.number(2, 1).number(2, 1).number(2, 1).number(0, 1).number(1, 1).number(2, 1).take());
  }
  return inputs;
}

}  // namespace maru::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace maru::fuzz;
  Reader reader(data, size);
  const auto form = Form(reader.number(1) % kForms);
  if (form == kPlan) return plan_and_copy(reader), 0;
  if (form == kKind) return choose_kind(reader), 0;
  maru_layout layout = {};
  if (form == kFields) {
    layout = read_fields(reader);
  } else {
    // In memory of just that size, so that a read beyond is seen.
    const std::vector<uint8_t> rest = reader.bytes(reader.left());
    maru_layout_reason reason = {};
    const int status = form == kBytes ? maru_layout_decode(rest.data(), rest.size(), &layout, &reason)
                                      : maru_layout_from_json(reinterpret_cast<const char*>(rest.data()), rest.size(),
                                                              &layout, &reason);
    must_say_why(status, reason);
    must(status == 0 || layout.size == 0, "a refusal that wrote a layout");
    if (status < 0) return 0;
  }
  use(layout, reader);
  return 0;
}
