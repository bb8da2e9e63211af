#include "keys.h"

#include "arguments.h"
#include "arrays.h"
#include "errors.h"
#include "handler_keys.h"
#include "records.h"

#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace py = pybind11;

namespace maru_python {
namespace {

bool is_digest(py::handle object) { return py::type::handle_of(object).is(class_of(Record::kDigest)); }

uint32_t kind_of_digest(Py_ssize_t bytes) { return bytes == 16 ? MARU_KEY_DIGEST128 : MARU_KEY_DIGEST256; }

bool is_unsigned_byte(const char* format) { return format == nullptr || std::strcmp(format, "B") == 0; }

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

// "is 4 x 8 items of format d"
std::string shape_of(const Py_buffer& buffer) {
  std::string shape;
  for (int i = 0; i < buffer.ndim; ++i) shape += (i == 0 ? "" : " x ") + std::to_string(buffer.shape[i]);
  return "is " + (buffer.ndim == 0 ? "one item" : shape + " items") + " of format " +
         (buffer.format != nullptr ? buffer.format : "B");
}

// In the str, for as long as that lives. Half of a surrogate pair has no UTF-8: `wanted` tells what is.
const char* utf8(PyObject* text, const std::string& wanted, Py_ssize_t* ret_size) {
  const char* const found = PyUnicode_AsUTF8AndSize(text, ret_size);
  if (found != nullptr) return found;
  if (!PyErr_ExceptionMatches(PyExc_UnicodeError)) throw py::error_already_set();
  const py::error_already_set why;
  raise_named("InvalidArgumentError", wanted + "; this one: " + py::str(why.value()).cast<std::string>() + ".");
}

void set_bytes(maru_key& key, const void* data, Py_ssize_t size) {
  if (size < 1 || size > 4096)
    raise_named("InvalidArgumentError",
                "A key of " + std::to_string(size) + " bytes; 1 to 4096 are possible. Use a Digest of what is longer.");
  key.data = data;
  key.size = static_cast<uint32_t>(size);
  key.kind = MARU_KEY_BYTES;
}

constexpr size_t kAhead = 8;  // objects: the time to fetch one from memory, in objects read

// Objects lie anywhere; a str of 64 bytes ends in the line of the cache after its first, or the one after that. Inlined always,
// as the next: GCC 12 takes a call to a function that does nothing but fetch for one without an effect, and drops it.
[[gnu::always_inline]] inline void fetch(const PyObject* o, size_t lines) {
  for (size_t i = 0; i < lines; ++i) __builtin_prefetch(reinterpret_cast<const char*>(o) + i * 64);
}

// What was written for the batch before is in the second level by now: the texts of a batch fill the first.
[[gnu::always_inline]] inline void fetch_to_write(const void* line) { __builtin_prefetch(line, 1); }

// Has this byte in a register. Fetches that nobody waits for are given up when they are too many, and the library, which hashes
// one key after the other, would wait for every one of them.
void wait_for(char byte) { asm volatile("" ::"r"(byte)); }

// A str whose characters lie in it as bytes, which are its UTF-8 too; of at most size_max bytes. Runs nothing of Python's and
// raises nothing. Read as the structure that it is: Python's macros check again what is known here.
inline bool read_ascii(PyObject* o, size_t size_max, maru_key& key) {
  const auto* const text = reinterpret_cast<const PyASCIIObject*>(o);
  if (Py_TYPE(o) != &PyUnicode_Type || !text->state.compact || !text->state.ascii) return false;
  const auto size = static_cast<size_t>(text->length);
  if (size - 1 >= size_max) return false;
  key.data = text + 1;
  key.size = static_cast<uint32_t>(size);
  key.kind = MARU_KEY_BYTES;
  return true;
}

// So many bytes at any address, in as few moves as the function they are moved in has instructions for.
template <size_t bytes>
[[gnu::always_inline]] inline void move_piece(char* to, const char* from) {
  using Piece [[gnu::vector_size(bytes), gnu::aligned(1), gnu::may_alias]] = uint8_t;
  *reinterpret_cast<Piece*>(to) = *reinterpret_cast<const Piece*>(from);
}

// At least so many bytes, and at most twice as many: the two pieces overlap.
template <size_t bytes>
[[gnu::always_inline]] inline void copy_ends(char* to, const char* from, size_t size) {
  move_piece<bytes>(to, from);
  move_piece<bytes>(to + size - bytes, from + size - bytes);
}

// 1 to 128 bytes.
[[gnu::always_inline]] inline void copy_short(char* to, const char* from, size_t size) {
  if (size > 64) {
    copy_ends<32>(to, from, 64);
    if (size > 96) move_piece<32>(to + 64, from + 64);
    move_piece<32>(to + size - 32, from + size - 32);
  } else if (size >= 32) {
    copy_ends<32>(to, from, size);
  } else if (size >= 16) {
    copy_ends<16>(to, from, size);
  } else if (size >= 8) {
    copy_ends<8>(to, from, size);
  } else {
    for (size_t i = 0; i < size; ++i) to[i] = from[i];
  }
}

// The texts of a batch are copied to `texts`, each `stride` bytes behind the one before, so that no text begins in the middle
// of what was just written for another. False when an item is no text of at most `stride` bytes; some are copied then.
// ahead(i) fetches what is needed later, copy(to, from, size) copies a text.
template <size_t stride, typename Ahead, typename Copy>
[[gnu::always_inline]] inline bool copy_texts_by(PyObject* const* items, size_t n, char* texts, uint32_t* ret_sizes,
                                                 Ahead&& ahead, Copy&& copy) {
  for (size_t i = 0; i < n; ++i) {
    ahead(i);
    maru_key key;
    if (!read_ascii(items[i], stride, key)) return false;
    copy(texts + i * stride, static_cast<const char*>(key.data), size_t(key.size));
    ret_sizes[i] = key.size;
  }
  return true;
}

#if defined(__x86_64__)
// One load that reads nothing beyond the end, and one store of a whole line, with zeros behind the text; two of more than that.
__attribute__((target("avx512bw"))) inline void copy_masked(char* to, const char* from, size_t size) {
  if (size > 64) {
    _mm512_store_si512(to, _mm512_loadu_si512(from));
    to += 64;
    from += 64;
    size -= 64;
  }
  _mm512_store_si512(to, _mm512_maskz_loadu_epi8(~uint64_t{0} >> (64 - size), from));
}

template <size_t stride>
__attribute__((target("avx512bw"))) bool copy_texts_masked(PyObject* const* items, size_t n, char* texts,
                                                           uint32_t* ret_sizes) {
  const auto ahead = [&](size_t i) {
    if (i + kAhead >= n) return;
    fetch(items[i + kAhead], 1 + stride / 64);
    for (size_t line = 0; line < stride; line += 64) fetch_to_write(texts + (i + kAhead) * stride + line);
  };
  return copy_texts_by<stride>(items, n, texts, ret_sizes, ahead, copy_masked);
}

template <size_t stride>
__attribute__((target("avx2"))) bool copy_texts_avx2(PyObject* const* items, size_t n, char* texts,
                                                     uint32_t* ret_sizes) {
  return copy_texts_by<stride>(items, n, texts, ret_sizes, [](size_t) {}, copy_short);
}
#endif

template <size_t stride>
bool copy_texts_anywhere(PyObject* const* items, size_t n, char* texts, uint32_t* ret_sizes) {
  return copy_texts_by<stride>(items, n, texts, ret_sizes, [](size_t) {}, copy_short);
}

template <size_t stride>
bool copy_texts_in(PyObject* const* items, size_t n, char* texts, uint32_t* ret_sizes) {
  static const auto copy = [] {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw")) return copy_texts_masked<stride>;
    if (__builtin_cpu_supports("avx2")) return copy_texts_avx2<stride>;
#endif
    return copy_texts_anywhere<stride>;
  }();
  return copy(items, n, texts, ret_sizes);
}

// hold(object) returns the buffer of an object, held for as long as the key.
template <typename Hold>
void read_key(py::handle object, maru_key& key, Hold&& hold) {
  PyObject* const o = object.ptr();
  if (read_ascii(o, 4096, key)) return;
  if (PyBytes_Check(o)) {
    set_bytes(key, PyBytes_AS_STRING(o), PyBytes_GET_SIZE(o));
    if (!is_digest(object)) return;
    if (key.size != 16 && key.size != 32)  // made without its __new__
      raise_named("InvalidArgumentError", "A digest has 16 or 32 bytes, not " + std::to_string(key.size) + ".");
    key.kind = kind_of_digest(Py_ssize_t(key.size));
    return;
  }
  if (PyUnicode_Check(o)) {
    Py_ssize_t size = 0;
    const char* text = utf8(o, "A key is a str without surrogates, or bytes", &size);
    set_bytes(key, text, size);
    return;
  }
  if (!PyObject_CheckBuffer(o))
    raise_named("InvalidArgumentError",
                "A key is str, bytes, Digest or an array of 16 or 32 uint8, not " + type_name(object) + ".");
  const Py_buffer& buffer = hold(object);
  if (PyByteArray_Check(o) || PyMemoryView_Check(o)) {
    set_bytes(key, buffer.buf, buffer.len);
    return;
  }
  if (buffer.ndim != 1 || !is_unsigned_byte(buffer.format) || (buffer.len != 16 && buffer.len != 32))
    raise_named("InvalidArgumentError",
                "An array that is a key holds 16 or 32 uint8: a digest. This one " + shape_of(buffer) + ".");
  key.data = buffer.buf;
  key.size = static_cast<uint32_t>(buffer.len);
  key.kind = kind_of_digest(buffer.len);
}

// `given`, or null for the row of an array, where it is such an object already, and otherwise made of what was read of it.
py::object plain_key(py::handle given, const maru_key& read) {
  PyObject* const o = given.ptr();
  if (o != nullptr && (PyUnicode_CheckExact(o) || PyBytes_CheckExact(o) || is_digest(given)))
    return py::reinterpret_borrow<py::object>(given);
  const auto* const data = static_cast<const char*>(read.data);
  if (o != nullptr && PyUnicode_Check(o)) return py::str(data, read.size);
  if (read.kind == MARU_KEY_BYTES) return py::bytes(data, read.size);
  return digest_of(data, read.size);
}

}  // namespace

void refuse_objects(py::handle object) {
  PyObject* const o = object.ptr();
  if (PyBytes_CheckExact(o) || PyByteArray_CheckExact(o)) return;
  bool are_objects = false;
  // NumPy knows itself, also where it has no description for a buffer, as of dates.
  const py::object type = py::getattr(object, "dtype", py::none());
  const py::object answer = py::getattr(type, "hasobject", py::none());
  if (is_truth(answer)) {
    are_objects = answer.ptr() == Py_True;
  } else {
    Py_buffer described;
    if (PyObject_GetBuffer(o, &described, PyBUF_FULL_RO) != 0) {
      const py::error_already_set why;
      if (why.matches(PyExc_BufferError) || why.matches(PyExc_TypeError) || why.matches(PyExc_ValueError)) return;
      throw why;
    }
    bool is_name = false;  // of a field: between colons
    for (const char* c = described.format; c != nullptr && *c != 0; ++c) {
      is_name ^= *c == ':';
      are_objects |= *c == 'O' && !is_name;
    }
    PyBuffer_Release(&described);
  }
  if (are_objects)
    raise_named("InvalidArgumentError", type_name(object) +
                                            " holds references to objects, which mean nothing in a pool: "
                                            "give it the numbers themselves (numpy.asarray with a dtype).");
}

HeldBuffer::HeldBuffer(py::handle object, Wanted wanted) {
  const int flags = wanted == Wanted::kBytes      ? PyBUF_SIMPLE
                    : wanted == Wanted::kWritable ? PyBUF_WRITABLE
                    : wanted == Wanted::kRows     ? PyBUF_C_CONTIGUOUS
                                                  : PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
  if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) == 0) return;
  const py::error_already_set why;
  if (!why.matches(PyExc_BufferError) && !why.matches(PyExc_TypeError) && !why.matches(PyExc_ValueError)) throw why;
  raise_named("InvalidArgumentError", std::string(wanted == Wanted::kWritable ? "A writable buffer" : "A buffer") +
                                          " without gaps is wanted (numpy.ascontiguousarray makes one); " +
                                          type_name(object) + " said: " + why.what());
}

