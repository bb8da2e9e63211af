// MessagePack, as far as the formats of routers and of LMCache use it. Written by hand, because the input comes from outside:
// the libraries in Debian allocate as much as a length in the input says, and the C++ library brings Boost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace maru::daemon {

class MsgpackWriter {
 public:
  void nil() { put(0xc0); }
  void boolean(bool value) { put(value ? 0xc3 : 0xc2); }
  void whole(uint64_t value);
  void negative(int64_t value);  // any value; the shortest form
  void real(double value);
  void text(std::string_view value);
  void binary(std::string_view value);
  void array(size_t count);                              // that many values follow
  void map(size_t count);                                // that many pairs of values follow
  void raw(std::string_view value) { bytes_ += value; }  // of MessagePack, whole

  size_t size() const { return bytes_.size(); }
  const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  void put(uint8_t byte) { bytes_.push_back(char(byte)); }
  template <typename T>
  void put_number(uint8_t type, T value);
  void put_length(size_t length, int fixed_max, uint8_t fixed, uint8_t type8, uint8_t type16, uint8_t type32);

  std::string bytes_;
};

// Reads one value after the other out of bytes that may be anything. After a mistake each call fails, so a caller may look at
// is_good() once at the end. Views are into the bytes. No call allocates, and each takes as long as the bytes that it passes.
class MsgpackReader {
 public:
  enum class Type : uint8_t { kNil, kBoolean, kWhole, kNegative, kReal, kText, kBinary, kArray, kMap, kOther, kEnd };

  explicit MsgpackReader(std::string_view bytes) : rest_(bytes) {}

  Type peek() const;
  bool is_good() const { return is_good_; }
  bool is_at_end() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }

  bool nil();                   // true, and it is passed, if it is one
  bool whole(uint64_t& ret);    // 0 to 2^64-1
  bool integer(uint64_t& ret);  // also a negative one, as its 64 bits
  bool number(double& ret);     // whole, negative or real
  bool boolean(bool& ret);
  bool text(std::string_view& ret);  // a text or bytes
  bool array(size_t& ret);           // how many values follow: never more than bytes are left
  bool map(size_t& ret);             // how many pairs follow, likewise
  bool skip();                       // one value with all that is in it, nested kDepthMax deep at most

  static constexpr int kDepthMax = 32;

 private:
  bool fail() {
    is_good_ = false;
    rest_ = {};
    return false;
  }
  bool take(size_t bytes, std::string_view& ret);
  bool take_number(size_t bytes, uint64_t& ret);
  bool length(uint8_t type, size_t& ret);
  bool skip(int depth);

  std::string_view rest_;
  bool is_good_ = true;
};

}  // namespace maru::daemon
