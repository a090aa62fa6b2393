/* Sums one number over a group of one rank, through the installed library. */
#include <stdio.h>
#include <trireme/trireme.h>

int main(void) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.world_size = 1;
    options.rendezvous = "local://consumer";
    trireme_communicator *communicator = NULL;
    float value = 42.0f;
    if (trireme_communicator_create(&options, &communicator) != TRIREME_OK ||
        trireme_all_reduce(communicator, &value, &value, 1, TRIREME_DTYPE_F32,
                           TRIREME_REDUCTION_SUM, NULL) != TRIREME_OK) {
        fprintf(stderr, "%s\n", trireme_last_error());
        return 1;
    }
    trireme_communicator_destroy(communicator);
    printf("%g\n", value);
    return value == 42.0f ? 0 : 1;
}
