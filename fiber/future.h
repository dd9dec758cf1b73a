// Waiting for base futures: blocks the fiber (or the plain thread).

#ifndef FLARE_FIBER_FUTURE_H_
#define FLARE_FIBER_FUTURE_H_
