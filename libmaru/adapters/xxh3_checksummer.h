// A Checksummer with the functions of <xxhash.h>, which the includer has chosen instructions for. Included inside of an
// unnamed namespace.

class Xxh3 : public Checksummer {
 public:
  Xxh3() { XXH3_128bits_reset(&state_); }
  void add(const std::byte* bytes, uint64_t count) override { XXH3_128bits_update(&state_, bytes, count); }
  Checksum sum() const override {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_));
    Checksum checksum;
    std::memcpy(checksum.data(), canonical.digest, checksum.size());
    return checksum;
  }

 private:
  XXH3_state_t state_;
};