uint64_t tenant_of(const maru_client* client, py::handle tenant) {
  if (tenant.is_none()) return 0;
  if (PyUnicode_Check(tenant.ptr())) {
    Py_ssize_t size = 0;
    const char* name = utf8(tenant.ptr(), "The name of a tenant is a str without surrogates", &size);
    uint64_t id = 0;
    if (maru_tenant(client, name, static_cast<size_t>(size), &id) != 0)
      raise_named("InvalidArgumentError", "The name of a tenant has 1 to 64 bytes, not " + std::to_string(size) + ".");
    return id;
  }
  if (!PyLong_Check(tenant.ptr()) || is_truth(tenant))
    raise_named("InvalidArgumentError",
                "A tenant is its name, or what Client.tenant() returned, not " + type_name(tenant) + ".");
  const uint64_t id = PyLong_AsUnsignedLongLong(tenant.ptr());
  if (id == UINT64_MAX && PyErr_Occurred()) {
    PyErr_Clear();
    raise_named("InvalidArgumentError", "This number is no tenant: use what Client.tenant() returned.");
  }
  return id;
}

namespace {

// A whole number; null for an array, which passes for a number until it is asked which. What else is raised is the caller's.
py::object whole_of(py::handle value) {
  const auto whole = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (whole) return whole;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
  const py::error_already_set why;
  if (!py::hasattr(py::type::of(value), "__len__")) throw why;
  return {};
}

}  // namespace

