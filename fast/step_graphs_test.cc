// Captured steps against the same steps as they run: logits of every step, over sequences that come and go, and the life of the graphs.
#include "fast/step_graphs.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fast/engine.h"

namespace lockstep::fast {
namespace {

const std::string kModels = LOCKSTEP_SOURCE_DIR "/golden/models/";

// Where engines run: LOCKSTEP_TEST_DEVICE, for machines with a device.
kernels::DeviceSpec TestDevice() {
  const char* device = std::getenv("LOCKSTEP_TEST_DEVICE");
  return kernels::ParseDeviceSpec(device ? device : "cpu,threads=1");
}

// --- on an engine

struct Decode {
  std::vector<std::vector<float>> logits;  // of each step, empty where a token was drawn instead
  std::vector<std::int32_t> drawn;
  EngineStats stats;
};

// How sequence `i` draws at a step.
kernels::SamplingRow DrawOf(std::size_t i, std::int32_t step) {
  return {.temperature = i == 0 ? 0.0f : 1.0f, .draw = (std::uint64_t{1} << 53) / 41 * static_cast<std::uint64_t>(step + 1)};
}

// Three sequences that begin with prompts of different lengths; the third leaves half-way. Tokens are given, not chosen; of the first `draws` sequences
// they are also drawn.
Decode RunDecode(const std::string& model, Residency residency, CpuLane lane, Graphs graphs, std::size_t draws = 0) {
  EngineOptions options;
  options.device = TestDevice();
  options.residency = residency;
  options.cpu_lane = lane;
  options.graphs = graphs;
  options.max_context = 256;
  options.page_shift = 2;
  options.poison = true;
  FastEngine engine(std::make_shared<Checkpoint>(OpenCheckpoint(kModels + model)), options);
  std::vector<std::unique_ptr<FastSession>> sessions;
  for (const std::int64_t prompt : {17, 40, 3}) {
    sessions.emplace_back(static_cast<FastSession*>(engine.NewSession().release()));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(prompt));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(3 + i % 40);
    sessions.back()->Append(ids, 1);
  }
  engine.ResetStats();
  Decode decode;
  for (std::int32_t step = 0; step < 40; ++step) {
    if (step == 20) sessions.pop_back();
    std::vector<std::int32_t> ids(sessions.size());
    std::vector<Segment> segments(sessions.size());
    std::vector<kernels::SamplingRow> rows(sessions.size());
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      ids[i] = static_cast<std::int32_t>((7 * step + 11 * static_cast<std::int32_t>(i)) % 60);
      segments[i].state = &sessions[i]->state();
      segments[i].ids = {&ids[i], 1};
      segments[i].prompt_end = sessions[i]->position() + 1;
      segments[i].last_rows = 1;
      rows[i] = DrawOf(i, step);
      if (i < draws) segments[i].draw = &rows[i];
    }
    EXPECT_TRUE(engine.RunStep(segments, [] { return false; }));
    for (const Segment& segment : segments) {
      decode.logits.push_back(segment.logits);
      decode.drawn.push_back(segment.drawn);
    }
  }
  decode.stats = engine.stats();
  return decode;
}

void ExpectSameBits(const std::string& model, Residency residency, CpuLane lane) {
  const Decode plain = RunDecode(model, residency, lane, Graphs::kOff), graphs = RunDecode(model, residency, lane, Graphs::kOn);
  EXPECT_EQ(plain.stats.graph_steps, 0);
  EXPECT_EQ(plain.stats.described_ahead, 0);
  EXPECT_EQ(graphs.stats.steps, 40);
  // Of each batch size one step runs as it is and one is captured; on a device one or two more first make the kernels their memory.
  EXPECT_GE(graphs.stats.graph_steps, 32);
  // All but the first, the one after a sequence leaves, and those that take a new page, of which V4.1 has more.
  EXPECT_GE(graphs.stats.described_ahead, model.starts_with("tiny-v41") ? 10 : 25);
  ASSERT_EQ(plain.logits.size(), graphs.logits.size());
  for (std::size_t i = 0; i < plain.logits.size(); ++i) {
    ASSERT_EQ(plain.logits[i].size(), graphs.logits[i].size());
    ASSERT_EQ(std::memcmp(plain.logits[i].data(), graphs.logits[i].data(), plain.logits[i].size() * sizeof(float)), 0) << "row " << i;
  }
}

