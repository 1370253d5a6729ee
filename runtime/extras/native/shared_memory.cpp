// Plays one-sided programs of one rank in memory that the ranks of a host share.
//
// ../shared_memory/player.py is its only caller and encodes the programs; the rules of slots, counters and
// runs are those of ../one_sided/instructions.py.

#include <atomic>
#include <cstdint>
#include <cstring>

#include "sums.hpp"
#include "waiting.hpp"

namespace {

using namespace topoplan;

// Codes of ../shared_memory/player.py.
enum Instruction : int64_t { PUT, SIGNAL, WAIT, COMBINE };

constexpr int SIGNAL_BITS = 20;
constexpr uint64_t END = (1u << SIGNAL_BITS) - 1;
// Elements that are combined at a time: the sum so far stays in the first-level cache.
constexpr int64_t BLOCK = 2048;

// What a rank shows the others; each has cache lines of its own. The processor may fetch lines in
// pairs, hence 128 bytes.
struct alignas(128) Line {
  std::atomic<uint64_t> counter;     // run << SIGNAL_BITS | signal number
  std::atomic<uint32_t> rung;        // counts signals: what sleepers wait on
  std::atomic<uint32_t> sleepers;    // ranks that sleep until `rung` changes
  std::atomic<uint32_t> failed;      // the rank has given up
  // run << 32 | call of the last two runs, by run % 2: ranks whose calls differ must not mix data.
  std::atomic<uint64_t> calls[2];
};
static_assert(sizeof(Line) == 128);

struct Channel : Joined {
  Line *lines;
  char *windows;           // ranks x 2 halves
  int64_t half_bytes;
  int rank, ranks;
  int spins;
  uint64_t run;
  // Where a paused program goes on.
  int64_t slice = 0, at = 0;
  bool is_paused = false;
  const int *processes;    // a pidfd per rank, or -1
  uint64_t *seen;          // the last counter seen of each rank
};

struct Player {
  Channel &channel;
  const int64_t *program;  // words, see _encode() in ../shared_memory/player.py
  char *work;
  int64_t dtype, reduction, slices;
  uint32_t call;
  int64_t *blame;          // on failure: the peer, and the number of the instruction's word
  double deadline = 0;

  int width = WIDTHS[dtype];
  Line &own = channel.lines[channel.rank];

  char *slot(int64_t owner, int64_t start) const {
    int64_t half = 2 * owner + int64_t(channel.run & 1);
    return channel.windows + half * channel.half_bytes + start * width;
  }

  void signal(uint64_t number) {
    own.counter.store(channel.run << SIGNAL_BITS | number, std::memory_order_release);
    ring(own.rung, own.sleepers);
  }

  int fail(Outcome outcome, int64_t peer) {
    blame[0] = peer;
    blame[1] = channel.at;
    return outcome;
  }

  // This rank has failed, or another thread of it has ended all calls.
  bool has_given_up() const { return own.failed.load(std::memory_order_relaxed); }

  uint64_t current_call() const { return channel.run << 32 | call; }

  // A peer that is two runs ahead has written another run there; it has passed this one.
  int check_call(int64_t peer) {
    uint64_t other = channel.lines[peer].calls[channel.run & 1].load(std::memory_order_relaxed);
    bool differs = other >> 32 == (channel.run & 0xffffffffu) && uint32_t(other) != call;
    return differs ? fail(OTHER_CALL, peer) : DONE;
  }

  int wait(int64_t peer, uint64_t number, uint64_t behind) {
    uint64_t needed = (channel.run - behind) << SIGNAL_BITS | number;
    if (channel.seen[peer] < needed) {
      Line &line = channel.lines[peer];
      uint64_t value = line.counter.load(std::memory_order_acquire);
      for (int spin = 0; value < needed && spin < channel.spins; spin++) {
        relax();
        value = line.counter.load(std::memory_order_acquire);
      }
      if (value < needed) {
        int outcome = sleep_until(line, peer, needed);
        if (outcome != DONE) return outcome;
        value = line.counter.load(std::memory_order_acquire);
      }
      channel.seen[peer] = value;
    }
    return behind ? DONE : check_call(peer);
  }

  int sleep_until(Line &line, int64_t peer, uint64_t needed) {
    ask_for_short_turns();
    // Another rank may need this core: let it run before sleeping.
    for (int turn = 0; turn < YIELDS; turn++) {
      sched_yield();
      if (line.counter.load(std::memory_order_acquire) >= needed) return DONE;
    }
    double began = now();
    int outcome = DONE;
    line.sleepers.fetch_add(1, std::memory_order_seq_cst);
    for (bool first = true;; first = false) {
      uint32_t rung = line.rung.load(std::memory_order_seq_cst);
      if (line.counter.load(std::memory_order_seq_cst) >= needed) break;
      if (!first) {
        double time = now();
        if (has_given_up()) { outcome = fail(GAVE_UP, peer); break; }
        bool failed = line.failed.load(std::memory_order_acquire);
        if (failed || has_ended(channel.processes[peer])) {
          // It may have ended after its last signal, which is all that this rank needs.
          if (line.counter.load(std::memory_order_seq_cst) < needed)
            outcome = fail(failed ? PEER_FAILED : PEER_ENDED, peer);
          break;
        }
        if (time >= deadline) { outcome = fail(TIMED_OUT, peer); break; }
        if (time - began >= PAUSE_S) { outcome = PAUSED; break; }
      }
      nap(line.rung, rung);
    }
    line.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    return outcome;
  }

  void put(int64_t start, int64_t length, int64_t owner, int64_t slot_start) {
    int64_t lo = length * channel.slice / slices, hi = length * (channel.slice + 1) / slices;
    memcpy(slot(owner, slot_start), work + (start + lo) * width, size_t(hi - lo) * width);
  }