uint64_t number_of(py::handle value, const char* name, uint64_t max) {
  // Before NumPy 1.25 its True and False were numbers to Python.
  const bool is_number = !is_truth(value) && PyIndex_Check(value.ptr());
  if (const py::object whole = is_number ? whole_of(value) : py::object()) {
    const uint64_t number = PyLong_AsUnsignedLongLong(whole.ptr());
    if (number != UINT64_MAX || PyErr_Occurred() == nullptr) {
      if (number <= max) return number;
    } else if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
      throw py::error_already_set();
    }
    PyErr_Clear();
    raise_named("InvalidArgumentError", std::string(name) + " is a whole number from 0 to " + std::to_string(max) +
                                            "; this one is below or above.");
  }
  raise_named("InvalidArgumentError", std::string(name) + " is a whole number, not " + type_name(value) + ".");
}

std::optional<std::string> path_of(py::handle value, const char* name) {
  if (value.is_none()) return std::nullopt;
  auto text = py::reinterpret_borrow<py::object>(value);
  if (!PyUnicode_Check(value.ptr()) && std::strcmp(name, "socket_path") == 0 && py::hasattr(value, "__fspath__")) {
    text = py::reinterpret_steal<py::object>(PyOS_FSPath(value.ptr()));
    if (!text) throw py::error_already_set();
  }
  if (!PyUnicode_Check(text.ptr()))
    raise_named("InvalidArgumentError", std::string(name) + " is a str, not " + type_name(value) + ".");
  Py_ssize_t size = 0;
  const char* const found = utf8(text.ptr(), std::string(name) + " is a str without surrogates", &size);
  return std::string(found, static_cast<size_t>(size));
}

