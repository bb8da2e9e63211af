// The classes of maru/records.py that the calls return.
#pragma once

#include <pybind11/pybind11.h>

namespace maru_python {

enum class Record { kDigest, kBlockInfo, kEvictedKey, kGeometry, kStatistics, kStored, kStoredBatch, kStoredChain };

// Called once, when the module is loaded: when the interpreter ends nothing can be imported any more.
void load_records();

// Lives as long as the interpreter.
pybind11::handle class_of(Record record);

// values: a new reference to a tuple of all of its fields, or null when there was no memory for it. No code of Python's runs.
pybind11::object record(Record record, PyObject* values);

// A Digest of 16 or 32 bytes. No code of Python's runs.
pybind11::object digest_of(const void* data, size_t size);

}  // namespace maru_python
