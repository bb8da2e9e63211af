#include "daemon/base/msgpack.h"

#include <bit>
#include <cstring>

namespace maru::daemon {
namespace {

// Most significant byte first.
void append_number(std::string& bytes, uint64_t value, size_t width) {
  for (size_t i = width; i-- > 0;) bytes.push_back(char(value >> (8 * i)));
}

}  // namespace

// -- writer -----------------------------------------------------------------------------------------------------------

template <typename T>
void MsgpackWriter::put_number(uint8_t type, T value) {
  put(type);
  append_number(bytes_, uint64_t(value), sizeof(T));
}

void MsgpackWriter::whole(uint64_t value) {
  if (value < 0x80)
    put(uint8_t(value));
  else if (value <= UINT8_MAX)
    put_number(0xcc, uint8_t(value));
  else if (value <= UINT16_MAX)
    put_number(0xcd, uint16_t(value));
  else if (value <= UINT32_MAX)
    put_number(0xce, uint32_t(value));
  else
    put_number(0xcf, value);
}

void MsgpackWriter::negative(int64_t value) {
  if (value >= 0)
    whole(uint64_t(value));
  else if (value >= -32)
    put(uint8_t(value));
  else
    put_number(0xd3, value);
}

void MsgpackWriter::real(double value) { put_number(0xcb, std::bit_cast<uint64_t>(value)); }

void MsgpackWriter::put_length(size_t length, int fixed_max, uint8_t fixed, uint8_t type8, uint8_t type16,
                               uint8_t type32) {
  if (fixed_max >= 0 && length <= size_t(fixed_max))
    put(uint8_t(fixed | length));
  else if (type8 != 0 && length <= UINT8_MAX)
    put_number(type8, uint8_t(length));
  else if (length <= UINT16_MAX)
    put_number(type16, uint16_t(length));
  else
    put_number(type32, uint32_t(length));
}

void MsgpackWriter::text(std::string_view value) {
  put_length(value.size(), 31, 0xa0, 0xd9, 0xda, 0xdb);
  bytes_ += value;
}

void MsgpackWriter::binary(std::string_view value) {
  put_length(value.size(), -1, 0, 0xc4, 0xc5, 0xc6);
  bytes_ += value;
}

void MsgpackWriter::array(size_t count) { put_length(count, 15, 0x90, 0, 0xdc, 0xdd); }
void MsgpackWriter::map(size_t count) { put_length(count, 15, 0x80, 0, 0xde, 0xdf); }

// -- reader -----------------------------------------------------------------------------------------------------------

MsgpackReader::Type MsgpackReader::peek() const {
  if (rest_.empty()) return Type::kEnd;
  const uint8_t type = uint8_t(rest_[0]);
  if (type < 0x80) return Type::kWhole;
  if (type < 0x90) return Type::kMap;
  if (type < 0xa0) return Type::kArray;
  if (type < 0xc0) return Type::kText;
  if (type >= 0xe0) return Type::kNegative;
  switch (type) {
    case 0xc0: return Type::kNil;
    case 0xc2:
    case 0xc3: return Type::kBoolean;
    case 0xc4:
    case 0xc5:
    case 0xc6: return Type::kBinary;
    case 0xca:
    case 0xcb: return Type::kReal;
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf: return Type::kWhole;
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3: return Type::kNegative;
    case 0xd9:
    case 0xda:
    case 0xdb: return Type::kText;
    case 0xdc:
    case 0xdd: return Type::kArray;
    case 0xde:
    case 0xdf: return Type::kMap;
    default: return Type::kOther;
  }
}

bool MsgpackReader::take(size_t bytes, std::string_view& ret) {
  if (bytes > rest_.size()) return fail();
  ret = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return true;
}

bool MsgpackReader::take_number(size_t bytes, uint64_t& ret) {
  std::string_view digits;
  if (!take(bytes, digits)) return false;
  ret = 0;
  for (const char digit : digits) ret = ret << 8 | uint8_t(digit);
  return true;
}

bool MsgpackReader::nil() {
  if (peek() != Type::kNil) return false;
  rest_.remove_prefix(1);
  return true;
}

bool MsgpackReader::boolean(bool& ret) {
  if (peek() != Type::kBoolean) return fail();
  ret = uint8_t(rest_[0]) == 0xc3;
  rest_.remove_prefix(1);
  return true;
}

bool MsgpackReader::whole(uint64_t& ret) {
  const Type type = peek();
  uint64_t value = 0;
  if ((type != Type::kWhole && type != Type::kNegative) || !integer(value)) return fail();
  if (type == Type::kNegative && int64_t(value) < 0) return fail();
  ret = value;
  return true;
}

bool MsgpackReader::integer(uint64_t& ret) {
  const Type kind = peek();
  if (kind != Type::kWhole && kind != Type::kNegative) return fail();
  const uint8_t type = uint8_t(rest_[0]);
  rest_.remove_prefix(1);
  if (type < 0x80) {
    ret = type;
    return true;
  }
  if (type >= 0xe0) {
    ret = uint64_t(int64_t(int8_t(type)));
    return true;
  }
  const size_t width = size_t(1) << (type & 3);  // 0xcc to 0xcf, 0xd0 to 0xd3
  if (!take_number(width, ret)) return false;
  if (kind == Type::kNegative && width < 8) {
    const int unused = int(64 - 8 * width);
    ret = uint64_t(int64_t(ret << unused) >> unused);
  }
  return true;
}

bool MsgpackReader::number(double& ret) {
  if (peek() == Type::kReal) {
    const bool is_double = uint8_t(rest_[0]) == 0xcb;
    rest_.remove_prefix(1);
    uint64_t bits = 0;
    if (!take_number(is_double ? 8 : 4, bits)) return false;
    ret = is_double ? std::bit_cast<double>(bits) : double(std::bit_cast<float>(uint32_t(bits)));
    return true;
  }
  const bool is_negative = peek() == Type::kNegative;
  uint64_t value = 0;
  if (!integer(value)) return false;
  ret = is_negative ? double(int64_t(value)) : double(value);
  return true;
}

// The length behind a type byte that is not fixed; the byte is passed, too.
bool MsgpackReader::length(uint8_t type, size_t& ret) {
  size_t width = 0;
  switch (type) {
    case 0xc4:
    case 0xd9: width = 1; break;
    case 0xc5:
    case 0xda:
    case 0xdc:
    case 0xde: width = 2; break;
    case 0xc6:
    case 0xdb:
    case 0xdd:
    case 0xdf: width = 4; break;
    default: return fail();
  }
  rest_.remove_prefix(1);
  uint64_t value = 0;
  if (!take_number(width, value)) return false;
  ret = size_t(value);
  return true;
}

bool MsgpackReader::text(std::string_view& ret) {
  const Type kind = peek();
  if (kind != Type::kText && kind != Type::kBinary) return fail();
  const uint8_t type = uint8_t(rest_[0]);
  size_t bytes = type & 0x1f;
  if (type >= 0xa0 && type < 0xc0)
    rest_.remove_prefix(1);
  else if (!length(type, bytes))
    return false;
  return take(bytes, ret);
}

bool MsgpackReader::array(size_t& ret) {
  if (peek() != Type::kArray) return fail();
  const uint8_t type = uint8_t(rest_[0]);
  size_t count = type & 0x0f;
  if (type < 0xa0)
    rest_.remove_prefix(1);
  else if (!length(type, count))
    return false;
  if (count > rest_.size()) return fail();  // each value has a byte at least
  ret = count;
  return true;
}

bool MsgpackReader::map(size_t& ret) {
  if (peek() != Type::kMap) return fail();
  const uint8_t type = uint8_t(rest_[0]);
  size_t count = type & 0x0f;
  if (type < 0x90)
    rest_.remove_prefix(1);
  else if (!length(type, count))
    return false;
  if (count > rest_.size() / 2) return fail();
  ret = count;
  return true;
}

bool MsgpackReader::skip() { return skip(0); }

bool MsgpackReader::skip(int depth) {
  if (depth > kDepthMax) return fail();
  switch (peek()) {
    case Type::kNil:
    case Type::kBoolean: rest_.remove_prefix(1); return true;
    case Type::kWhole:
    case Type::kNegative: {
      uint64_t unused = 0;
      return integer(unused);
    }
    case Type::kReal: {
      double unused = 0;
      return number(unused);
    }
    case Type::kText:
    case Type::kBinary: {
      std::string_view unused;
      return text(unused);
    }
    case Type::kArray: {
      size_t count = 0;
      if (!array(count)) return false;
      while (count-- > 0)
        if (!skip(depth + 1)) return false;
      return true;
    }
    case Type::kMap: {
      size_t count = 0;
      if (!map(count)) return false;
      for (count *= 2; count-- > 0;)
        if (!skip(depth + 1)) return false;
      return true;
    }
    default: return fail();  // extensions, which none of these formats has
  }
}

}  // namespace maru::daemon
