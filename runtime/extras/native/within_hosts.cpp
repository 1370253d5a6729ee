// Plays the parts of message programs that stay inside one host: messages to ranks of the host go
// through pipes in memory that these share, and local operations are carried out in between.
//
// ../shared_memory/player_within_hosts.py is its only caller: it encodes the programs, and sends
// the other messages itself. ../shared_memory/parts.py says why no rank waits for one that waits
// for it.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "operations.hpp"
#include "waiting.hpp"

namespace {

using namespace topoplan;

// Codes of ../shared_memory/player_within_hosts.py.
enum Instruction : int64_t { SEND, EXPECT, AWAIT, OPERATE };
enum Start : int { GO_ON, BEGIN_PART, BEGIN_CALL };

// What a pipe holds. Two ranks' pipes fit into the second-level cache of current servers.
constexpr uint64_t PIPE_BYTES = 256 << 10;
// Bytes after which one rank shows the other how far it is, so that both copy at the same time.
constexpr uint64_t CHUNK_BYTES = 32 << 10;
// Messages begin at multiples of this in a pipe, so that a header is never cut in two.
constexpr uint64_t ALIGNMENT = 16;

// The processor may fetch cache lines in pairs, hence 128 bytes.
struct alignas(128) Member {
  std::atomic<uint32_t> rung;        // changes when the rank must look at its pipes again
  std::atomic<uint32_t> sleepers;    // 1 while the rank sleeps until then
  std::atomic<uint32_t> failed;      // the rank has given up
};

struct alignas(128) Counter {
  std::atomic<uint64_t> bytes;
};

// Carries bytes from one rank to another, in order.
struct Pipe {
  Counter written, read;   // since the pipe was made
};

// Precedes each message: ranks whose calls differ must not mix data.
struct Header {
  uint64_t message;        // call << 32 | number of the message between the two ranks
  uint64_t bytes;
};
static_assert(sizeof(Header) == ALIGNMENT);

uint64_t pad(uint64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

struct Links : Joined {
  Member *members;
  Pipe *pipes;             // from each member to each
  char *contents;
  int place, count;
  int spins;
  std::vector<int> processes;            // a pidfd per member, or -1
  std::vector<uint64_t> written, read;   // this rank's own ends, by the other member

  int64_t number(int64_t from, int64_t to) const { return from * count + to; }
  Pipe &pipe(int64_t from, int64_t to) const { return pipes[number(from, to)]; }
  char *bytes(int64_t from, int64_t to) const { return contents + number(from, to) * int64_t(PIPE_BYTES); }
  void wake(int64_t member) const { ring(members[member].rung, members[member].sleepers); }

  void fail() const {
    if (is_forked()) return;
    members[place].failed.store(1, std::memory_order_release);
    for (int member = 0; member < count; member++) wake(member);
  }
};

struct Message {
  char *into;
  uint64_t bytes, number;
};

// The messages that arrive from one member in a call.
struct Arrivals {
  std::vector<Message> messages;
  size_t expected = 0, arrived = 0;   // numbers of messages
  uint64_t done = 0;                  // bytes of the next one
  bool has_begun = false;             // whether its header was read
};

struct Player {
  Links &links;
  const int64_t *program;
  std::vector<char *> buffers;
  int64_t dtype, reduction;
  uint64_t call;
  int64_t *blame;          // on failure: the member, and the place of the instruction in the program
  std::vector<Arrivals> arrivals{};
  double deadline = 0;
  // Where a paused program goes on.
  int64_t at = 0;
  uint64_t sent = 0;       // bytes of the message in progress
  bool is_sending = false;

  Member &own = links.members[links.place];

  int fail(Outcome outcome, int64_t member) {
    blame[0] = member;
    blame[1] = at;
    return outcome;
  }

  // Read what has come from a member, and return an outcome other than DONE if it is another call's.
  int drain(int64_t member) {
    Arrivals &from = arrivals[size_t(member)];
    if (from.arrived == from.expected) return DONE;
    Pipe &pipe = links.pipe(member, links.place);
    const char *bytes = links.bytes(member, links.place);
    uint64_t &read = links.read[size_t(member)], written = pipe.written.bytes.load(std::memory_order_acquire);
    while (from.arrived < from.expected && read < written) {
      const Message &message = from.messages[from.arrived];
      uint64_t place = read % PIPE_BYTES;
      if (!from.has_begun) {
        Header header;
        memcpy(&header, bytes + place, sizeof header);
        if (header.message != (call << 32 | message.number) || header.bytes != message.bytes)
          return fail(OTHER_CALL, member);
        from.has_begun = true;
        from.done = 0;
        read += sizeof header;
        continue;
      }
      uint64_t n = std::min({written - read, pad(message.bytes) - from.done, PIPE_BYTES - place, CHUNK_BYTES});
      memcpy(message.into + from.done, bytes + place, size_t(std::min(n, message.bytes - from.done)));
      from.done += n;
      read += n;
      if (from.done == pad(message.bytes)) {
        from.arrived++;
        from.has_begun = false;
      }
      pipe.read.bytes.store(read, std::memory_order_release);
      links.wake(member);
      written = pipe.written.bytes.load(std::memory_order_acquire);
    }
    return DONE;
  }

  // Read from all pipes while waiting, since a peer may wait for room in one of them.
  template <class Condition> int wait(int64_t member, Condition holds) {
    int outcome = DONE;
    auto is_over = [&] {
      for (int64_t other = 0; other < links.count && outcome == DONE; other++) outcome = drain(other);
      return outcome != DONE || holds();
    };
    for (int spin = 0; spin <= links.spins; spin++) {
      if (is_over()) return outcome;
      relax();
    }
    ask_for_short_turns();
    // Another rank may need this core: let it run before sleeping.
    for (int turn = 0; turn < YIELDS; turn++) {
      sched_yield();
      if (is_over()) return outcome;
    }
    double began = now();
    own.sleepers.store(1, std::memory_order_seq_cst);
    for (bool first = true;; first = false) {
      uint32_t rung = own.rung.load(std::memory_order_seq_cst);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (is_over()) break;
      if (!first) {
        double time = now();
        if (own.failed.load(std::memory_order_relaxed)) { outcome = fail(GAVE_UP, member); break; }
        bool failed = links.members[member].failed.load(std::memory_order_acquire);
        if (failed || has_ended(links.processes[size_t(member)])) {
          // It may have ended after what this rank needs of it.
          if (!is_over()) outcome = fail(failed ? PEER_FAILED : PEER_ENDED, member);
          break;
        }
        if (time >= deadline) { outcome = fail(TIMED_OUT, member); break; }
        if (time - began >= PAUSE_S) { outcome = PAUSED; break; }
      }
      nap(own.rung, rung);
    }
    own.sleepers.store(0, std::memory_order_seq_cst);
    return outcome;
  }

  int send(int64_t member, const char *from, uint64_t bytes, uint64_t number) {
    Pipe &pipe = links.pipe(links.place, member);
    char *into = links.bytes(links.place, member);
    uint64_t &written = links.written[size_t(member)], padded = pad(bytes);
    while (!is_sending || sent < padded) {
      uint64_t n = std::min(is_sending ? padded - sent : sizeof(Header) + padded, CHUNK_BYTES);
      auto has_room = [&] {
        return written + n - pipe.read.bytes.load(std::memory_order_acquire) <= PIPE_BYTES;
      };
      if (!has_room()) {
        int outcome = wait(member, has_room);
        if (outcome != DONE) return outcome;
      }
      if (!is_sending) {
        Header header{call << 32 | number, bytes};
        memcpy(into + written % PIPE_BYTES, &header, sizeof header);
        written += sizeof header;
        n -= sizeof header;
        is_sending = true;
        sent = 0;
      }
      for (uint64_t left = n; left;) {
        uint64_t place = written % PIPE_BYTES, part = std::min(left, PIPE_BYTES - place);
        memcpy(into + place, from + sent, size_t(std::min(part, bytes - sent)));
        written += part;
        sent += part;
        left -= part;
      }
      pipe.written.bytes.store(written, std::memory_order_release);
      links.wake(member);
    }
    is_sending = false;
    return DONE;
  }

  int play(int64_t end) {
    if (own.failed.load(std::memory_order_relaxed) || links.is_forked()) return fail(GAVE_UP, links.place);
    while (at < end) {
      const int64_t *x = program + at;
      int outcome = DONE;
      int64_t length = 2;
      switch (x[0]) {
      case SEND:
        outcome = send(x[1], buffers[size_t(x[2])] + x[3], uint64_t(x[4]), uint64_t(x[5]));
        length = 6;
        break;
      case EXPECT:
        arrivals[size_t(x[1])].expected++;
        break;
      case AWAIT: {
        Arrivals &from = arrivals[size_t(x[1])];
        auto is_there = [&] { return from.arrived >= size_t(x[2]); };
        if (!is_there()) outcome = wait(x[1], is_there);
        length = 3;
        break;
      }
      case OPERATE:
        for (int64_t i = 0; i < x[1]; i++)
          read_operation(x + 2 + i * OPERATION_WORDS, reinterpret_cast<void *const *>(buffers.data()))
              .execute(dtype, reduction);
        length = 2 + x[1] * OPERATION_WORDS;
        break;
      }
      if (outcome != DONE) {
        if (outcome != PAUSED) links.fail();
        return outcome;
      }
      at += length;
    }
    return DONE;
  }

  void begin_call() {
    for (Arrivals &from : arrivals) from.expected = from.arrived = 0;
  }
};

}  // namespace

extern "C" {

int64_t topoplan_pipes_bytes(int members) {
  int64_t pairs = int64_t(members) * members;
  return int64_t(sizeof(Member)) * members + pairs * int64_t(sizeof(Pipe) + PIPE_BYTES);
}

// `base` is memory that the host's ranks share, all zeros at first: members, pipes, their contents.
void *topoplan_pipes_join(void *base, int place, int members, int spins, const int *processes) {
  auto *links = new Links;
  links->members = static_cast<Member *>(base);
  links->pipes = reinterpret_cast<Pipe *>(links->members + members);
  links->contents = reinterpret_cast<char *>(links->pipes + members * members);
  links->place = place;
  links->count = members;
  links->spins = spins;
  links->processes.assign(processes, processes + members);
  links->written.assign(size_t(members), 0);
  links->read.assign(size_t(members), 0);
  return links;
}

void topoplan_pipes_leave(void *links) { delete static_cast<Links *>(links); }

// End this rank's calls, in progress and future, and those of ranks of the host that wait for it.
void topoplan_pipes_fail(void *links) { static_cast<Links *>(links)->fail(); }

// A player refers to the program, the buffers and `blame`, which must outlive it. `receives` has for
// each member a number of messages, then a buffer, an offset, bytes and a number for each.
void *topoplan_pipes_prepare(void *links_, const int64_t *program, const int64_t *receives,
                             void *const *buffers, int number_of_buffers, int64_t dtype, int64_t reduction,
                             uint32_t call, int64_t *blame) {
  auto &links = *static_cast<Links *>(links_);
  auto *player = new Player{links, program, {}, dtype, reduction, call, blame};
  for (int i = 0; i < number_of_buffers; i++) player->buffers.push_back(static_cast<char *>(buffers[i]));
  const int64_t *x = receives;
  for (int member = 0; member < links.count; member++) {
    player->arrivals.emplace_back();
    for (int64_t left = *x++; left; left--, x += 4)
      player->arrivals.back().messages.push_back(
          {player->buffers[size_t(x[0])] + x[1], uint64_t(x[2]), uint64_t(x[3])});
  }
  return player;
}

void topoplan_pipes_discard(void *player) { delete static_cast<Player *>(player); }

// Play the words from `begin` to `end`, or, by `start`, from where the program has paused.
int topoplan_pipes_play(void *player_, int64_t begin, int64_t end, double deadline, int start) {
  auto *player = static_cast<Player *>(player_);
  if (start != GO_ON) player->at = begin;
  if (start == BEGIN_CALL) player->begin_call();
  player->deadline = deadline;
  return player->play(end);
}

}
