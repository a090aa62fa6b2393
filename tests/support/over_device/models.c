/*
 * Models of a test over a device. The test reads and writes parameters on the host, between the
 * calls of the library. Each call brings them to the device before it, and back behind it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "passage.h"

struct parameter {
    char *host, *device;
    uint64_t bytes;
    struct parameter *next;
};

struct known {
    const void *handle; /* of a model, or of an optimizer */
    const void *model;
    struct seat seat;
    /* Of a model. */
    trireme_dtype *dtypes;
    uint64_t count;
    struct parameter *parameters;
    struct known *next;
};
static struct known *all;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct known *find(const void *handle) {
    pthread_mutex_lock(&mutex);
    struct known *found = all;
    while (found != NULL && found->handle != handle) found = found->next;
    pthread_mutex_unlock(&mutex);
    return found;
}

static void learn(const void *handle, const void *model, const struct seat *seat) {
    struct known *const known = calloc(1, sizeof *known);
    if (known == NULL) abort();
    known->handle = handle;
    known->model = model;
    known->seat = *seat;
    pthread_mutex_lock(&mutex);
    known->next = all;
    all = known;
    pthread_mutex_unlock(&mutex);
}

/* Memory of parameters stays: a test may look at it behind the end of its model. */
static void forget(const void *handle) {
    struct known *const known = handle == NULL ? NULL : find(handle);
    if (known != NULL) known->handle = NULL;
}

static struct known *model_of(const void *handle) {
    struct known *const known = find(handle);
    return known == NULL || known->model == known->handle ? known : find(known->model);
}

static void bring(const void *handle, bool in) {
    const struct known *const known = model_of(handle);
    if (known == NULL) return;
    for (const struct parameter *each = known->parameters; each != NULL; each = each->next) {
        copy_parameter(known->seat.device, each->host, each->device, each->bytes, in);
    }
}

/* The model's memory behind a call that went well or not. */
/* One call, between its copies. */
#define WITH(handle, call) (bring((handle), true), done(__func__, (handle), (call)))

static trireme_status done(const char *function, const void *handle, trireme_status status) {
    bring(handle, false);
    return note_status(function, status);
}

trireme_status trireme_model_create(trireme_communicator *communicator,
                                    const trireme_model_options *options, trireme_model **out) {
    struct seat seat;
    const trireme_status status = REAL(trireme_model_create)(communicator, options, out);
    if (status == TRIREME_OK && find_seat(communicator, &seat)) learn(*out, *out, &seat);
    return note_status(__func__, status);
}

void trireme_model_destroy(trireme_model *model) {
    forget(model);
    REAL(trireme_model_destroy)(model);
}

trireme_status
trireme_model_add_parameter(trireme_model *model, const trireme_parameter_options *options,
                            uint64_t *out_parameter) {
    struct known *const known = model_of(model);
    const trireme_status status = REAL(trireme_model_add_parameter)(model, options, out_parameter);
    if (status != TRIREME_OK || known == NULL) return note_status(__func__, status);
    const size_t n = (size_t)++known->count;
    known->dtypes = realloc(known->dtypes, n * sizeof *known->dtypes);
    if (known->dtypes == NULL) abort();
    known->dtypes[n - 1] = options->dtype;
    return status;
}

trireme_status trireme_model_seal(trireme_model *model) {
    return note_status(__func__, REAL(trireme_model_seal)(model));
}

trireme_status trireme_model_get_parameter_data(const trireme_model *model, uint64_t parameter,
                                                void **out_data, uint64_t *out_count) {
    uint64_t count = 0;
    void *data = NULL;
    if (out_data == NULL || model_of(model) == NULL) {
        return REAL(trireme_model_get_parameter_data)(model, parameter, out_data, out_count);
    }
    const trireme_status status =
        REAL(trireme_model_get_parameter_data)(model, parameter, &data, &count);
    if (status != TRIREME_OK) return note_status(__func__, status);
    struct known *const known = model_of(model);
    if (out_count != NULL) *out_count = count;
    struct parameter *found = known->parameters;
    while (found != NULL && found->device != data) found = found->next;
    if (found == NULL) {
        const uint64_t bytes = count * trireme_dtype_bytes(known->dtypes[parameter]);
        found = calloc(1, sizeof *found);
        if (found == NULL) abort();
        *found = (struct parameter){malloc(bytes + 1), data, bytes, known->parameters};
        copy_parameter(known->seat.device, found->host, data, bytes, false);
        known->parameters = found;
    }
    *out_data = found->host;
    return status;
}

trireme_status trireme_model_check_replicas(trireme_model *model) {
    return WITH(model, REAL(trireme_model_check_replicas)(model));
}

trireme_status trireme_model_begin_backward(trireme_model *model, uint32_t flags) {
    return WITH(model, REAL(trireme_model_begin_backward)(model, flags));
}

trireme_status trireme_model_end_backward(trireme_model *model) {
    return WITH(model, REAL(trireme_model_end_backward)(model));
}

