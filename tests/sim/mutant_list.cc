#include "mutant_list.h"

namespace maru::sim {

std::span<const MutantRecord> mutant_records() {
  static constexpr MutantRecord kRecords[] = {
      {kMutantPinWithoutBarrier, "pin without the barrier", {"pin-evict", "pin-delete"}},
      {kMutantOneRetiredState, "RETIRED for both tentative and final", {"pin-evict", "bucket-churn"}},
      {kMutantRetiringWithoutAttempt, "RETIRING without attempt number", {"two-evictors"}},
      {kMutantPinMoves, "a pin moved between slots", {"pin-move"}},
      {kMutantCountOutsidePageWord, "child count outside the page word", {"child-evict", "chain-race"}},
      {kMutantCountDroppedAtRetire, "count dropped at retire instead of at free", {"chain-hold"}},
      {kMutantRecountWithoutFlag, "recount without the flag", {"recount-swap"}},
      {kMutantPublishRereadHeader, "publish against a re-read header", {"same-key", "bucket-churn"}},
      {kMutantFreeBeforeRemove, "page freed before its registry entry", {"pin-evict", "bucket-churn"}},
      {kMutantExistsOneHeader, "exists without the second header read", {"slot-replaced"}},
      {kMutantSearchWithoutChain, "search without the chain sum", {"prefix"}},
      {kMutantTailsAfterHead, "tails freed after the head", {"runs", "pages"}},
      {kMutantCountBeforeFree, "the parent's count lowered before the child is FREE", {"chain-hold", "recount"}},
      {kMutantRecountSkipsRetiring, "a recount that skips RETIRING", {"recount-restart"}},
      {kMutantLocationPlainStore, "a location cleared by a plain store", {"entry-helped"}},
      {kMutantOverflowCountAfterSlot, "pin overflow count raised after its slot", {"pin-overflow"}},
      {kMutantUntaggedFreeList, "the untagged free list of a well-known design", {"free-list"}},
      {kMutantCountedPins, "the counted pins of that design", {"counted-pins"}},
      {kMutantReturnBeforeFree, "bytes returned before the pages are FREE", {"tenant-death", "tenant-limit"}},
      {kMutantTenantPassIgnoresInFlight, "a pass over tenants that ignores what is in flight", {"tenant-death"}},
      {kMutantCreditIgnoresInFlight, "credit under a new limit, stores of before ignored", {"tenant-limit-appears"}},
      {kMutantPoisonKeepsEntry, "the entry of a POISONED block stays", {"poison"}},
      {kMutantPoisonForgetsDescendants, "a POISONED block lets its ancestors go at once", {"poison-hold"}},
      {kMutantPayloadNotFlushed, "publish before the payload is flushed", {"host-death"}},
      {kMutantBlockLineNotFlushed, "publish without flushing the block line", {"host-death"}},
      {kMutantEntryNotFlushed, "page freed before its entry's removal is flushed", {"host-death"}},
      {kMutantFreeNotFlushed, "the parent's count lowered before the FREE is flushed", {"host-death"}},
      {kMutantOtherHostsBefore, "lanes of other hosts read before the mark", {"host-store"}},
      {kMutantReclaimOnSuspicion, "reclaim of a host on suspicion alone", {"host-store", "host-death"}},
      {kMutantRentByStore, "a region that nobody rents taken without comparing", {"host-wanted"}},
      {kMutantTwoReclaimers, "a host declared dead without comparing", {"host-death"}},
      {kMutantCloseByStore, "FREE to OUT without comparing", {"takeover", "takeover-restart", "drain"}},
      {kMutantVacateWithoutLook, "a region given up without a second look at its pages", {"host-drain", "drain"}},
      {kMutantTakeOverBySlot, "a reclaimer's life not over while its slot is in use", {"host-rejoin"}},
      {kMutantProofOfAnyLife, "a proof of death used against another life", {"host-rejoin"}},
      {kMutantDrainForeign, "a host drains the regions of others", {"host-drain"}},
      {kMutantAdoptKeepsRetiring, "a new marud leaves the marks of the last one", {"host-restart"}},
      {kMutantGrantAtOnce, "pages taken for a client in its name, and marked afterwards", {"lost-answer"}},
      {kMutantGiveBackUnmarked, "all that is RESERVED given back after a lost answer", {"lost-answer"}},
      {kMutantMarkOfAnyLife, "the mark of a lost answer taken for another life's", {"lost-answer"}},
      {kMutantGiveBackEarly, "what a lost answer named given back before marud lets in again", {"lost-answer"}},
      {kMutantLiveAtOnce, "a host slot LIVE before its machine's id is there", {"host-attach"}},
      {kMutantAttachByStore, "a host slot LIVE without comparing", {"host-attach"}},
      {kMutantIdAloneTells, "a machine that knows its slot by its id alone", {"host-attach"}},
      {kMutantLeaveOnce, "a host that is made SUSPECT while it leaves", {"host-attach"}},
      {kMutantReleaseOfAnyCount, "a release that drops another block's count", {"pin-released-twice"}},
  };
  return kRecords;
}

}  // namespace maru::sim
