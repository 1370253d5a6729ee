// Plays programs of one rank over MPI's persistent requests, each operation as soon as those that it
// depends on have ended.
//
// ../mpi/native_player.py is its only caller: it encodes the programs, makes the requests, and passes
// the functions of the MPI library that mpi4py uses. Requests are opaque bytes here, since they are
// pointers in Open MPI and numbers in MPICH.

#include <cstring>
#include <sched.h>
#include <vector>

#include "clock.hpp"
#include "operations.hpp"

namespace {

using namespace topoplan;

// Codes of ../mpi/native_player.py.
enum Kind : int64_t { MESSAGE, LOCAL };
enum Outcome : int { DONE, PAUSED, TIMED_OUT, FAILED };
enum State : char { IDLE, BEGUN, ENDED };

// After an operation on at least this many bytes, messages are tested before the next one: MPI moves them
// only when it is called.
constexpr int64_t LARGE_BYTES = 32 << 10;
// Tests of messages between two looks at the clock, which takes as long as a test.
constexpr int TESTS_PER_LOOK = 16;

struct Mpi {
  int (*start_all)(int requests, void *handles);
  int (*test_some)(int requests, void *handles, int *ended, int *places, void *statuses);
  int64_t handle_bytes, status_bytes;
};

struct Node {
  bool is_message, is_large;
  int64_t request;     // a message's place among the requests
  int64_t needs;       // number of nodes that must end before it begins
  int64_t followers, followers_end, operations, operations_end;
};

struct Player {
  const Mpi mpi;
  int64_t dtype, reduction;
  bool yields;
  char *states;        // of each node: Python reads them when a call fails
  const char *handles;

  std::vector<Node> nodes;
  std::vector<int64_t> followers, first;  // `first`: nodes that need nothing, in the order to begin them
  std::vector<Operation> operations;
  int64_t requests = 0;

  // The call in progress. Started messages are at the same place in `active` and `whose`.
  std::vector<int64_t> needs, local, posts, whose;
  std::vector<char> active, statuses;
  std::vector<int> places;
  size_t at = 0;       // `local` nodes before it have ended
  int error = 0;

  void read(const int64_t *x, void *const *buffers) {
    int64_t number = *x++;
    for (int64_t i = 0; i < number; i++) {
      Node node{};
      node.is_message = *x++ == MESSAGE;
      if (node.is_message) node.request = requests++;
      node.needs = *x++;
      node.followers = int64_t(followers.size());
      for (int64_t left = *x++; left; left--) followers.push_back(*x++);
      node.followers_end = int64_t(followers.size());
      node.operations = int64_t(operations.size());
      int64_t bytes = 0;
      for (int64_t left = *x++; left; left--, x += OPERATION_WORDS) {
        operations.push_back(read_operation(x, buffers));
        bytes += operations.back().bytes(dtype);
      }
      node.operations_end = int64_t(operations.size());
      node.is_large = bytes >= LARGE_BYTES;
      nodes.push_back(node);
    }
    first.assign(x + 1, x + 1 + *x);
    active.resize(size_t(requests * mpi.handle_bytes));
    statuses.resize(size_t(requests * mpi.status_bytes));
    places.resize(size_t(requests));
  }

  void begin() {
    needs.clear();
    for (const Node &node : nodes) needs.push_back(node.needs);
    local.clear();
    posts.clear();
    whose.clear();
    at = 0;
    memset(states, IDLE, nodes.size());
    for (int64_t node : first) (nodes[node].is_message ? posts : local).push_back(node);
  }

  void end(int64_t node) {
    states[node] = ENDED;
    for (int64_t i = nodes[node].followers; i < nodes[node].followers_end; i++) {
      int64_t after = followers[i];
      if (!--needs[after]) (nodes[after].is_message ? posts : local).push_back(after);
    }
  }

  void execute(const Node &node) const {
    for (int64_t i = node.operations; i < node.operations_end; i++) operations[i].execute(dtype, reduction);
  }

  // Messages start before large operations, and are tested after each.
  void execute_local() {
    while (at < local.size()) {
      int64_t node = local[at];
      if (nodes[node].is_large && !posts.empty()) return;
      at++;
      execute(nodes[node]);
      end(node);
      if (nodes[node].is_large) return;
    }
  }

  bool start() {
    size_t width = size_t(mpi.handle_bytes);
    char *starting = active.data() + whose.size() * width;
    for (size_t i = 0; i < posts.size(); i++) {
      memcpy(starting + i * width, handles + size_t(nodes[posts[i]].request) * width, width);
      states[posts[i]] = BEGUN;
    }
    error = mpi.start_all(int(posts.size()), starting);
    whose.insert(whose.end(), posts.begin(), posts.end());
    posts.clear();
    return error == 0;
  }

  // Return the number of messages that have ended, or -1 after an error.
  int test() {
    int ended = 0;
    error = mpi.test_some(int(whose.size()), active.data(), &ended, places.data(), statuses.data());
    if (error) return -1;
    size_t width = size_t(mpi.handle_bytes);
    for (int i = 0; i < ended; i++) {
      int64_t &node = whose[size_t(places[i])];
      end(node);
      node = -1;
    }
    if (ended) {
      size_t left = 0;
      for (size_t i = 0; i < whose.size(); i++) {
        if (whose[i] < 0) continue;
        if (left < i) {
          whose[left] = whose[i];
          memcpy(active.data() + left * width, active.data() + i * width, width);
        }
        left++;
      }
      whose.resize(left);
    }
    return ended;
  }

  int play(double deadline) {
    double began = now();
    for (int tests = 1;; tests++) {
      execute_local();
      if (!posts.empty() && !start()) return FAILED;
      if (whose.empty()) {
        if (at == local.size()) return DONE;
        continue;
      }
      int ended = test();
      if (ended < 0) return FAILED;
      if (!ended && at == local.size() && yields) sched_yield();
      if (tests % TESTS_PER_LOOK == 0) {
        double time = now();
        if (time >= deadline) return TIMED_OUT;
        if (time - began >= PAUSE_S) return PAUSED;
      }
    }
  }
};

}  // namespace

extern "C" {

// A player refers to `handles`, `states` and the buffers, which must outlive it.
void *topoplan_mpi_prepare(void *start_all, void *test_some, int64_t handle_bytes, int64_t status_bytes,
                           const int64_t *words, void *const *buffers, int64_t dtype, int64_t reduction,
                           int yields, const char *handles, char *states) {
  auto *player = new Player{
      {reinterpret_cast<decltype(Mpi::start_all)>(start_all),
       reinterpret_cast<decltype(Mpi::test_some)>(test_some), handle_bytes, status_bytes},
      dtype, reduction, yields != 0, states, handles};
  player->read(words, buffers);
  return player;
}

void topoplan_mpi_discard(void *player) { delete static_cast<Player *>(player); }

// Play the program from its begin, or, if `goes_on`, from where it has paused.
int topoplan_mpi_play(void *player_, double deadline, int goes_on) {
  auto *player = static_cast<Player *>(player_);
  if (!goes_on) player->begin();
  return player->play(deadline);
}

// Return the code of the error with which MPI has failed.
int topoplan_mpi_error(void *player) { return static_cast<Player *>(player)->error; }

}