/* `values` are memory of the test that the call reads, or writes. */
static trireme_status
with_values(const char *function, trireme_model *model, const void *values, uint64_t count,
            trireme_dtype dtype, bool writes,
            trireme_status (*call)(const void *values, void *context), void *context) {
    struct passage passage = {0};
    const struct known *const known = model_of(model);
    if (known != NULL) {
        passage.is_on = true;
        passage.seat = known->seat;
        passage.seat.stream = NULL; /* a model looks at the default stream alone */
    }
    add_piece(&passage, &values, count, 1, dtype, writes);
    move_in(&passage);
    bring(model, true);
    const trireme_status status = call(values, context);
    move_out(&passage);
    return done(function, model, status);
}

struct arguments {
    trireme_model *model;
    uint64_t parameter, count;
    trireme_dtype dtype;
    int32_t root;
    uint32_t flags;
};

static trireme_status call_ready(const void *values, void *context) {
    const struct arguments *const a = context;
    return REAL(trireme_model_gradient_ready)(a->model, a->parameter, values, a->count, a->dtype);
}

trireme_status
trireme_model_gradient_ready(trireme_model *model, uint64_t parameter, const void *gradient,
                             uint64_t count, trireme_dtype dtype) {
    struct arguments a = {.model = model, .parameter = parameter, .count = count, .dtype = dtype};
    return with_values(__func__, model, gradient, count, dtype, false, call_ready, &a);
}

static trireme_status call_broadcast(const void *values, void *context) {
    const struct arguments *const a = context;
    return REAL(trireme_model_broadcast_parameters)(a->model, values, a->count, a->dtype, a->root);
}

trireme_status
trireme_model_broadcast_parameters(trireme_model *model, const void *values, uint64_t count,
                                   trireme_dtype dtype, int32_t root) {
    struct arguments a = {.model = model, .count = count, .dtype = dtype, .root = root};
    return with_values(__func__, model, values, count, dtype, false, call_broadcast, &a);
}

static trireme_status call_gather(const void *values, void *context) {
    const struct arguments *const a = context;
    return REAL(trireme_model_gather_parameters)(a->model, (void *)(intptr_t)values, a->count,
                                                 a->dtype);
}

trireme_status trireme_model_gather_parameters(trireme_model *model, void *values, uint64_t count,
                                               trireme_dtype dtype) {
    struct arguments a = {.model = model, .count = count, .dtype = dtype};
    return with_values(__func__, model, values, count, dtype, true, call_gather, &a);
}

static trireme_status call_flat(const void *values, void *context) {
    const struct arguments *const a = context;
    return REAL(trireme_model_accumulate_flat)(a->model, values, a->count, a->dtype, a->flags);
}

trireme_status trireme_model_accumulate_flat(trireme_model *model, const void *gradients,
                                             uint64_t count, trireme_dtype dtype, uint32_t flags) {
    struct arguments a = {.model = model, .count = count, .dtype = dtype, .flags = flags};
    return with_values(__func__, model, gradients, count, dtype, false, call_flat, &a);
}

trireme_status
trireme_optimizer_create(trireme_model *model, const trireme_optimizer_options *options,
                         trireme_optimizer **out) {
    bring(model, true);
    const trireme_status status = REAL(trireme_optimizer_create)(model, options, out);
    const struct known *const known = model_of(model);
    if (status == TRIREME_OK && known != NULL) learn(*out, model, &known->seat);
    return done(__func__, model, status);
}

void trireme_optimizer_destroy(trireme_optimizer *optimizer) {
    forget(optimizer);
    REAL(trireme_optimizer_destroy)(optimizer);
}

trireme_status trireme_optimizer_step(trireme_optimizer *optimizer) {
    return WITH(optimizer, REAL(trireme_optimizer_step)(optimizer));
}

trireme_status
trireme_optimizer_step_together(trireme_optimizer *const *optimizers, uint64_t count) {
    for (uint64_t i = 0; optimizers != NULL && i < count; ++i) bring(optimizers[i], true);
    const trireme_status status = REAL(trireme_optimizer_step_together)(optimizers, count);
    for (uint64_t i = 0; optimizers != NULL && i < count; ++i) bring(optimizers[i], false);
    return note_status(__func__, status);
}

trireme_status trireme_optimizer_join(trireme_optimizer *optimizer, uint64_t *out_steps) {
    return WITH(optimizer, REAL(trireme_optimizer_join)(optimizer, out_steps));
}

trireme_status trireme_optimizer_restore(trireme_optimizer *optimizer,
                                         const trireme_optimizer_counters *counters) {
    return WITH(optimizer, REAL(trireme_optimizer_restore)(optimizer, counters));
}

trireme_status trireme_optimizer_read_range(const trireme_optimizer *optimizer, uint64_t index,
                                            void *data, uint64_t bytes) {
    return WITH(optimizer, REAL(trireme_optimizer_read_range)(optimizer, index, data, bytes));
}

trireme_status trireme_optimizer_write_range(trireme_optimizer *optimizer, uint64_t index,
                                             const void *data, uint64_t bytes) {
    return WITH(optimizer, REAL(trireme_optimizer_write_range)(optimizer, index, data, bytes));
}

trireme_status trireme_optimizer_save(const trireme_optimizer *optimizer, void *state,
                                      uint64_t capacity, uint64_t *out_bytes) {
    return WITH(optimizer, REAL(trireme_optimizer_save)(optimizer, state, capacity, out_bytes));
}

trireme_status
trireme_optimizer_load(trireme_optimizer *optimizer, const void *state, uint64_t bytes) {
    return WITH(optimizer, REAL(trireme_optimizer_load)(optimizer, state, bytes));
}
