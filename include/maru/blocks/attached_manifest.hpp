// The manifest of a namespace in a pool. The first process that attaches describes the blocks, and the others must agree.
// C++20, header only, for programs that include maru/blocks/manifest.hpp; it describes the bytes and the keys in the pool.
#ifndef MARU_BLOCKS_ATTACHED_MANIFEST_HPP
#define MARU_BLOCKS_ATTACHED_MANIFEST_HPP

#include <maru/blocks/manifest.hpp>

namespace maru {
inline namespace api_0 {

// Holds the two blocks of a namespace, so that its manifest stays in the pool while this lives. Nothing else keeps a namespace:
// without holders the pool may evict it, and the next attach() begins it anew. Blocks of the former manifest may still be there
// then; Manifest::salt_hash() keeps their names apart. Goes before its client. Movable; one thread at a time.
class AttachedManifest {
 public:
  // Holds the namespace when it has this manifest. Stores both when the pool has no such namespace, and refuses otherwise.
  // Reads no block of the namespace. `space` is printable ASCII of at most kNamespaceBytesMax bytes. Blocks as maru_store()
  // does. Errors: EEXIST the namespace has a manifest that differs, and the reason names the first field with both values;
  // EBADMSG the pool's bytes under these keys are damaged; EPROTONOSUPPORT they have another version; the errors of
  // Manifest::encode, maru_store_copy and maru_retrieve (EROFS a client that only reads finds no such namespace). After an
  // error this holds no block, and takes back the manifest that it stored.
  static Answer<AttachedManifest> attach(Client& client, std::string_view space, const Manifest& manifest,
                                         uint64_t tenant = 0);
  // The manifest of a namespace. Errors: ENOENT there is none; the errors of attach.
  static Answer<Manifest> find(Client& client, std::string_view space, uint64_t tenant = 0);
  // The manifest of a fingerprint. Errors: likewise.
  static Answer<Manifest> find(Client& client, const ManifestFingerprint& fingerprint, uint64_t tenant = 0);

  const ManifestFingerprint& fingerprint() const { return fingerprint_; }

 private:
  static constexpr size_t kRecordBytes = 48;
  static std::string manifest_key(const ManifestFingerprint& fingerprint) {
    return "maru.manifest." + to_text(fingerprint);
  }
  static std::string namespace_key(std::string_view space) { return "maru.namespace." + std::string(space); }
  static std::vector<std::byte> record_of(const ManifestFingerprint& fingerprint);
  static Answer<ManifestFingerprint> read_record(std::span<const std::byte> bytes);
  static Answer<View> look(Client& client, const std::string& key, uint64_t tenant);
  static Answer<View> store(Client& client, const std::string& key, uint64_t tenant, std::span<const std::byte> bytes,
                            maru_block parent, maru_block& ret_new);
  static Refusal refuse_other(Client& client, const ManifestFingerprint& found, const Manifest& expected,
                              uint64_t tenant);
  Refusal hold(Client& client, std::string_view space, const Manifest& manifest, uint64_t tenant, maru_block& ret_new);

  View manifest_, space_;
  ManifestFingerprint fingerprint_{};
};

inline std::vector<std::byte> AttachedManifest::record_of(const ManifestFingerprint& fingerprint) {
  blocks_detail::ByteWriter out;
  out.put("MARUNAME", 8);
  out.put(blocks_detail::kNamespaceVersion);
  out.put(uint32_t(kRecordBytes));
  out.put(fingerprint);
  out.put(uint64_t(0));
  return out.close();
}

inline Answer<ManifestFingerprint> AttachedManifest::read_record(std::span<const std::byte> bytes) {
  using namespace blocks_detail;
  if (const Refusal bad =
          check_frame<uint32_t>("namespace", "MARUNAME", kNamespaceVersion, 12, kRecordBytes, kRecordBytes, bytes);
      bad.code != 0)
    return bad;
  ManifestFingerprint fingerprint;
  std::memcpy(fingerprint.data(), bytes.data() + 16, fingerprint.size());
  return fingerprint;
}

inline Answer<View> AttachedManifest::look(Client& client, const std::string& key, uint64_t tenant) {
  Outcome<View> found = client.retrieve(Key(key, tenant));
  if (found) return std::move(*found);
  return blocks_detail::refuse(found.error(), "%.100s: errno %d of maru_retrieve", key.c_str(), found.error());
}

// The block under the key, stored if there was none. ret_new: the block, when this call stored it.
inline Answer<View> AttachedManifest::store(Client& client, const std::string& key, uint64_t tenant,
                                            std::span<const std::byte> bytes, maru_block parent, maru_block& ret_new) {
  // A stored block may be evicted before it is held. Each turn needs a pool that evicts its newest block.
  constexpr int kTries = 64;
  maru_store_options options = store_options();
  options.priority = UINT32_MAX;
  options.parent = parent;
  for (int tries = 0; tries < kTries; ++tries) {
    Answer<View> found = look(client, key, tenant);
    if (found || found.error() != ENOENT) return found;
    const Outcome<Stored> stored = client.store_copy(Key(key, tenant), bytes, options);
    if (!stored)
      return blocks_detail::refuse(stored.error(), "%.100s: errno %d of maru_store_copy", key.c_str(), stored.error());
    if (stored->is_new) ret_new = stored->block;
  }
  return blocks_detail::refuse(EAGAIN, "%.100s: the pool evicts it as soon as it is stored: make room", key.c_str());
}

// Refuses a namespace that has the manifest `found` in place of `expected`.
inline Refusal AttachedManifest::refuse_other(Client& client, const ManifestFingerprint& found,
                                              const Manifest& expected, uint64_t tenant) {
  using namespace blocks_detail;
  const Answer<Manifest> theirs = find(client, found, tenant);
  if (theirs)
    if (const Answer<void> same = theirs->expect(expected); !same)
      return refuse(same.error(), "%s", same.reason().data());
  return refuse(EEXIST, "fingerprint: found %s, whose manifest cannot be read, expected %s", to_text(found).c_str(),
                to_text(*expected.fingerprint()).c_str());
}

inline Refusal AttachedManifest::hold(Client& client, std::string_view space, const Manifest& manifest, uint64_t tenant,
                                      maru_block& ret_new) {
  using namespace blocks_detail;
  const std::vector<std::byte> bytes = *manifest.encode();
  const std::string key = namespace_key(space);
  const auto check = [&](const View& name) {
    const Answer<ManifestFingerprint> found = read_record(name.bytes());
    if (!found) return refuse(found.error(), "%.60s: %.180s", key.c_str(), found.reason().data());
    return *found == fingerprint_ ? Refusal{} : refuse_other(client, *found, manifest, tenant);
  };
  Answer<View> name = look(client, key, tenant);
  if (!name && name.error() != ENOENT) return refuse(name.error(), "%s", name.reason().data());
  if (name)
    if (const Refusal refused = check(*name); refused.code != 0) return refused;

  Answer<View> of_manifest = store(client, manifest_key(fingerprint_), tenant, bytes, 0, ret_new);
  if (!of_manifest) return refuse(of_manifest.error(), "%s", of_manifest.reason().data());
  const std::span<const std::byte> found = of_manifest->bytes();
  if (found.size() != bytes.size() || std::memcmp(found.data(), bytes.data(), bytes.size()) != 0)
    return refuse(EBADMSG, "%s: found other bytes than those of this manifest: delete this block",
                  manifest_key(fingerprint_).c_str());
  manifest_ = std::move(*of_manifest);

  if (!name) {
    maru_block new_name = 0;
    name = store(client, key, tenant, record_of(fingerprint_), manifest_.block(), new_name);
    if (!name) return refuse(name.error(), "%s", name.reason().data());
    if (const Refusal refused = check(*name); refused.code != 0) return refused;
  }
  space_ = std::move(*name);
  return {};
}

inline Answer<AttachedManifest> AttachedManifest::attach(Client& client, std::string_view space,
                                                         const Manifest& manifest, uint64_t tenant) {
  using namespace blocks_detail;
  if (const Refusal bad = check_text("namespace", space, 1, kNamespaceBytesMax); bad.code != 0) return bad;
  const Answer<ManifestFingerprint> fingerprint = manifest.fingerprint();
  if (!fingerprint) return refuse(fingerprint.error(), "%s", fingerprint.reason().data());
  AttachedManifest attached;
  attached.fingerprint_ = *fingerprint;
  maru_block new_manifest = 0;
  const Refusal refused = attached.hold(client, space, manifest, tenant, new_manifest);
  if (refused.code == 0) return attached;
  attached = {};
  // Others that hold it by now keep it.
  if (new_manifest != 0) maru_delete_block(client.c(), new_manifest, MARU_DELETE_UNPINNED);
  return refused;
}

inline Answer<Manifest> AttachedManifest::find(Client& client, std::string_view space, uint64_t tenant) {
  using namespace blocks_detail;
  if (const Refusal bad = check_text("namespace", space, 1, kNamespaceBytesMax); bad.code != 0) return bad;
  const Answer<View> name = look(client, namespace_key(space), tenant);
  if (!name) return refuse(name.error(), "%s", name.reason().data());
  const Answer<ManifestFingerprint> found = read_record(name->bytes());
  if (!found) return refuse(found.error(), "%s", found.reason().data());
  return find(client, *found, tenant);
}

inline Answer<Manifest> AttachedManifest::find(Client& client, const ManifestFingerprint& fingerprint,
                                               uint64_t tenant) {
  using namespace blocks_detail;
  const Answer<View> found = look(client, manifest_key(fingerprint), tenant);
  if (!found) return refuse(found.error(), "%s", found.reason().data());
  Answer<Manifest> manifest = Manifest::decode(found->bytes());
  if (!manifest) return refuse(manifest.error(), "%s", manifest.reason().data());
  // A block that something else stored under this key names another manifest.
  if (*manifest->fingerprint() != fingerprint)
    return refuse(EBADMSG, "fingerprint: found %s, expected %s: delete the block %s",
                  to_text(*manifest->fingerprint()).c_str(), to_text(fingerprint).c_str(),
                  manifest_key(fingerprint).c_str());
  return manifest;
}

}  // namespace api_0
}  // namespace maru

#endif
