// What the kernel notes about a namespace in the namespace itself (mode, alignment, uuid), in its second page.
#pragma once

#include <string>
#include <vector>

namespace maru::daemon::provision {

using NamespaceNotes = std::vector<char>;  // empty: not read

// Reads the notes into `ret_notes` and writes zeros in their place. `block_device`: "pmem0", of the namespace in mode raw.
// A negative errno when that fails; what was read stays in `ret_notes` when the zeros may be there in part.
int exchange_notes(const std::string& block_device, NamespaceNotes& ret_notes);
int write_notes(const std::string& block_device, const NamespaceNotes& notes);

}  // namespace maru::daemon::provision
