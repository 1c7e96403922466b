// Where kernels run: a stream is the order of work of one device. Kernels get it as an opaque reference; the CPU's runs each kernel
// at once on a thread pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/call_shape.h"
#include "model/error.h"

namespace lockstep::kernels {

// Calls of a stream in order, to be made later.
using RecordedCalls = std::vector<std::function<void()>>;

class Stream {
 public:
  virtual ~Stream() = default;

  // Where this stream's calls go while it records them instead of making them; else null. Devices that capture on their own leave it null.
  RecordedCalls* recording() const { return recording_; }
  void Record(RecordedCalls* calls) { recording_ = calls; }

 private:
  RecordedCalls* recording_ = nullptr;
};

// Threads of one device and their scratch memory. ParallelFor splits [0, n) into pieces of at most `grain`; which thread runs which
// piece is not fixed, so nothing may depend on it.
class CpuStream : public Stream {
 public:
  // Refers to a callable without owning or copying it, so that launching work allocates nothing.
  class Body {
   public:
    template <typename Callable>
    Body(const Callable& callable)  // implicit: bodies are lambdas written at the call
        : callable_(&callable), call_([](const void* c, std::int64_t begin, std::int64_t end, int worker) {
            (*static_cast<const Callable*>(c))(begin, end, worker);
          }) {}
    void operator()(std::int64_t begin, std::int64_t end, int worker) const { call_(callable_, begin, end, worker); }

   private:
    const void* callable_;
    void (*call_)(const void*, std::int64_t, std::int64_t, int);
  };

  virtual int threads() const = 0;
  virtual void ParallelFor(std::int64_t n, std::int64_t grain, const Body& body) = 0;
  // At least `bytes` of 64-byte aligned memory private to the worker, uninitialized, valid until its next call of Scratch. Grows and
  // stays, so that steady state allocates nothing.
  virtual std::byte* Scratch(int worker, std::size_t bytes) = 0;
  // The same for the calling thread outside ParallelFor, shared by all workers of the next ParallelFor.
  virtual std::byte* SharedScratch(std::size_t bytes) = 0;
};

// A stream of `threads` workers, the caller among them. `threads` 1 starts none.
std::unique_ptr<CpuStream> MakeCpuStream(int threads);

inline CpuStream& AsCpu(Stream& stream) { return static_cast<CpuStream&>(stream); }

// A call's arguments, kept until the call is made. Arguments with pointers to short-lived host memory specialize it.
template <typename Args>
struct KeptArgs {
  explicit KeptArgs(const Args& a) : args(a) {}
  const Args& Get() const { return args; }
  Args args;
};

// Thrown by an implementation whose work could not be launched.
class LaunchError : public std::runtime_error {
 public:
  explicit LaunchError(const std::string& message) : std::runtime_error(message) {}
};

// One implementation of an operation. `contract` names the bits it computes: "rms_norm/F", "linear/H(sm90)+I".
template <typename Args>
struct Kernel {
  void (*run)(Stream&, const Args&) = nullptr;
  std::string_view contract;

  // Throws InputError that names contract and shapes when the device does not take the work.
  void operator()(Stream& stream, const Args& args) const {
    if (RecordedCalls* calls = stream.recording()) {
      calls->push_back([run = run, &stream, kept = KeptArgs<Args>(args)] { run(stream, kept.Get()); });
      return;
    }
    try {
      run(stream, args);
    } catch (const LaunchError& error) {
      throw InputError(std::string(contract) + " (" + ShapeOf(args) + "): " + error.what());
    }
  }
};

}  // namespace lockstep::kernels
