// The register: opening its file, its lock, its entries, its lists. It knows nothing of the pool's content.
#pragma once

#include "libmaru/adapters/reason.h"
#include "libmaru/adapters/residency.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/mapping.h"
#include "maru/format/adapter_totals.h"

#include <functional>
#include <span>
#include <string_view>

namespace maru::adapters {

class Register {
 public:
  // The settings for a new register; an existing register keeps its own.
  struct Wish {
    std::string path;
    uint8_t pool_uuid[16] = {};
    uint64_t page_bytes = 0, part_bytes = 0;
    uint32_t entries_max = 0;
    Rules rules = {};
    std::string base_model;
    uint8_t base_fingerprint[16] = {};
    uint32_t timeout_ms = 5000;
  };

  int open(const Wish& wish, maru_adapters_reason* reason);

  Head& head() const { return *reinterpret_cast<Head*>(mapping_.data()); }
  const Rules& rules() const { return rules_; }
  Entry& entry(uint32_t number) const { return entries_[number]; }
  uint32_t entries_max() const { return entries_max_; }
  uint32_t own_number() const { return own_number_; }
  // Any thread, without the lock.
  void count(format::AdapterTotal which, uint64_t by = 1) const { totals().values[which].fetch_add_relaxed(by); }
  uint64_t total(format::AdapterTotal which) const { return totals().values[which].load_relaxed(); }

  // The lock of all processes. Nothing happens under it that waits, and nothing that reads a file.
  class Locked {
   public:
    Locked() = default;
    Locked(Locked&& other) noexcept : mutex_(std::exchange(other.mutex_, nullptr)) {}
    Locked& operator=(Locked&&) = delete;
    ~Locked() {
      if (mutex_ != nullptr) ::pthread_mutex_unlock(mutex_);
    }
    bool ok() const { return mutex_ != nullptr; }

   private:
    friend class Register;
    explicit Locked(pthread_mutex_t* mutex) : mutex_(mutex) {}
    pthread_mutex_t* mutex_ = nullptr;
  };
  // Not ok() when another process keeps it for longer than timeout_ms. Repairs after the death of an owner.
  Locked lock() const;

  // With the lock, all of the following.
  // The number of a name's entry; entries_max() when there is none.
  uint32_t find(std::string_view name) const;
  // A free entry, zeroed. Errors: -ENOSPC the register is full, or the file system.
  int take_free(uint32_t* ret_number);
  // Makes the entry of take_free live under its name.
  void publish(uint32_t number);
  // Forgets a live entry.
  void forget(uint32_t number);
  bool is_live(uint32_t number) const { return (entries_[number].life.load(std::memory_order_relaxed) & 1) != 0; }
  void set_resident(uint32_t number, Form form, bool is_resident, uint64_t now_ms);
  bool is_resident(uint32_t number, Form form) const {
    return (entries_[number].resident.load(std::memory_order_relaxed) >> index_of(form) & 1) != 0;
  }
  std::span<const uint32_t> residents(Form form) const {
    return {lists_[index_of(form)], std::min(head().resident_count[index_of(form)], entries_max_)};
  }
  void begin(uint32_t number, Form form, Doing doing);
  void end(uint32_t number, Form form);

  // Whether the process of an intent is gone for certain.
  bool is_dead(uint32_t owner) const;
  // Waits until the word changes; false when it did not within the time.
  bool wait_for_change(const Entry& entry, Form form, uint32_t seen, uint32_t timeout_ms) const;

 private:
  int make(const Wish& wish, maru_adapters_reason* reason);
  int adopt(const Wish& wish, maru_adapters_reason* reason);
  int map(uint64_t bytes, uint32_t entries_max, maru_adapters_reason* reason);
  int hold_own_number(maru_adapters_reason* reason);
  int open_totals(const Wish& wish, bool is_new, maru_adapters_reason* reason);
  format::AdapterTotals& totals() const { return *reinterpret_cast<format::AdapterTotals*>(totals_.data()); }
  void show_residents() const;
  void rebuild() const;
  uint32_t bucket_of(uint64_t hash) const { return uint32_t(hash) & (buckets_count_ - 1); }
  void enter_name(uint32_t number) const;

  FileDescriptor file_;
  Mapping mapping_;
  Mapping totals_;
  Rules rules_ = {};
  uint32_t* buckets_ = nullptr;  // entry + 1; 0: empty, kGone: was used
  uint32_t* lists_[kForms] = {};
  Entry* entries_ = nullptr;
  uint32_t entries_max_ = 0, buckets_count_ = 0;
  uint32_t own_number_ = 0;
  uint32_t timeout_ms_ = 0;
};

uint64_t hash_of_name(std::string_view name);

}  // namespace maru::adapters
