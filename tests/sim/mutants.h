// Wrong variants of the algorithms, for the simulator's negative controls. Each leaves a rule of the format out, and
// `scripts/sim --mutants` must find each, or the rule is not tested. Those of libmaru/shm are patches (mutants/README.md); the
// others are in the files of tests/sim that are named here.
#pragma once

namespace maru {

enum MutantId : unsigned {
  kMutantNone = 0,
  kMutantPinWithoutBarrier = 1,        // the slot by a plain store, so that the word may be read before it is visible
  kMutantOneRetiredState = 2,          // the evictor goes to RETIRED at once and back to READY if it finds a pin
  kMutantRetiringWithoutAttempt = 3,   // two attempts of one evictor look alike
  kMutantPinMoves = 4,                 // a pin goes to another slot without the whole protocol
  kMutantCountOutsidePageWord = 5,     // the child count is looked at, not part of what is compared
  kMutantCountDroppedAtRetire = 6,     // the parent's count is lowered when the child is RETIRED
  kMutantRecountWithoutFlag = 7,       // a recount compares with the count alone
  kMutantPublishRereadHeader = 8,      // the commit compares with a header read after the search for duplicates
  kMutantFreeBeforeRemove = 9,         // the page is freed before its registry entry is removed
  kMutantExistsOneHeader = 10,         // exists believes tags without reading the header again
  kMutantSearchWithoutChain = 11,      // a prefix search believes the digest alone
  kMutantTailsAfterHead = 12,          // the head of a run is freed before its tails
  kMutantCountBeforeFree = 13,         // the parent's count is lowered before the child is FREE
  kMutantRecountSkipsRetiring = 14,    // RETIRING children are not counted
  kMutantLocationPlainStore = 15,      // a removed entry's location is cleared without comparing
  kMutantOverflowCountAfterSlot = 16,  // the pin overflow count is raised after the slot was written
  kMutantUntaggedFreeList = 17,        // tests/sim/wrong_pool.cc: the free list of a well-known design
  kMutantCountedPins = 18,             // tests/sim/wrong_pool.cc: its pin logic
  kMutantReturnBeforeFree = 20,        // a tenant's bytes are returned before its pages are FREE
  kMutantTenantPassIgnoresInFlight = 21,  // a pass over the pages is believed whatever is in flight
  kMutantCreditIgnoresInFlight = 22,      // credit is granted under a new limit though stores began before it
  kMutantPoisonKeepsEntry = 30,           // the entry of a POISONED block stays in the registry
  kMutantPoisonForgetsDescendants = 31,   // a recount does not count a POISONED child that still holds its ancestors
  kMutantBlockLineNotFlushed = 23,        // a publisher shows a block whose line is in its cache alone
  kMutantPayloadNotFlushed = 24,          // tests/sim/cast.cc: the payload is in the publisher's cache alone
  kMutantOtherHostsBefore = 25,           // an evictor reads which lanes other hosts have given out before its marks
  kMutantReclaimOnSuspicion = 26,         // tests/sim/scenario_hosts.cc: a late heartbeat is taken for a proof
  kMutantTwoReclaimers = 27,              // a host is declared dead by a store, so two may reclaim it
  kMutantFreeNotFlushed = 28,             // a parent's count is lowered before the child is FREE in memory
  kMutantEntryNotFlushed = 29,            // a page is freed before its entry's removal is in memory
  kMutantRentByStore = 32,                // a region that nobody rents is rented by a store, so two hosts may have it
  kMutantCloseByStore = 19,               // a FREE page of a region that changes hands becomes OUT without comparing
  kMutantVacateWithoutLook = 33,          // a page taken while a region was vacated is not looked for
  kMutantTakeOverBySlot = 34,             // the life of the reclaimer in whose slot another host is by now is not over
  kMutantProofOfAnyLife = 35,             // the proof of a host's death is used against whoever has its slot by then
  kMutantDrainForeign = 36,               // tests/sim/cast_wishes.cc: a host drains the regions of the others, too
  kMutantAdoptKeepsRetiring = 37,         // a new marud leaves the marks of the last one
  kMutantGrantAtOnce = 38,        // marud takes pages for a client in the client's name, and marks them afterwards
  kMutantGiveBackUnmarked = 39,   // after a lost answer a client gives back all it has RESERVED
  kMutantMarkOfAnyLife = 41,      // the mark of a page's earlier life counts for its present one
  kMutantGiveBackEarly = 40,      // tests/sim/scenario_grants.cc: it does so before it was let in again
  kMutantLiveAtOnce = 42,         // a host slot is LIVE before its machine's id is there
  kMutantAttachByStore = 43,      // a host slot becomes LIVE though it was ended or is another host's by now
  kMutantIdAloneTells = 44,       // a machine does not know its slot whose id it was taking away
  kMutantReleaseOfAnyCount = 46,  // a release drops whatever block's count it finds by the time of its step
  kMutantGiveBackUnclaimed = 47,  // of two threads that give back one run both free its tails
  kMutantWithdrawParent = 48,     // a publisher that lost its race retires its block though that has children
  kMutantWithdrawnIsOwn = 49,     // one whose block was retired meanwhile is told that the pages are still its own
  kMutantInheritRereadWord = 50,  // a region is inherited from a word that was read after the look at its host's slot
  kMutantAdoptByLook = 51,        // a host that attaches takes its slot's regions by their words alone
  kMutantPoisonNotFlushed = 52,   // a page is POISONED in the cache of the marud alone that says so
  kMutantFormatByLook = 53,       // memory that was seen blank is claimed by a store
  kMutantFormatUuidAnew = 54,     // who begins to format again takes another uuid
  kMutantLeaveOnce = 45,          // a host that is made SUSPECT while it leaves does not leave
  kMutantParentTouchedLate = 61,  // a parent gets its deleted child's last use after it can be seen without children
  kMutantReplyBeforeBit = 60,     // tests/sim/scenario_lanes.cc: a client has its lane before its bit is set
  kMutantLockEndsWithMarud = 62,  // tests/sim/scenario_lanes.cc: a client gets another description than the locked one
  kMutantPinBatchWithoutBarrier = 70,  // a batch of pins looks at the words while its slots may not be visible
  kMutantExistsBatchOneHeader = 71,    // a batch of keys believes tags without reading the headers again
  kMutantUnregisteredAfterPins = 72,   // the pins that tell of a dead publisher's block end before they are looked at
  kMutantBegunNotAskedFor = 75,      // the next marud does not ask for the blocks of a lane whose pins ended before it
  kMutantAdoptCountsUnflagged = 76,  // the next marud believes its count of children that came and went meanwhile
  kMutantFormatUnflushed =
      73,  // tests/sim/scenario_format.cc: a magic number before the header and the zeros are in memory
  kMutantUuidUnflushed = 74,           // pages are labelled with a uuid that is in a cache alone
  kMutantReleaseOwnerNotFlushed = 80,  // an overflow bucket is unlinked before the memory says which lane releases it
  kMutantClaimDropNotFlushed = 81,     // a page is used elsewhere while its dropped claim is in the memory still
  kMutantLinkAgainNotFlushed = 82,     // an overflow bucket is in use again, and the memory has its old link
  kMutantMarudIsNobody = 83,           // some epochs give marud the lane that means "no lane"
  kMutantMarudOfAnyEpoch = 84,  // tests/sim/cast_reclaim.cc: a marud takes the pages of its predecessor for its own
  kMutantClearedLaneNotFlushed = 85,  // a lane is FREE while the memory has pins of the dead in it
  kMutantRoomWithoutLook = 86,        // tests/sim/scenario_room.cc: a block makes room in buckets that have some
  kMutantServeUnflushed = 55,  // tests/sim/scenario_format.cc: a pool is adopted whose magic number is in a cache alone
  kMutantFindOneHeader = 100,  // a lookup believes locations without reading the header again
  kMutantFindPlainOneHeader = 101,    // a batch of lookups does so
  kMutantDuplicateOneHeader = 102,    // a publisher takes a claim that it finds for a block that is visible
  kMutantKeyUnflushed = 103,          // a publisher shows a block before its short key is in memory
  kMutantExtentUnflushed = 104,       // a publisher shows a block before its long key is in memory
  kMutantExtentOwnerUnflushed = 105,  // a publisher shows a block before the owner word of its key cell is in memory
  kMutantDetailUnflushed = 106,       // a publisher shows a block before its detail line is in memory
  kMutantChargeByAdd = 107,           // a store adds its bytes without comparing, so two threads may use one credit
  kMutantCreditOutlivesLane = 108,    // the credit of a lane that is taken back stays for its next client
  kMutantTouchesOutliveLane = 109,    // the touches of a lane that is taken back stay for its next client
  kMutantOpenStopsEarly = 110,        // opening a region ends at the first page that is not OUT
  kMutantReadKeyUnchecked = 111,      // a key is believed without reading the page word again
  kMutantPoisonReturnsEarly = 113,    // a tenant's bytes are returned before its page is POISONED
  kMutantReturnLostPage = 114,        // a lane that loses its RETIRED page to POISONED returns the bytes as well
  kMutantAskByStore = 116,            // a wish takes the place of another host's
  kMutantAdoptKeepsOverflow = 117,    // a new marud leaves the overflow buckets that the last one was linking
  kMutantAdoptFreesLinked = 118,      // a new marud frees overflow buckets that a home bucket links
  kMutantUnpinRelaxed = 119,          // a pin ends by a relaxed store
  kMutantPinWordAcquire = 120,        // a pin reads the page word by an acquire load
  kMutantRetiredUnflushed = 122,      // a block is RETIRED in the cache alone of the lane that retires it
  kMutantFeedOverwrittenLate = 130,   // the ring of a feed says that words are gone after writing over them
  kMutantFeedOverrunUnseen = 131,  // a follower believes its copy of a record without looking whether it was overtaken
  kMutantFeedEndUnchecked = 132,   // a follower begins at a position and a number of different publications
  kMutantHeaderRelaxed = 121,      // a bucket's header changes by a relaxed step

  kMutantMetadataNotFlushed = 140,     // tests/sim/cast.cc: the metadata is in the publisher's cache alone
  kMutantMetadataAfterPublish = 141,   // tests/sim/cast.cc: the metadata is written when the block is visible already
  kMutantMetadataLengthLate = 142,     // a block is visible before its line says how much metadata it has
  kMutantReadMetadataUnchecked = 143,  // metadata is believed without a pin and without reading the page word again
  kMutantDeviceReadsUnpinned = 137,    // tests/sim/scenario_tier.cc: a pin ends before the device has read the block
  kMutantDeviceOutlivesOwner = 138,    // the same: a client is dead for marud while a device still writes into its page
  kMutantPublishBeforeDevice = 139,    // the same: a block is published before the device has written all of it
};

namespace sim {

// Whether this run is with that wrong variant.
bool mutant(unsigned id);

}  // namespace sim
}  // namespace maru
