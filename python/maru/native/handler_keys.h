// The keys that MaruHandler takes and libmaru has no kind for: integers of any size, and the empty text. Each becomes bytes
// that are no UTF-8. So no str is the same key: 42 and "42" are two keys.
//
//   the empty text   ff fe 'empty'
//   an integer       ff fe 'int', then its two's complement of the fewest bytes, the lowest first
//   an integer of more than 4096 such bytes: a Digest, the 32 bytes of their BLAKE2b
#pragma once

#include <pybind11/pybind11.h>

namespace maru_python {

// The str, bytes, Digest, buffer or array that Client takes for this key of a handler: the key itself, or what it becomes.
// Integers are int and the integers of NumPy, and no truth values.
pybind11::object client_key(pybind11::handle key);

}  // namespace maru_python
