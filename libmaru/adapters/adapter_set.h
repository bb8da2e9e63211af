// One process's use of a register and a pool: load, acquire, release, and the moves between the forms.
//
// A form of an adapter changes under an intent. With the register's lock a process writes an intent into the entry, does the
// work without the lock, and removes the intent with the lock. The next process that meets an intent of a dead process finishes
// it. It removes the rest of the form, and the adapter is as if the dead process had never begun.
//
//   make    intent "making", and the form counts in the budget | pages | fill | store, the deepest part last | intent away
//   remove  intent "removing" | the deepest part goes, unless held | the others go | the form no longer counts, intent away
#pragma once

#include "libmaru/adapters/adapter_file.h"
#include "libmaru/adapters/pool_form.h"
#include "libmaru/adapters/register.h"
#include "libmaru/adapters/tier_hold.h"

#include <functional>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

// An adapter that a program holds. The holds of one program on one form of an adapter share this object.
namespace maru::adapters {
class AdapterSet;
}
struct maru_adapter {
  maru_adapter(maru::adapters::AdapterSet* of, uint32_t entry, uint64_t of_life, maru::adapters::Form of_form,
               uint64_t count, std::shared_ptr<const maru::adapters::Shape> of_shape, maru::adapters::HeldParts held)
      : set(of),
        number(entry),
        life(of_life),
        form(of_form),
        holds(count),
        shape(std::move(of_shape)),
        parts(std::move(held)) {}
  maru::adapters::AdapterSet* set;
  uint32_t number;
  uint64_t life;
  maru::adapters::Form form;
  uint64_t holds;
  std::shared_ptr<const maru::adapters::Shape> shape;
  maru::adapters::HeldParts parts;
};

namespace maru::adapters {

// Points at which a test ends the process.
enum class Step {
  kMakingBegun,
  kAllocated,
  kFilled,
  kStoringPart,
  kStored,
  kRemovingBegun,
  kDeepestRemoved,
  kPartsRemoved,
};

class AdapterSet {
 public:
  struct Wish {
    Register::Wish in_register;
    std::string root;
    std::string tier_socket;  // empty: no tier
    std::vector<BaseModule> base;
    std::function<uint64_t()> now_ms;
    std::function<void(Step)> at_step;  // tests only; may be empty
  };

  AdapterSet(maru_client* client, Wish wish);
  ~AdapterSet();
  AdapterSet(const AdapterSet&) = delete;
  AdapterSet& operator=(const AdapterSet&) = delete;

  int open(maru_adapters_reason* reason);
  int load(const std::string& name, const std::string& folder, uint32_t flags, maru_adapters_reason* reason);
  int unload(const std::string& name, maru_adapters_reason* reason);
  int acquire(const std::string& name, uint32_t want, maru_adapter** ret_adapter, maru_adapters_reason* reason);
  void release(maru_adapter* adapter);
  int prefetch(const std::string& name, uint32_t want);
  int rebalance(uint32_t moves_max);
  int find(const std::string& name, maru_adapter_info* ret_info);
  int next(uint64_t* cursor, maru_adapter_info* ret_info);
  int describe(const maru_adapter& adapter, maru_adapter_info* ret_info);
  int statistics(maru_adapters_statistics* ret_statistics);

 private:
  struct Name {
    uint32_t number;
    uint64_t life;
  };
  // An adapter as its files have it, and the size of one of its forms.
  struct Files {
    AdapterFile file;
    Manifest manifest;
    std::vector<ModuleTensors> tensors;
  };
  struct FormSize {
    uint64_t bytes;
    uint32_t parts;
  };
  enum class Pressure { kDemand, kRules, kWait };  // a request wants room, the rules want it, or another process works

  void step(Step at) const {
    if (wish_.at_step) wish_.at_step(at);
  }
  uint64_t part_bytes() const { return register_.head().part_bytes; }
  int locked_too_long(maru_adapters_reason* reason) const;
  bool is_same(const Name& name) const {
    // [pairs adapters.life]
    return register_.entry(name.number).life.load(std::memory_order_acquire) == name.life;
  }
  int look_up(const std::string& name, Name* ret_name, maru_adapters_reason* reason);
  int read_files(const std::string& folder, Files* ret_files, maru_adapters_reason* reason) const;
  int measure(const Manifest& manifest, Form form, FormSize* ret_size, maru_adapters_reason* reason) const;
  void fill_info(uint32_t number, maru_adapter_info* ret_info) const;

