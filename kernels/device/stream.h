// Where kernels run: a stream is the order of work of one device. Kernels get it as an opaque reference; the CPU's runs each kernel
// at once on a thread pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace lockstep::kernels {

class Stream {
 public:
  virtual ~Stream() = default;
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

// One implementation of an operation. `contract` names the bits it computes: "rms_norm/F", "linear/H(sm90)+I".
template <typename Args>
struct Kernel {
  void (*run)(Stream&, const Args&) = nullptr;
  std::string_view contract;
  void operator()(Stream& stream, const Args& args) const { run(stream, args); }
};

}  // namespace lockstep::kernels
