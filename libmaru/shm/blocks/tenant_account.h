// The usage of tenants: the bytes of whole pages of their blocks that are SEALED, READY, RETIRING or RETIRED. The pages are the
// truth. So that no process has to count them, and no counter is shared, every lane has accounts (LaneAccount): its client adds
// the bytes that it stores and frees to them. A tenant's usage is the sum over the lanes, and a balance that marud keeps for
// bytes that no live lane's account has any more, and for its own frees.
//
// Invariants: (1) a block is charged before it is SEALED and returned after its pages are FREE or RESERVED again, so the sum is
// never below the sum of the pages. (2) A process that changes pages of a tenant has raised in_flight before and lowers it
// afterwards. (3) Where a tenant needs credit, charged never passes marud's grant.
//
// Two things follow. A pass over the pages is exact for a tenant if all its accounts were quiet, and the same, before and after
// it (read_tenant). And a rule that marud shows holds for a lane from the moment its account was seen without stores in flight
// (committed_bytes). A sequentially consistent read-modify-write raises in_flight *before* the rules are read, and marud reads
// it *after* it has shown them. [pairs tenant.rules]
//
// If the process dies here: the sum stays too high by the bytes that it had charged and not stored, or freed and not returned.
// marud folds the lane into its balance, and a pass corrects that.
//
// Thread safety: any number of threads of one client per lane; the part of marud below is marud's alone.
#pragma once

#include "libmaru/shm/blocks/pin.h"
#include "libmaru/shm/region/control_region.h"

#include <cstdint>

namespace maru::shm {

inline constexpr uint32_t kOthersAccount = 0;
inline constexpr uint64_t kStoreInFlight = 1;
inline constexpr uint64_t kFreeInFlight = 1ull << 32;
constexpr uint32_t stores_in_flight(uint64_t in_flight) { return uint32_t(in_flight); }

// The tenant's account in a lane; kOthersAccount if it has none.
uint32_t find_account(const ControlRegion& region, uint32_t lane, uint64_t tenant);
// The place of the tenant's record, or ~0: it has none.
uint32_t find_tenant(const ControlRegion& region, uint64_t tenant);
// Whether a store for the tenant needs credit now.
bool needs_credit(const ControlRegion& region, uint64_t tenant);

// -- clients ----------------------------------------------------------------------------------------------------------

// Around a store, from before the page is SEALED. Unless kept, the charge is returned at the end: by then the page must be
// RESERVED by this lane again. Tenant 0 costs a comparison.
class StoreCharge {
 public:
  StoreCharge(const ControlRegion& region, uint32_t lane, uint64_t tenant, uint64_t bytes) : bytes_(bytes) {
    if (tenant != 0) begin(region, lane, tenant);
  }
  ~StoreCharge() {
    if (account_ != nullptr) end();
  }
  StoreCharge(const StoreCharge&) = delete;
  StoreCharge& operator=(const StoreCharge&) = delete;

  // The tenant needs credit and has not enough: nothing was charged.
  bool is_refused() const { return is_refused_; }
  // The block is there, or another process frees it.
  void keep() { bytes_ = 0; }

 private:
  void begin(const ControlRegion& region, uint32_t lane, uint64_t tenant);
  void end();

  format::LaneAccount* account_ = nullptr;
  uint64_t bytes_;  // to be returned
  bool is_refused_ = false;
};

// marud's own returns go to its balance instead of an account.
class TenantReturns {
 public:
  // A block of `bytes` bytes with its head in `page` is FREE now.
  virtual void returned(uint32_t page, uint64_t tenant, uint64_t bytes) = 0;

 protected:
  ~TenantReturns() = default;
};

// Around the step that frees a RETIRED block which the lane holds, from before its first page becomes FREE.
class FreeReturn {
 public:
  FreeReturn(const ControlRegion& region, uint32_t lane, TenantReturns* marud, uint32_t page);
  ~FreeReturn();
  FreeReturn(const FreeReturn&) = delete;
  FreeReturn& operator=(const FreeReturn&) = delete;

  void freed();  // the head is FREE, by this lane's doing

 private:
  TenantReturns* marud_;
  uint32_t page_;
  uint64_t tenant_;
  uint64_t bytes_ = 0;
  format::LaneAccount* account_ = nullptr;
};

// -- marud ------------------------------------------------------------------------------------------------------------

// How many bytes of blocks this page counts for, and their tenant, 0 for none; 0 if it counts for no block.
uint64_t block_bytes(const ControlRegion& region, uint32_t page, uint64_t* ret_tenant);
// The same where there is a tenant; 0 if there is none.
uint64_t tenant_bytes(const ControlRegion& region, uint32_t page, uint64_t* ret_tenant);

// The sums over the accounts of some lanes. Equal and quiet before and after a pass over the pages means: no process has
// changed a page of the tenant in between, if the lanes were the same and none was emptied.
struct TenantReading {
  uint64_t charged = 0;
  uint64_t returned = 0;
  bool is_quiet = true;
  uint64_t bytes() const { return charged - returned; }
  friend bool operator==(const TenantReading&, const TenantReading&) = default;
};
// Adds one account to a reading.
void read_account(const format::LaneAccount& account, TenantReading* reading);
TenantReading read_tenant(const ControlRegion& region, const LaneSet& lanes, uint64_t tenant);

// The bytes that the lanes have in use or may still take without asking, wrapping. Lanes of `unsettled` may have stores in
// flight that began under other rules, each of up to a region; lanes that are seen without any leave the set.
uint64_t committed_bytes(const ControlRegion& region, const LaneSet& lanes, uint64_t tenant, LaneSet* unsettled);
// Takes back credit that was not used. With `forced` from lanes with stores in flight, too: they must be unsettled afterwards.
void revoke_credit(const ControlRegion& region, const LaneSet& lanes, uint64_t tenant, bool forced);
// Grants the lane `bytes` beyond what it has used or been granted.
void grant_credit(const ControlRegion& region, uint32_t lane, uint32_t account, uint64_t bytes);

// The last step of fold_accounts() with an account whose sums are zero: the tenant goes from it, and its credit with it.
void end_account(const ControlRegion& region, uint32_t lane, uint32_t account);

// Moves the sums in the accounts of a dead lane into marud's balances, and empties them. `add(tenant, bytes)` adds (wrapping)
// to a balance, with a release store; tenant 0 is for tenants that found no place. It is called twice for an account: the bytes
// count double for a moment and never not at all. So a marud that begins again after a death finds too much, not too little.
template <typename F>
void fold_accounts(const ControlRegion& region, uint32_t lane, F&& add) {
  for (uint32_t i = 0; i < region.account_slots(); ++i) {
    format::LaneAccount& account = region.account(lane, i);
    const uint64_t tenant =
        i == kOthersAccount ? 0 : account.tenant.load_relaxed();  // its writer is dead, here and below
    const uint64_t charged = account.charged.load_relaxed(), returned = account.returned.load_relaxed();
    if (charged != 0) add(tenant, charged);
    account.charged.store_release(0);   // [pairs tenant.rules]
    account.returned.store_release(0);  // [pairs tenant.rules]
    if (returned != 0) add(tenant, 0 - returned);
    end_account(region, lane, i);
  }
  region.lane_header(lane).accounts.store_relaxed(0);  // the next client gets the lane with a message
}

}  // namespace maru::shm
