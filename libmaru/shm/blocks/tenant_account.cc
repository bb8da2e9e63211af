#include "libmaru/shm/blocks/tenant_account.h"

#include <algorithm>

namespace maru::shm {
namespace {

using namespace maru::format;

// The places of an account in the order in which they are tried.
uint32_t account_place(const ControlRegion& region, uint64_t tenant, uint32_t tries) {
  const uint32_t places = region.account_slots() - 1;
  return 1 + uint32_t((tenant % places + tries) % places);
}

// Claims an account if there is none. Ends: each place is looked at once.
uint32_t claim_account(const ControlRegion& region, uint32_t lane, uint64_t tenant, bool everywhere) {
  const uint32_t places = region.account_slots() - 1;
  const uint32_t tries_max = everywhere ? places : std::min(places, limits::kAccountProbes);
  for (uint32_t tries = 0; tries < tries_max; ++tries) {
    const uint32_t place = account_place(region, tenant, tries);
    AtomicU64& owner = region.account(lane, place).tenant;
    uint64_t found = owner.load_acquire();  // [pairs account.tenant]
    if (found == 0) {
      region.lane_header(lane).accounts.fetch_add_relaxed(1);  // a hint: a thread that sees the claim need not see this
      if (owner.cas_acq_rel(found, tenant)) return place;      // [pairs account.tenant]
    }
    if (found == tenant) return place;
  }
  return kOthersAccount;
}

}  // namespace

uint32_t find_account(const ControlRegion& region, uint32_t lane, uint64_t tenant) {
  const uint32_t places = region.account_slots() - 1;
  for (uint32_t tries = 0; tries < places; ++tries) {
    const uint32_t place = account_place(region, tenant, tries);
    const uint64_t found = region.account(lane, place).tenant.load_acquire();  // [pairs account.tenant]
    if (found == tenant) return place;
    if (found == 0) break;
  }
  return kOthersAccount;
}

uint32_t find_tenant(const ControlRegion& region, uint64_t tenant) {
  const uint32_t records = region.parameters().tenants;
  const uint32_t tries_max = std::min(records, limits::kTenantProbes);
  for (uint32_t tries = 0; tries < tries_max; ++tries) {
    const auto place = uint32_t((tenant % records + tries) % records);
    const uint64_t found = region.tenant(place).id.load_seq_cst();  // [pairs tenant.rules]
    if (found == tenant) return place;
    if (found == 0) break;  // records are never taken away while clients live
  }
  return ~0u;
}

bool needs_credit(const ControlRegion& region, uint64_t tenant) {
  const uint64_t rules = region.tenant_rules().flags.load_seq_cst();  // [pairs tenant.rules]
  if ((rules & kRulesLimited) == 0) return false;
  const uint32_t record = find_tenant(region, tenant);
  if (record == ~0u) return (rules & kRulesUnlistedNeedCredit) != 0;
  return (region.tenant(record).flags.load_seq_cst() & kTenantNeedsCredit) != 0;  // [pairs tenant.rules]
}

// -- clients ----------------------------------------------------------------------------------------------------------

void StoreCharge::begin(const ControlRegion& region, uint32_t lane, uint64_t tenant) {
  // A tenant that needs credit must have an account. Whether it needs credit is known only after in_flight was raised.
  for (bool everywhere = false;; everywhere = true) {
    const uint32_t place = claim_account(region, lane, tenant, everywhere);
    LaneAccount& account = region.account(lane, place);
    account.in_flight.fetch_add_seq_cst(kStoreInFlight);  // [pairs tenant.rules]
    uint64_t charged = account.charged.load_relaxed();    // a guess: the CAS decides
    do {  // ends: the CAS fails only when another thread's has succeeded
      is_refused_ = needs_credit(region, tenant) &&
                    (place == kOthersAccount ||
                     charged + bytes_ > region.credit(lane, place).load_seq_cst());  // [pairs tenant.rules]
    } while (!is_refused_ && !account.charged.cas_acq_rel(charged, charged + bytes_));
    if (!is_refused_) {
      account_ = &account;
      return;
    }
    account.in_flight.fetch_add_seq_cst(~kStoreInFlight + 1);
    if (everywhere || place != kOthersAccount) return;
  }
}

void StoreCharge::end() {
  if (bytes_ != 0) account_->returned.fetch_add_seq_cst(bytes_);
  account_->in_flight.fetch_add_seq_cst(~kStoreInFlight + 1);
}

FreeReturn::FreeReturn(const ControlRegion& region, uint32_t lane, TenantReturns* marud, uint32_t page)
    : marud_(marud), page_(page), tenant_(region.detail(page).tenant.load_relaxed()) {  // under the caller's hold
  if (tenant_ == 0) return;
  bytes_ = region.run_pages(page) * region.page_bytes();
  if (marud_ != nullptr) return;
  account_ = &region.account(lane, claim_account(region, lane, tenant_, false));
  account_->in_flight.fetch_add_seq_cst(kFreeInFlight);
}

void FreeReturn::freed() {
  if (tenant_ == 0) return;
  if (marud_ != nullptr) return marud_->returned(page_, tenant_, bytes_);
  account_->returned.fetch_add_seq_cst(bytes_);
}

FreeReturn::~FreeReturn() {
  if (account_ != nullptr) account_->in_flight.fetch_add_seq_cst(~kFreeInFlight + 1);
}

// -- marud ------------------------------------------------------------------------------------------------------------

uint64_t block_bytes(const ControlRegion& region, uint32_t page, uint64_t* ret_tenant) {
  AtomicU64& word = region.block(page).word;
  for (uint32_t tries = 0; tries < limits::kBucketReadRetries; ++tries) {
    const PageWord found{word.load_acquire()};  // [pairs page.word]
    const bool counts = found.is(PageState::kSealed) || found.is(PageState::kReady) || found.is(PageState::kRetiring) ||
                        found.is(PageState::kRetired);
    if (!counts) return 0;
    *ret_tenant = region.detail(page).tenant.load_acquire();  // before the word is read again: [pairs page.word]
    const uint64_t bytes = region.run_pages(page) * region.page_bytes();  // the same while the generation is
    const PageWord now{word.load_acquire()};                              // [pairs page.word]
    if (now.generation() == found.generation()) return bytes;
  }
  return 0;  // it changes all the time, and each change of it changes an account, too
}

uint64_t tenant_bytes(const ControlRegion& region, uint32_t page, uint64_t* ret_tenant) {
  const uint64_t bytes = block_bytes(region, page, ret_tenant);
  return bytes == 0 || *ret_tenant == 0 ? 0 : bytes;
}

void read_account(const LaneAccount& account, TenantReading* reading) {
  // The numbers around in_flight: a store or a free that this reading saw begun and not ended makes it useless, also when it
  // begins between the two.
  const uint64_t returned = account.returned.load_seq_cst(), charged = account.charged.load_seq_cst();
  const bool is_quiet = account.in_flight.load_seq_cst() == 0;  // [pairs tenant.rules]
  reading->returned += returned;
  reading->charged += charged;
  reading->is_quiet = reading->is_quiet && is_quiet && account.returned.load_seq_cst() == returned &&
                      account.charged.load_seq_cst() == charged;
}

TenantReading read_tenant(const ControlRegion& region, const LaneSet& lanes, uint64_t tenant) {
  TenantReading reading;
  lanes.for_each(region.lanes(), [&](uint32_t lane) {
    const uint32_t place = find_account(region, lane, tenant);
    if (place != kOthersAccount) read_account(region.account(lane, place), &reading);
  });
  return reading;
}

uint64_t committed_bytes(const ControlRegion& region, const LaneSet& lanes, uint64_t tenant, LaneSet* unsettled) {
  uint64_t sum = 0;
  lanes.for_each(region.lanes(), [&](uint32_t lane) {
    const uint32_t place = find_account(region, lane, tenant);
    if (place == kOthersAccount) return;
    const LaneAccount& account = region.account(lane, place);
    // In this order: stores that began before are in the numbers, and bytes that are returned were charged earlier.
    const uint32_t stores = stores_in_flight(account.in_flight.load_seq_cst());  // [pairs tenant.rules]
    const uint64_t returned = account.returned.load_seq_cst();
    sum +=
        std::max(account.charged.load_seq_cst(), region.credit(lane, place).load_relaxed()) - returned;  // credit: ours
    if (!unsettled->has(lane)) return;
    if (stores == 0)
      unsettled->remove(lane);
    else
      sum += uint64_t(stores) * region.region_pages() * region.page_bytes();
  });
  return sum;
}

void revoke_credit(const ControlRegion& region, const LaneSet& lanes, uint64_t tenant, bool forced) {
  lanes.for_each(region.lanes(), [&](uint32_t lane) {
    const uint32_t place = find_account(region, lane, tenant);
    if (place == kOthersAccount) return;
    const LaneAccount& account = region.account(lane, place);
    AtomicU64& credit = region.credit(lane, place);
    const uint64_t granted = credit.load_relaxed(), charged = account.charged.load_seq_cst();  // credit: ours
    if (charged >= granted) return;
    if (!forced && stores_in_flight(account.in_flight.load_seq_cst()) != 0) return;
    credit.exchange_seq_cst(charged);  // [pairs tenant.rules]
    // A store that read the credit before may still use it.
    if (!forced && stores_in_flight(account.in_flight.load_seq_cst()) != 0) credit.exchange_seq_cst(granted);
  });
}

void grant_credit(const ControlRegion& region, uint32_t lane, uint32_t account, uint64_t bytes) {
  AtomicU64& credit = region.credit(lane, account);
  const uint64_t used = std::max(region.account(lane, account).charged.load_seq_cst(), credit.load_relaxed());  // ours
  credit.exchange_seq_cst(used + bytes);  // [pairs tenant.rules]
}

void end_account(const ControlRegion& region, uint32_t lane, uint32_t account) {
  format::LaneAccount& ended = region.account(lane, account);
  ended.in_flight.store_release(0);               // [pairs tenant.rules]
  ended.tenant.store_release(0);                  // [pairs account.tenant]
  region.credit(lane, account).store_relaxed(0);  // the next client gets the lane with a message
}

}  // namespace maru::shm