py::object tuple_of(py::handle sequence, const char* wanted) {
  if (PyMemoryView_Check(sequence.ptr()) &&
      PyMemoryView_GET_BUFFER(sequence.ptr())->ndim > 1)  // Python has no items of it
    raise_named("InvalidArgumentError", wanted + type_name(sequence) + " of several dimensions.");
  const auto iterator = py::reinterpret_steal<py::object>(PyObject_GetIter(sequence.ptr()));
  if (!iterator) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
    PyErr_Clear();
    raise_named("InvalidArgumentError", wanted + type_name(sequence) + ".");
  }
  auto items = py::reinterpret_steal<py::object>(PySequence_Tuple(iterator.ptr()));
  if (!items) throw py::error_already_set();  // what an item raised is the caller's
  return items;
}

OneKey::OneKey(py::handle key, uint64_t tenant, KeyForm form) : given_(key) {
  key_.tenant = tenant;
  if (form == KeyForm::kHandler && !read_ascii(key.ptr(), 4096, key_)) {
    made_ = client_key(key);
    given_ = made_;
  }
  read_key(given_, key_, [&](py::handle object) -> const Py_buffer& {
    return buffer_.emplace(object, HeldBuffer::Wanted::kShape).get();
  });
}

py::object OneKey::plain() const { return plain_key(given_, key_); }

