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

// Fills the table. Regions with a header and nothing behind it are CLEAN, regions with records CLOSED, others FRESH. A region
// that was scanned gets its footer. Reads headers, trailers and footers; of regions without a footer, at most two after a
// crash of this program, everything. Fails when the device does.
Result<RecoveredLog> recover_log(const BlockFile& file, RegionTable& table);

// Takes the records that begin in `piece`, which lies at `piece_offset` in a region of `region_bytes`, and prove themselves:
// header, key, and the payload's checksum. Returns where in the region the next piece has to begin: behind the last record, or
// at a record that goes on behind this piece. A piece up to the end of the region always gets there.
uint64_t scan_piece(std::span<const std::byte> piece, uint64_t piece_offset, uint64_t region_bytes, const LogId& id,
                    uint64_t region_sequence, std::vector<LogEntry>& entries, uint64_t* ret_torn);
// Every record of a region that verifies, in the order of offsets.
std::vector<LogEntry> scan_region(std::span<const std::byte> region, const LogId& id, uint64_t region_sequence,
                                  uint64_t* ret_torn);

}  // namespace maru::tierd
