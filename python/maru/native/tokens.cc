// The extension maru._tokens: the calls of maru/tokens.h, for maru/tokens.py, which has checked types and ranges.
#include "without_gil.h"

#include <array>
#include <maru/tokens.h>
#include <optional>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <string>

namespace py = pybind11;
using namespace py::literals;

namespace {

using Tokens = py::array_t<uint32_t, py::array::c_style>;

void check(int status) {
  if (status < 0) throw py::value_error("maru/tokens.h refused the arguments");  // maru/tokens.py says what and why
}

py::array hash(uint32_t algorithm, const Tokens& tokens, uint32_t block_tokens, const py::bytes& parent,
               const std::optional<std::string>& lora_name, const std::optional<std::string>& lora_path,
               const std::optional<std::string>& cache_salt, bool are_tagged) {
  const std::string before = parent;
  maru_tokens_options options{};
  options.size = sizeof(options);
  options.algorithm = algorithm;
  options.block_tokens = block_tokens;
  options.parent = before.data();
  options.parent_bytes = before.size();
  options.lora_name = lora_name ? lora_name->c_str() : nullptr;
  options.lora_path = lora_path ? lora_path->c_str() : nullptr;
  options.extra_keys = are_tagged ? MARU_TOKENS_EXTRA_TAGGED : MARU_TOKENS_EXTRA_BARE;
  options.cache_salt = cache_salt ? cache_salt->c_str() : nullptr;
  const auto n = size_t(tokens.size());
  const int width = maru_tokens_hash_bytes(algorithm);
  check(width);
  if (block_tokens == 0) check(-1);
  py::array_t<uint8_t> hashes({Py_ssize_t(n / block_tokens), Py_ssize_t(width)}, {Py_ssize_t(width), Py_ssize_t(1)});
  const uint32_t* const from = tokens.data();
  uint8_t* const to = hashes.mutable_data();
  const auto room = size_t(hashes.size());
  int status;
  {
    const maru_python::WithoutGil released;
    status = maru_tokens_hash(&options, from, n, to, room);
  }
  check(status);
  return hashes;
}

py::bytes root(uint32_t algorithm, const std::optional<std::string>& seed) {
  std::array<char, MARU_TOKENS_HASH_BYTES_MAX> hash{};
  check(maru_tokens_root(algorithm, seed ? seed->c_str() : nullptr, hash.data()));
  return py::bytes(hash.data(), size_t(maru_tokens_hash_bytes(algorithm)));
}

py::tuple dynamo(uint64_t salt, const std::optional<uint64_t>& parent, uint32_t block_tokens, const Tokens& tokens) {
  if (block_tokens == 0) check(-1);
  const auto n = size_t(tokens.size());
  // With their strides: pybind11 before 2.12 would take them from where NumPy 2 has something else.
  const auto make = [&] { return py::array_t<uint64_t>({Py_ssize_t(n / block_tokens)}, {Py_ssize_t(8)}); };
  py::array_t<uint64_t> blocks = make(), sequences = make();
  const uint32_t* const from = tokens.data();
  uint64_t* const to_blocks = blocks.mutable_data();
  uint64_t* const to_sequences = sequences.mutable_data();
  int status;
  {
    const maru_python::WithoutGil released;
    status = maru_tokens_dynamo(salt, parent ? &*parent : nullptr, block_tokens, from, n, to_blocks, to_sequences);
  }
  check(status);
  return py::make_tuple(blocks, sequences);
}

py::array_t<uint64_t> lmcache_engine(uint32_t algorithm, uint64_t parent, uint32_t chunk_tokens, const Tokens& tokens) {
  if (chunk_tokens == 0) check(-1);
  const auto n = size_t(tokens.size());
  py::array_t<uint64_t> hashes({Py_ssize_t(n / chunk_tokens)}, {Py_ssize_t(8)});
  const uint32_t* const from = tokens.data();
  uint64_t* const to = hashes.mutable_data();
  int status;
  {
    const maru_python::WithoutGil released;
    status = maru_tokens_lmcache_engine(algorithm, parent, chunk_tokens, from, n, to);
  }
  check(status);
  return hashes;
}

}  // namespace

PYBIND11_MODULE(_tokens, module) {
  module.doc() = "The calls of maru/tokens.h.";
  // Here, where no second thread can be: it would wait for what pybind11 before 2.12 looks up in NumPy, with the GIL in hand.
  py::detail::npy_api::get();
  module.def("hash", &hash, "algorithm"_a, "tokens"_a, "block_tokens"_a, "parent"_a, "lora_name"_a, "lora_path"_a,
             "cache_salt"_a, "are_tagged"_a);
  module.def("root", &root, "algorithm"_a, "seed"_a);
  module.def("lmcache_engine", &lmcache_engine, "algorithm"_a, "parent"_a, "chunk_tokens"_a, "tokens"_a);
  module.def("dynamo", &dynamo, "salt"_a, "parent"_a, "block_tokens"_a, "tokens"_a);
}