TEST(CapturedSteps, AllResident) {
  for (const char* model : {"tiny-v4-mul1", "tiny-v41-mul1", "tiny-v41-mixed"}) ExpectSameBits(model, Residency::kAll, CpuLane::kAuto);
}

TEST(CapturedSteps, DrawFromTheirLogits) {
  const Decode logits = RunDecode("tiny-v4-mul1", Residency::kAll, CpuLane::kAuto, Graphs::kOff);
  for (const Graphs graphs : {Graphs::kOff, Graphs::kOn}) {
    const Decode drawn = RunDecode("tiny-v4-mul1", Residency::kAll, CpuLane::kAuto, graphs, 2);
    EXPECT_EQ(drawn.stats.graph_steps > 0, graphs == Graphs::kOn);
    std::size_t row = 0;
    for (std::int32_t step = 0; step < 40; ++step) {
      for (std::size_t i = 0; i < (step < 20 ? 3u : 2u); ++i, ++row) {
        const std::vector<float>& expected = logits.logits[row];
        if (i < 2) EXPECT_EQ(drawn.drawn[row], kernels::SampleRow(expected, DrawOf(i, step))) << "step " << step << ", sequence " << i;
        else EXPECT_EQ(std::memcmp(drawn.logits[row].data(), expected.data(), expected.size() * sizeof(float)), 0) << "step " << step;
      }
    }
  }
}

TEST(CapturedSteps, ExpertsOnBothSides) {
  ExpectSameBits("tiny-v41-mul1", Residency::kRandom, CpuLane::kOff);
  ExpectSameBits("tiny-v4-mixed", Residency::kRandom, CpuLane::kAll);
}

// --- alone

// Counts how often its work is done and launched.
class StepGraphsTest : public testing::Test {
 protected:
  StepGraphsTest() : backend_(kernels::MakeCpuBackend(kernels::ParseDeviceSpec("cpu,threads=1"), Profile::kFma)), graphs_(*backend_) {
    values_ = {device(), 2, "values"};
    values_.data()[0] = 1;
  }

  kernels::Device& device() { return backend_->device(0); }
  // A step that copies value 0 to value 1, in two pieces with a flush between them. True if it ran from graphs.
  bool Step(const StepShape& shape, std::int64_t generation = 0) {
    graphs_.Begin(&shape, generation);
    for (int piece = 0; piece < 2; ++piece) {
      graphs_.Enqueue(device(), [&] {
        ++done_;
        device().CopyWithin(device().compute(), reinterpret_cast<std::byte*>(values_.data() + 1), reinterpret_cast<std::byte*>(values_.data()), sizeof(int));
      });
      graphs_.Flush();
    }
    return graphs_.End();
  }

  std::unique_ptr<kernels::Backend> backend_;
  StepGraphs graphs_;
  kernels::DeviceArray<int> values_;
  int done_ = 0;
};

TEST_F(StepGraphsTest, TheThirdStepRunsFromGraphs) {
  EXPECT_FALSE(Step({1, 1024, {}}));
  EXPECT_FALSE(Step({1, 1024, {}}));
  EXPECT_EQ(done_, 4);
  values_.data()[0] = 5;
  EXPECT_TRUE(Step({1, 1024, {}}));
  EXPECT_EQ(done_, 4) << "the host's part is not done again";
  EXPECT_EQ(values_.data()[1], 5) << "and memory is read anew";
}

TEST_F(StepGraphsTest, EveryShapeHasItsOwn) {
  const std::vector<StepShape> shapes = {{1, 1024, {}}, {2, 1024, {}}, {1, 2048, {}}, {1, 1024, {{0, 1}}}};
  for (int round = 0; round < 3; ++round) {
    for (const StepShape& shape : shapes) EXPECT_EQ(Step(shape), round == 2);
  }
}

TEST_F(StepGraphsTest, MovedExpertsMakeGraphsVoid) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Step({1, 1024, {}}, 7), i == 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Step({1, 1024, {}}, 8), i == 2);
}

TEST_F(StepGraphsTest, AnAbandonedCaptureIsTakenAgain) {
  const StepShape shape = {1, 1024, {}};
  Step(shape);
  graphs_.Begin(&shape, 0);
  graphs_.Enqueue(device(), [] {});
  graphs_.Abandon();
  EXPECT_FALSE(Step(shape));
  EXPECT_TRUE(Step(shape));
}