KeyBatch::Scratch* KeyBatch::spare_ = nullptr;

KeyBatch::Scratch* KeyBatch::take_scratch() {
  Scratch* const spare = std::exchange(spare_, nullptr);
  return spare != nullptr ? spare : new Scratch;
}

void KeyBatch::GiveBack::operator()(Scratch* scratch) const {
  if (spare_ == nullptr)
    spare_ = scratch;
  else
    delete scratch;
}

KeyBatch::KeyBatch(py::handle keys, uint64_t tenant, Wanted wanted, KeyForm form) {
  PyObject* const o = keys.ptr();
  if (PyUnicode_Check(o) || PyBytes_Check(o) || PyByteArray_Check(o))
    raise_named("InvalidArgumentError",
                "A batch wants several keys: a sequence of them, or an n x 16 or n x 32 array of "
                "uint8. This is one " +
                    type_name(keys) + ".");
  if (const auto array = plain_array(keys, false);
      array && array->dimensions == 2 && (array->shape[1] == 16 || array->shape[1] == 32)) {
    array_ = py::reinterpret_borrow<py::object>(keys);
    take_array(array->data, array->shape[0], array->shape[1], tenant, wanted);
    return;
  }
  if (PyObject_CheckBuffer(o)) {
    buffers_.emplace_back(keys, HeldBuffer::Wanted::kShape);
    read_array(tenant, wanted);
    return;
  }
  if (PyList_CheckExact(o) || PyTuple_CheckExact(o)) {
    PyObject* const* const items = PySequence_Fast_ITEMS(o);
    const auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(o));
    if (wanted == Wanted::kPlain || !copy_texts(items, n, tenant, wanted)) read_items(items, n, tenant, form);
    return;
  }
  const py::object items =
      tuple_of(keys, "A batch wants a sequence of keys, or an n x 16 or n x 32 array of uint8, not ");
  read_items(PySequence_Fast_ITEMS(items.ptr()), static_cast<size_t>(PyTuple_GET_SIZE(items.ptr())), tenant, form);
}

// The usual case, short texts and not too many of them. False when it is not that.
bool KeyBatch::copy_texts(PyObject* const* items, size_t n, uint64_t tenant, Wanted wanted) {
  if (n > kFew) return false;
  char* const texts = scratch_->texts;
  uint32_t* const sizes = scratch_->sizes;
  size_t stride = 64;
  if (!copy_texts_in<64>(items, n, texts, sizes)) {
    stride = kShort;
    if (!copy_texts_in<kShort>(items, n, texts, sizes)) return false;
  }
  take_rows({texts, stride, sizes, 0, MARU_KEY_BYTES, tenant}, n, wanted);
  return true;
}

