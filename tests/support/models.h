/*
 * A model as most tests of faults train it: parameters of one size, each a unit of its own.
 */
#ifndef TRIREME_TESTS_MODELS_H
#define TRIREME_TESTS_MODELS_H

#include <stdint.h>
#include <trireme/trireme.h>

#define MOST_UNITS 8

/* Creates and seals a model of `units` f32 parameters of `count` elements, named "a", "b" and so
 * on. Returns the first failure; *out is then the model made so far, or NULL. */
trireme_status make_model(trireme_communicator *communicator, const trireme_model_options *options,
                          int units, uint64_t count, trireme_model **out);

/* Plain descent at a rate of 0.5. */
trireme_optimizer_options plain_rule(void);

#endif
