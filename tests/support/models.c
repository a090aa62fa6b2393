#include "models.h"

#include <stdlib.h>

trireme_status make_model(trireme_communicator *communicator, const trireme_model_options *options,
                          int units, uint64_t count, trireme_model **out) {
    static const char *const names[MOST_UNITS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    if (units > MOST_UNITS) abort();
    *out = NULL;
    trireme_status status = trireme_model_create(communicator, options, out);
    for (int i = 0; i < units && status == TRIREME_OK; ++i) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = names[i];
        parameter.dtype = TRIREME_DTYPE_F32;
        parameter.dimensions = 1;
        parameter.shape = &count;
        status = trireme_model_add_parameter(*out, &parameter, NULL);
    }
    return status == TRIREME_OK ? trireme_model_seal(*out) : status;
}

trireme_optimizer_options plain_rule(void) {
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 0.5;
    return rule;
}
