// A sequence decoded token by token, to compare every prefill of its prefixes with.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/checkpoint.h"
#include "reference/model.h"
#include "reference/options.h"
#include "reference/state.h"
#include "reference/testing/sequence_models.h"

namespace lockstep::reference {

// A contract model and the state and logits after every single-token step.
class DecodedSequence {
 public:
  // `tokens` of DrawIds.
  DecodedSequence(const ModelFiles& files, const Options& options, std::int64_t tokens);

  // The same steps beside a model of its own: for another thread.
  DecodedSequence Twin() const { return DecodedSequence(steps_, options_); }

  std::size_t tokens() const { return steps_->ids.size(); }
  SequenceState<float> NewState() const { return model_->NewState(); }

  // Processes ids [begin, end) and returns the logits of the last one.
  std::vector<float> Run(SequenceState<float>& state, std::size_t begin, std::size_t end);

  // `state` has processed ids [0, split) and returned `logits` for the last: is that what single steps gave? If
  // the state is the same, so is every later step, because a step reads nothing else.
  testing::AssertionResult SameAsDecoded(const SequenceState<float>& state, const std::vector<float>& logits,
                                         std::size_t split) const;

  // One call for ids [0, split): compared as above.
  testing::AssertionResult WholePrefillIsSame(std::size_t split);

 private:
  struct Steps {
    std::shared_ptr<const Checkpoint> checkpoint;
    std::vector<std::int32_t> ids;
    std::vector<SequenceState<float>> states;  // [ids + 1]
    std::vector<std::vector<float>> logits;    // [ids]
  };

  DecodedSequence(std::shared_ptr<const Steps> steps, const Options& options);

  std::shared_ptr<const Steps> steps_;
  Options options_;
  std::unique_ptr<Model<Contract>> model_;
};

}  // namespace lockstep::reference