TEST_F(StepGraphsTest, ARefusedShapeStaysAsItIs) {
  const StepShape shape = {1, 1024, {}};
  Step(shape);
  graphs_.Begin(&shape, 0);
  EXPECT_THROW(graphs_.Enqueue(device(), [] { throw kernels::NotCapturable(); }), kernels::NotCapturable);
  graphs_.Refuse();
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(Step(shape));
  EXPECT_EQ(done_, 10);
}

// A device of the CPU backend whose kernels grow out of memory when the test says so.
class GrowingDevice : public kernels::Device {
 public:
  explicit GrowingDevice(kernels::Device& device) : device_(device) {}

  std::string Description() const override { return device_.Description(); }
  const kernels::KernelTable& kernels() const override { return device_.kernels(); }
  kernels::Stream& compute() override { return device_.compute(); }
  kernels::Stream& copy() override { return device_.copy(); }
  std::byte* Allocate(std::size_t bytes, std::string_view what) override { return device_.Allocate(bytes, what); }
  void Free(std::byte* data) override { device_.Free(data); }
  std::size_t memory_limit() const override { return device_.memory_limit(); }
  std::size_t memory_used() const override { return device_.memory_used(); }
  void CopyIn(kernels::Stream& s, std::byte* to, const std::byte* from, std::size_t bytes) override { device_.CopyIn(s, to, from, bytes); }
  void CopyOut(kernels::Stream& s, std::byte* to, const std::byte* from, std::size_t bytes) override { device_.CopyOut(s, to, from, bytes); }
  void CopyWithin(kernels::Stream& s, std::byte* to, const std::byte* from, std::size_t bytes) override { device_.CopyWithin(s, to, from, bytes); }
  void Synchronize(kernels::Stream& s) override { device_.Synchronize(s); }
  void WaitFor(kernels::Stream& waiter, kernels::Stream& other) override { device_.WaitFor(waiter, other); }
  void BeginCapture() override { device_.BeginCapture(); }
  std::unique_ptr<kernels::Graph> EndCapture() override { return device_.EndCapture(); }
  void AbandonCapture() override { device_.AbandonCapture(); }
  std::int64_t memory_epoch() const override { return grown; }
  void KeepOldMemory(bool keeps) override {
    keeps_old = keeps;
    old = 0;
  }
  void Grow() {
    ++grown;
    if (keeps_old) ++old;
  }

  int grown = 0, old = 0;  // how often memory was outgrown; what of it is still there
  bool keeps_old = false;

 private:
  kernels::Device& device_;
};

class GrowingBackend : public kernels::Backend {
 public:
  int device_count() const override { return 1; }
  GrowingDevice& device(int) override { return device_; }
  std::byte* AllocateHost(std::size_t bytes, std::string_view what) override { return cpu_->AllocateHost(bytes, what); }
  void FreeHost(std::byte* data) override { cpu_->FreeHost(data); }
  kernels::CpuStream& host_stream() override { return cpu_->host_stream(); }
  const kernels::KernelTable& host_kernels() const override { return cpu_->host_kernels(); }

 private:
  std::unique_ptr<kernels::Backend> cpu_ = kernels::MakeCpuBackend(kernels::ParseDeviceSpec("cpu,threads=1"), Profile::kFma);
  GrowingDevice device_{cpu_->device(0)};
};

// The host's experts between two pieces may need more scratch memory than any call before them: the second piece still names the old.
TEST(StepGraphsMemory, WhatIsOutgrownWithinAStepIsThereForItsLaterPieces) {
  GrowingBackend backend;
  StepGraphs graphs(backend);
  GrowingDevice& device = backend.device(0);
  const StepShape shape = {1, 1024, {}};
  const auto step = [&](bool grows) {
    graphs.Begin(&shape, 0);
    graphs.Enqueue(device, [] {});
    graphs.Flush();
    if (grows) device.Grow();
    graphs.Enqueue(device, [] {});
    EXPECT_EQ(device.old, grows ? 1 : 0);
    return graphs.End();
  };
  step(false);
  step(false);
  EXPECT_TRUE(step(true));
  EXPECT_EQ(device.old, 1);
  EXPECT_FALSE(step(false)) << "graphs that name it are void";
  EXPECT_EQ(device.old, 0) << "and it is given back";
}

TEST(StepGraphsMemory, PromptsGiveBackAtOnceWhatTheyOutgrow) {
  GrowingBackend backend;
  StepGraphs graphs(backend);
  graphs.Begin(nullptr, 0);
  backend.device(0).Grow();
  EXPECT_EQ(backend.device(0).old, 0);
}

}  // namespace
}  // namespace lockstep::fast