  // Presence and holding.
  maru_adapter* own_hold(const Name& name, uint32_t want);
  int hold(const Name& name, Form form, maru_adapter** ret_adapter);
  std::shared_ptr<const Shape> known_shape(const Name& name, Form form);
  int read_shape(const Name& name, Form form, std::span<const std::byte> first_part, Shape* shape) const;
  bool is_there(uint32_t number, Form form) const;
  bool is_own(uint32_t number, Form form);

  // Moves (adapter_moves.cc).
  // A form that was made, or brought from a tier, kept from eviction until the caller holds it.
  struct Fresh {
    std::optional<NewParts> parts;
    TierHold tier;
    void let_go() {
      parts.reset();
      tier.let_go();
    }
  };
  int bring(const Name& name, Form form, Pressure pressure, Fresh& ret_fresh, maru_adapters_reason* reason);
  int wait_for_other(const Name& name, Form form, maru_adapters_reason* reason);
  int make(uint32_t number, Form form, Pressure pressure, Fresh& fresh, maru_adapters_reason* reason);
  int make_room(uint32_t number, Form form, Pressure pressure, maru_adapters_reason* reason);
  bool has_room(Form form) const;
  std::vector<Name> victims(uint32_t number, Form form, Pressure pressure);
  int make_from_tier(uint32_t number, Form form, TierHold& tier) const;
  int make_from_file(uint32_t number, Form form, NewParts& parts, maru_adapters_reason* reason);
  int make_from_hot(const Name& name, NewParts& parts, maru_adapters_reason* reason);
  bool begin(const Name& name, Form form, Doing doing);
  void end(const Name& name, Form form, bool is_resident);
  // Ends an intent that has begun, also where memory runs out meanwhile.
  class Intent {
   public:
    Intent(AdapterSet& set, const Name& name, Form form, bool is_resident)
        : set_(set), name_(name), form_(form), is_resident_(is_resident) {}
    ~Intent() { set_.end(name_, form_, is_resident_); }
    Intent(const Intent&) = delete;
    Intent& operator=(const Intent&) = delete;
    void set_resident(bool is_resident) { is_resident_ = is_resident; }

   private:
    AdapterSet& set_;
    const Name name_;
    const Form form_;
    bool is_resident_;
  };
  enum class Rest { kTake, kLeave };  // of the parts, in the pool
  int remove(const Name& name, Form form, Rest rest = Rest::kTake);
  int take_out(uint32_t number, Form form) const;
  void forget_evicted(const Name& name, Form form);
  bool is_stale(uint32_t number, Form form);
  void repair(uint32_t number, Form form);
  void repair_all();

  // A move that the rules want for a resident adapter (adapter_rebalance.cc).
  struct Wanted {
    Name name;
    Move move;
    uint32_t uses;
  };
  std::vector<Wanted> wanted_moves(uint64_t now_ms) const;
  bool do_move(const Wanted& wanted);
  Standing standing_of(uint32_t number, uint64_t now_ms) const;

  maru_client* const client_;
  const Wish wish_;
  Register register_;
  std::mutex mutex_;  // of the members below
  std::unordered_map<std::string, Name> names_;
  struct KnownShape {
    uint64_t life;
    std::shared_ptr<const Shape> shape;
  };
  std::unordered_map<uint64_t, KnownShape> shapes_;                    // by form_key()
  std::unordered_map<uint64_t, std::unique_ptr<maru_adapter>> holds_;  // likewise
  std::unordered_set<uint64_t> own_intents_;  // likewise: work that a thread of this process does now
};

constexpr uint64_t form_key(uint32_t number, Form form) { return uint64_t{number} << 1 | index_of(form); }

// The tensor type of a form.
inline Element element_of(const Entry& entry, Form form) {
  return form == Form::kWarm ? Element::kInt8 : Element(entry.element);
}

}  // namespace maru::adapters