// All references are taken before anything runs that could change the list.
void KeyBatch::read_items(PyObject* const* items, size_t n, uint64_t tenant, KeyForm form) {
  make_room(n);
  kept_.items = scratch_->kept;
  if (n > kFew) {
    kept_.many = std::make_unique_for_overwrite<PyObject*[]>(n);
    kept_.items = kept_.many.get();
  }
  bool are_all_read = true;
  maru_key* const keys = keys_;
  PyObject** const kept = kept_.items;
  for (size_t i = 0; i < n; ++i) {
    PyObject* const item = items[i];
    if (i + kAhead < n) fetch(items[i + kAhead], 3);
    Py_INCREF(item);
    kept[i] = item;
    maru_key& key = keys[i];  // in its place: the processor waits where parts of what it copies were just written
    key.tenant = tenant;
    if (read_ascii(item, 4096, key)) {
      wait_for(static_cast<const char*>(key.data)[key.size - 1]);
    } else {
      key.data = nullptr;
      are_all_read = false;
    }
  }
  kept_.n = n;
  if (are_all_read) return;
  for (size_t i = 0; i < n; ++i) {
    if (keys_[i].data != nullptr) continue;
    if (form == KeyForm::kHandler) Py_DECREF(std::exchange(kept_.items[i], client_key(kept_.items[i]).release().ptr()));
    read_key(kept_.items[i], keys_[i], [&](py::handle object) -> const Py_buffer& {
      return buffers_.emplace_back(object, HeldBuffer::Wanted::kShape).get();
    });
  }
}

py::object KeyBatch::plain(size_t i) const { return plain_key(i < kept_.n ? kept_.items[i] : nullptr, keys_[i]); }

void KeyBatch::make_room(size_t size) {
  count_keys(size);
  if (size <= kFew) return;
  many_ = std::make_unique_for_overwrite<maru_key[]>(size);
  keys_ = many_.get();
}

void KeyBatch::count_keys(size_t size) {
  constexpr size_t kMost = 1u << 20;
  if (size > kMost)
    raise_named("InvalidArgumentError", "A batch has at most 2^20 keys, not " + std::to_string(size) + ".");
  size_ = size;
}

void KeyBatch::take_rows(const maru_key_rows& rows, size_t n, Wanted wanted) {
  if (wanted == Wanted::kRows) {
    count_keys(n);
    are_rows_ = true;
    rows_ = rows;
    return;
  }
  make_room(n);
  const auto* const data = static_cast<const char*>(rows.data);
  for (size_t i = 0; i < n; ++i)
    keys_[i] = {data + i * rows.stride, rows.sizes != nullptr ? rows.sizes[i] : rows.size, rows.kind, rows.tenant};
}

void KeyBatch::take_array(const uint8_t* rows, Py_ssize_t n, Py_ssize_t width, uint64_t tenant, Wanted wanted) {
  is_array_ = true;
  const auto bytes = static_cast<size_t>(width);
  take_rows({rows, bytes, nullptr, uint32_t(bytes), kind_of_digest(width), tenant}, size_t(n), wanted);
}

void KeyBatch::read_array(uint64_t tenant, Wanted wanted) {
  const Py_buffer& buffer = buffers_.front().get();
  if (buffer.ndim != 2 || !is_unsigned_byte(buffer.format) || (buffer.shape[1] != 16 && buffer.shape[1] != 32))
    raise_named("InvalidArgumentError",
                "An array of keys is n x 16 or n x 32 uint8: digests. This one " + shape_of(buffer) + ".");
  take_array(static_cast<const uint8_t*>(buffer.buf), buffer.shape[0], buffer.shape[1], tenant, wanted);
}

}  // namespace maru_python
