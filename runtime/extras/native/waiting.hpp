// How ranks that share memory wait for each other, and how a call can end.

#pragma once

#include <atomic>
#include <cstdint>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.hpp"

namespace topoplan {

// Codes of ../shared_memory/player.py.
enum Outcome : int { DONE, PAUSED, TIMED_OUT, PEER_ENDED, PEER_FAILED, OTHER_CALL, GAVE_UP };

// Times that a waiting rank lets others run before it sleeps, some 200 us without others. With 4
// ranks on 2 cores calls of 4 KB take a third of the time that they take with 5 (measured).
constexpr int YIELDS = 500;
// A wait checks the deadline, and whether the peer is alive, after sleeping this long.
constexpr long NAP_NS = 20'000'000;
// The shortest turn that Linux allows.
constexpr uint64_t TURN_NS = 100'000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Have the scheduler give this thread short turns from now on: beside programs that compute it gets a
// core sooner after it is woken, though no more of it. Linux before 6.12 takes no notice.
inline void ask_for_short_turns() {
  struct Attributes {  // struct sched_attr
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t turn_ns, deadline, period;
    uint32_t util_min, util_max;
  } attributes{};
  static thread_local bool has_asked = false;
  if (has_asked) return;
  has_asked = true;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) || attributes.policy != SCHED_OTHER) return;
  attributes.turn_ns = TURN_NS;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

inline long futex(std::atomic<uint32_t> *word, int operation, uint32_t value, const timespec *timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t *>(word), operation, value, timeout, nullptr, 0);
}

// Sleep until `word` is no longer `value`, but not long.
inline void nap(std::atomic<uint32_t> &word, uint32_t value) {
  timespec time{0, NAP_NS};
  futex(&word, FUTEX_WAIT, value, &time);
}

// Wake those who sleep until `rung` changes, after storing what they wait for.
inline void ring(std::atomic<uint32_t> &rung, std::atomic<uint32_t> &sleepers) {
  // Sleepers first announce themselves and then read what they wait for; it is stored before they are
  // counted here. So either they see it, or they are woken.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_relaxed)) {
    rung.fetch_add(1, std::memory_order_seq_cst);
    futex(&rung, FUTEX_WAKE, INT32_MAX, nullptr);
  }
}

// The process that joined others in shared memory. A forked child of it must not touch the memory, neither
// by a call nor as it ends: it is no rank.
struct Joined {
  pid_t process = getpid();

  bool is_forked() const { return getpid() != process; }
};

// `process` is a pidfd, or -1 if there is none.
inline bool has_ended(int process) {
  if (process < 0) return false;
  pollfd poller{process, POLLIN, 0};
  return poll(&poller, 1, 0) == 1;
}

}  // namespace topoplan
