// Compile the annotated function for newer processors too; integer and fma results do not depend on the choice. Off under the
// sanitizers, whose start-up does not survive indirect functions.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__) || !defined(__x86_64__)
#define LOCKSTEP_CLONES
#else
#define LOCKSTEP_CLONES [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#endif
