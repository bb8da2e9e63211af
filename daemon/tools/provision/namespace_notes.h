// The kernel's notes about a namespace (mode, alignment, uuid), in the second page of the namespace itself.
#pragma once

#include <string>
#include <vector>

namespace maru::daemon::provision {

using NamespaceNotes = std::vector<char>;  // empty: not read

// Reads the notes into `ret_notes` and writes zeros in their place. `block_device`: "pmem0", of the namespace in mode raw.
// A negative errno when that fails. When zeros may be there in part, `ret_notes` still has the notes.
int exchange_notes(const std::string& block_device, NamespaceNotes& ret_notes);
int write_notes(const std::string& block_device, const NamespaceNotes& notes);

}  // namespace maru::daemon::provision
