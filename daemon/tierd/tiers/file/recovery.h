// The content of a log, found again from the parts that verify: the regions' headers, their footers, and records where there
// is no footer.
#pragma once

#include "daemon/tierd/tiers/file/block_file.h"
#include "daemon/tierd/tiers/file/region_table.h"
#include "libmaru/base/result.h"

namespace maru::tierd {

struct RecoveredLog {
  uint64_t with_footer = 0;  // regions
  uint64_t scanned = 0;      // regions read record by record
  uint64_t torn = 0;         // records whose header verifies and whose payload does not
};

// Fills the table. Regions with a header and nothing behind it are CLEAN, those with records CLOSED, others FRESH. A region
// that was scanned gets its footer. Reads headers, trailers and footers; of regions without a footer, at most two after a
// crash of this program, everything. Fails when the device does.
Result<RecoveredLog> recover_log(const BlockFile& file, RegionTable& table);

// Proves one record: its header, the key, and the payload's checksum. Nothing: it does not verify. For regions in memory.
std::optional<LogEntry> proven_record(std::span<const std::byte> region, uint64_t offset, const LogId& id,
                                      uint64_t region_sequence, bool* ret_torn);
// Every record of a region that verifies, in the order of offsets.
std::vector<LogEntry> scan_region(std::span<const std::byte> region, const LogId& id, uint64_t region_sequence,
                                  uint64_t* ret_torn);

}  // namespace maru::tierd