  // start, length, owner and start of the slot that gets the result too (owner -1: none), number to
  // divide by (0: none), number of terms, then an owner (-1: this rank's work buffer) and start each.
  void combine(const int64_t *x) {
    int64_t lo = x[1] * channel.slice / slices, hi = x[1] * (channel.slice + 1) / slices;
    char *into = work + (x[0] + lo) * width;
    char *also = x[2] < 0 ? nullptr : slot(x[2], x[3]);
    int64_t terms = x[5];
    const int64_t *term = x + 6;
    auto at = [&](int64_t i) {
      return term[2 * i] < 0 ? work + (term[2 * i + 1] + lo) * width : slot(term[2 * i], term[2 * i + 1]);
    };
    Combiner combiner = COMBINE_BY[dtype][reduction];
    Divider divider = x[4] ? DIVIDE_BY[dtype] : nullptr;
    if (terms == 1 && !divider) {
      memcpy(into, at(0), size_t(hi - lo) * width);
      if (also) memcpy(also, at(0), size_t(hi - lo) * width);
      return;
    }
    alignas(64) char total[BLOCK * 8];
    for (int64_t done = 0; done < hi - lo; done += BLOCK) {
      int64_t n = hi - lo - done < BLOCK ? hi - lo - done : BLOCK, offset = done * width;
      bool is_direct = terms == 2 && !also && !divider;
      char *sum = is_direct ? into + offset : total;
      if (terms == 1) memcpy(sum, at(0) + offset, size_t(n) * width);
      else combiner(sum, at(0) + offset, at(1) + offset, n);
      for (int64_t i = 2; i < terms; i++) combiner(sum, sum, at(i) + offset, n);
      if (divider) divider(sum, n, x[4]);
      if (!is_direct) memcpy(into + offset, sum, size_t(n) * width);
      if (also) memcpy(also + offset, sum, size_t(n) * width);
    }
  }

  int play() {
    const int64_t words = program[0];
    const int64_t *x = program + 1;
    // Before a paused program goes on, too: another one must not go on in its place.
    if (has_given_up() || channel.is_forked()) return fail(GAVE_UP, channel.rank);
    if (!channel.is_paused) {
      channel.slice = channel.at = 0;
      own.calls[channel.run & 1].store(current_call(), std::memory_order_relaxed);
    }
    channel.is_paused = false;
    for (;;) {
      while (channel.at < words) {
        const int64_t *y = x + channel.at;
        switch (y[0]) {
        case PUT:
          put(y[1], y[2], y[3], y[4]);
          channel.at += 5;
          break;
        case SIGNAL:
          signal(uint64_t(y[1]));
          channel.at += 2;
          break;
        case WAIT: {
          int outcome = wait(y[1], uint64_t(y[2]), uint64_t(y[3]));
          if (outcome == PAUSED) channel.is_paused = true;
          else if (outcome != DONE) { own.failed.store(1, std::memory_order_release); ring(own.rung, own.sleepers); }
          if (outcome != DONE) return outcome;
          channel.at += 4;
          break;
        }
        case COMBINE:
          combine(y + 1);
          channel.at += 7 + 2 * y[6];
          break;
        }
      }
      channel.run++;
      channel.at = 0;
      if (++channel.slice == slices) return DONE;
      own.calls[channel.run & 1].store(current_call(), std::memory_order_relaxed);
    }
  }
};

}  // namespace

extern "C" {

int64_t topoplan_lines_bytes(int ranks) { return int64_t(sizeof(Line)) * ranks; }

// `base` is the shared memory: a line per rank, then two halves of a window per rank.
void *topoplan_join(void *base, int64_t half_bytes, int rank, int ranks, int spins, const int *processes) {
  auto *channel = new Channel;
  channel->lines = static_cast<Line *>(base);
  channel->windows = static_cast<char *>(base) + topoplan_lines_bytes(ranks);
  channel->half_bytes = half_bytes;
  channel->rank = rank;
  channel->ranks = ranks;
  channel->spins = spins;
  channel->run = 2;  // runs begin here, so that two runs before the first are over
  int *copies = new int[ranks];
  memcpy(copies, processes, sizeof(int) * ranks);
  channel->processes = copies;
  channel->seen = new uint64_t[ranks]();
  channel->lines[rank].counter.store(1ull << SIGNAL_BITS | END, std::memory_order_release);
  return channel;
}

void topoplan_leave(void *channel_) {
  auto *channel = static_cast<Channel *>(channel_);
  delete[] channel->processes;
  delete[] channel->seen;
  delete channel;
}

// End this rank's calls, in progress and future, and those of ranks that wait for it.
void topoplan_fail(void *channel_) {
  auto *channel = static_cast<Channel *>(channel_);
  if (channel->is_forked()) return;
  Line &own = channel->lines[channel->rank];
  own.failed.store(1, std::memory_order_release);
  ring(own.rung, own.sleepers);
}

// A player refers to the program, the work buffer and `blame`, which must outlive it.
void *topoplan_prepare(void *channel, const int64_t *program, void *work, int64_t dtype, int64_t reduction,
                       int64_t slices, uint32_t call, int64_t *blame) {
  return new Player{*static_cast<Channel *>(channel), program, static_cast<char *>(work), dtype, reduction,
                    slices, call, blame};
}

void topoplan_discard(void *player) { delete static_cast<Player *>(player); }

int topoplan_play(void *player_, double deadline) {
  auto *player = static_cast<Player *>(player_);
  player->deadline = deadline;
  return player->play();
}

}
