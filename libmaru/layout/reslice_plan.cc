// Plans in three steps. First: which tokens go from which block to which block (token_segments.h). Second: which source has
// which heads and layers of a target (a piece). Third: the moves, for each piece and each pair of blocks.
#include "libmaru/layout/reslice_plan.h"

#include "libmaru/layout/checked.h"
#include "libmaru/layout/move_builder.h"
#include "libmaru/layout/reason.h"
#include "libmaru/layout/token_segments.h"

#include <algorithm>
#include <cerrno>
#include <numeric>

namespace maru::layout {
namespace {

// Heads that a target has from one source; all numbers count in the whole model.
struct HeadRange {
  size_t source;
  uint64_t first;
  uint64_t count;
  bool operator==(const HeadRange&) const = default;
};

// Layers whose heads come from the same sources.
struct Band {
  uint64_t first_layer;
  uint64_t layers;
  std::vector<HeadRange> heads;
};

struct Shard {
  const Geometry* geometry;
  uint32_t first_storage;
};

// Checks the fields in which two layouts must agree.
int check_pair(const maru_layout& first, const char* side, size_t index, const maru_layout& other,
               maru_layout_reason* reason) {
  const struct {
    const char* name;
    uint64_t expected, found;
  } fields[] = {
      {"dtype", first.dtype, other.dtype},
      {"outer", first.outer, other.outer},
      {"head_dim", first.head_dim, other.head_dim},
      {"heads_total", first.heads_total, other.heads_total},
      {"layers_total", first.layers_total, other.layers_total},
  };
  for (const auto& field : fields)
    if (field.expected != field.found)
      return fail(reason, EINVAL, "%s of %s %zu is %llu, expected %llu as source 0 has", field.name, side, index,
                  ull(field.found), ull(field.expected));
  return 0;
}

int check_side(const std::vector<Geometry>& side, const char* name, const maru_layout& first_source,
               maru_layout_reason* reason) {
  const maru_layout& first = side.front().layout;
  for (size_t i = 0; i < side.size(); ++i) {
    const maru_layout& layout = side[i].layout;
    if (const int status = check_pair(first_source, name, i, layout, reason); status < 0) return status;
    if (layout.blocks != first.blocks)
      return fail(reason, EINVAL, "blocks of %s %zu is %llu, expected %llu as %s 0 has", name, i, ull(layout.blocks),
                  ull(first.blocks), name);
    if (layout.page_tokens != first.page_tokens)
      return fail(reason, EINVAL, "page_tokens of %s %zu is %llu, expected %llu as %s 0 has", name, i,
                  ull(layout.page_tokens), ull(first.page_tokens), name);
  }
  return 0;
}

bool has_layer(const maru_layout& layout, uint64_t layer) {
  return layer >= layout.first_layer && layer - layout.first_layer < layout.layers;
}

bool has_head(const maru_layout& layout, uint64_t head) {
  return head >= layout.first_head && head - layout.first_head < layout.heads;
}

// The first layer after this one from which on other sources may have heads.
uint64_t end_of_band(const std::vector<Geometry>& sources, uint64_t layer, uint64_t end) {
  for (const Geometry& source : sources)
    for (const uint64_t edge : {source.layout.first_layer, source.layout.first_layer + source.layout.layers})
      if (edge > layer) end = std::min(end, edge);
  return end;
}

int find_heads(const std::vector<Geometry>& sources, const maru_layout& target, size_t index, uint64_t layer,
               std::vector<HeadRange>& ret_heads, maru_layout_reason* reason) {
  const uint64_t end = target.first_head + target.heads;
  for (uint64_t head = target.first_head; head < end;) {
    const auto source = std::find_if(sources.begin(), sources.end(), [&](const Geometry& each) {
      return has_layer(each.layout, layer) && has_head(each.layout, head);
    });
    if (source == sources.end())
      return fail(reason, ENODATA, "no source has head %llu of layer %llu, which target %zu wants", ull(head),
                  ull(layer), index);
    const uint64_t count = std::min(source->layout.first_head + source->layout.heads, end) - head;
    ret_heads.push_back({size_t(source - sources.begin()), head, count});
    head += count;
  }
  return 0;
}

int find_bands(const std::vector<Geometry>& sources, const maru_layout& target, size_t index,
               std::vector<Band>& ret_bands, maru_layout_reason* reason) {
  const uint64_t end = target.first_layer + target.layers;
  for (uint64_t layer = target.first_layer; layer < end;) {
    const uint64_t next = end_of_band(sources, layer, end);
    Band band = {layer, next - layer, {}};
    if (const int status = find_heads(sources, target, index, layer, band.heads, reason); status < 0) return status;
    if (!ret_bands.empty() && ret_bands.back().heads == band.heads) {
      ret_bands.back().layers += band.layers;
    } else {
      ret_bands.push_back(std::move(band));
    }
    layer = next;
  }
  return 0;
}

// From one block to another follows the next pattern: a block further, or some tokens where the other side's blocks are
// smaller.
uint64_t step_of(const Geometry& geometry, uint64_t tokens) {
  return tokens == geometry.layout.page_tokens ? geometry.sizes.block_stride : tokens * geometry.token_stride;
}

struct Piece {
  Shard source;
  Shard target;
  HeadRange heads;
  uint64_t first_layer;  // of the model
  uint64_t layers;       // in one draft: more than one where both sides have them in one storage
};

// All of the piece but its place in the blocks, which `segment` says.
Draft draft_of(const Piece& piece, const Segment& segment) {
  const Geometry &source = *piece.source.geometry, &target = *piece.target.geometry;
  const uint64_t source_layer = piece.first_layer - source.layout.first_layer;
  const uint64_t target_layer = piece.first_layer - target.layout.first_layer;
  Draft draft = {};
  draft.source = piece.source.first_storage + uint32_t(source.storage(source_layer));
  draft.target = piece.target.first_storage + uint32_t(target.storage(target_layer));
  draft.source_offset = source.offset(segment.source_block, source_layer, 0) +
                        segment.source_token * source.token_stride +
                        (piece.heads.first - source.layout.first_head) * source.head_stride;
  draft.target_offset = target.offset(segment.target_block, target_layer, 0) +
                        segment.target_token * target.token_stride +
                        (piece.heads.first - target.layout.first_head) * target.head_stride;
  draft.run_bytes = source.head_bytes;
  draft.loop = {{{1, step_of(source, segment.tokens), step_of(target, segment.tokens)},
                 {piece.layers, source.sizes.layer_stride, target.sizes.layer_stride},
                 {source.layout.outer, source.sizes.outer_stride, target.sizes.outer_stride},
                 {segment.tokens, source.token_stride, target.token_stride},
                 {piece.heads.count, source.head_stride, target.head_stride}}};
  return draft;
}

int add_moves(const std::vector<Band>& bands, const std::vector<Shard>& sources, const Shard& target,
              const std::vector<Segment>& segments, MoveBuilder& builder, maru_layout_reason* reason) {
  for (const Band& band : bands)
    for (const HeadRange& heads : band.heads) {
      const Shard& source = sources[heads.source];
      const bool is_separate = source.geometry->is_separate() || target.geometry->is_separate();
      const uint64_t layers = is_separate ? 1 : band.layers;
      for (uint64_t layer = 0; layer < band.layers; layer += layers) {
        const Piece piece = {source, target, heads, band.first_layer + layer, layers};
        for (const Segment& segment : segments) {
          builder.add(draft_of(piece, segment));
          if (builder.is_full())
            return fail(reason, E2BIG, "the plan has more than %u moves; plan fewer blocks at a time",
                        MARU_RESLICE_MOVES_MAX - 1);
        }
      }
    }
  return 0;
}

std::vector<Shard> add_storages(const std::vector<Geometry>& side, std::vector<StorageNeed>& ret_needs) {
  std::vector<Shard> shards;
  for (const Geometry& geometry : side) {
    shards.push_back({&geometry, uint32_t(ret_needs.size())});
    ret_needs.insert(ret_needs.end(), geometry.sizes.storages,
                     {geometry.layout.alignment, geometry.sizes.storage_bytes});
  }
  return shards;
}

int count_bytes(const std::vector<Geometry>& targets, uint64_t target_blocks, uint64_t& ret_bytes,
                maru_layout_reason* reason) {
  Checked bytes(0);
  for (const Geometry& target : targets) bytes = bytes + Checked(target.sizes.block_bytes) * target_blocks;
  if (!bytes.fits(MARU_LAYOUT_STORAGE_BYTES_MAX))
    return fail(reason, EOVERFLOW, "the plan would copy more than %llu bytes", ull(MARU_LAYOUT_STORAGE_BYTES_MAX));
  ret_bytes = bytes.value();
  return 0;
}

std::vector<uint64_t> blocks_of(const uint64_t* blocks, size_t count, uint64_t of_layout) {
  if (blocks != nullptr) return {blocks, blocks + std::min<size_t>(count, size_t{MARU_RESLICE_BLOCKS_MAX} + 1)};
  std::vector<uint64_t> all(std::min<uint64_t>(of_layout, uint64_t{MARU_RESLICE_BLOCKS_MAX} + 1));
  std::iota(all.begin(), all.end(), uint64_t{0});
  return all;
}

}  // namespace

int plan_reslice(const maru_reslice_options* options, const std::vector<Geometry>& sources,
                 const std::vector<Geometry>& targets, maru_reslice& plan, maru_layout_reason* reason) {
  const maru_layout &source = sources.front().layout, &target = targets.front().layout;
  if (const int status = check_side(sources, "source", source, reason); status < 0) return status;
  if (const int status = check_side(targets, "target", source, reason); status < 0) return status;
  const maru_reslice_options none = {};
  const maru_reslice_options& asked = options != nullptr ? *options : none;
  const auto source_blocks = blocks_of(asked.source_blocks, asked.source_blocks_count, source.blocks);
  const auto target_blocks = blocks_of(asked.target_blocks, asked.target_blocks_count, target.blocks);
  std::vector<Segment> segments;
  if (const int status = pair_tokens({"source", source_blocks, source.blocks, source.page_tokens},
                                     {"target", target_blocks, target.blocks, target.page_tokens}, segments, reason);
      status < 0)
    return status;
  if (const int status = count_bytes(targets, target_blocks.size(), plan.totals.bytes, reason); status < 0)
    return status;

  const std::vector<Shard> source_shards = add_storages(sources, plan.sources);
  const std::vector<Shard> target_shards = add_storages(targets, plan.targets);
  MoveBuilder builder(plan);
  for (size_t i = 0; i < targets.size(); ++i) {
    std::vector<Band> bands;
    if (const int status = find_bands(sources, targets[i].layout, i, bands, reason); status < 0) return status;
    if (const int status = add_moves(bands, source_shards, target_shards[i], segments, builder, reason); status < 0)
      return status;
  }
  builder.finish();
  plan.totals.moves = plan.moves.size();
  plan.totals.source_storages = plan.sources.size();
  plan.totals.target_storages = plan.targets.size();
  return 0;
}

}  // namespace maru::layout
