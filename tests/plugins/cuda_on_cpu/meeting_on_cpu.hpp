#pragma once
// Where fibers that stand for CUDA threads wait for each other. fault is what a thread did that a GPU forbids, and
// progress says that some thread went on since it was last cleared. Who includes this says how a fiber pauses.
namespace cpu {
static const char *fault = nullptr;
static bool progress;
inline void pause();

struct Meeting {
  unsigned size, here = 0, round = 0;
  void wait() {
    const unsigned mine = round;
    if (++here == size) {
      here = 0, ++round, progress = true;
    } else {
      while (round == mine) pause();
    }
  }
};
}  // namespace cpu
