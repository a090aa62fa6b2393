/*
 * digits: several workers train one classifier of handwritten digits, each on its leaves of every
 * batch.
 *
 *   $ trireme run --nproc-per-node 4 -- ./example_digits --strategy zero3
 *   language=c strategy=zero3 ranks=4 mode=processes accuracy=97.21 seconds=0.412 ...
 *   $ ./example_digits --strategy zero3 --threads 4     the same with ranks as threads
 *   $ ./example_digits --strategy zero1 --device cuda   the model on a device
 *
 * With --device cuda parameters, gradients and state of the optimizer are memory of a device, and
 * its kernels update them. This program has no kernels of its own: the host computes forward and
 * backward on copies. A real one queues kernels on those addresses, and copies nothing.
 *
 * The trained parameters are the same bits for every strategy and every number of ranks.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <trireme/trireme.h>
#include <unistd.h>

enum { PIXELS = 64, CLASSES = 10, ROWS = 1797, BATCH = 64, LEAVES = 8, LEAF = BATCH / LEAVES };
enum { LAYERS = 3, PARAMETERS = 2 * LAYERS, WIDEST = 128, ELEMENTS = 17226 };
static const int width[LAYERS + 1] = {PIXELS, 128, 64, CLASSES};

/* Words of the command line, and data. Every rank reads them, and none writes them. */
static struct {
    trireme_strategy strategy;
    int threads, passes, on_device;
    const char *data, *out;
    float images[ROWS][PIXELS];
    int labels[ROWS], rows;
} job =
    {TRIREME_STRATEGY_DATA_PARALLEL, 0, 20, 0, "examples/data/digits.csv.gz", NULL, {{0}}, {0}, 0};

static void check(trireme_status status) {
    if (status == TRIREME_OK) return;
    fprintf(stderr, "%s: %s\n", trireme_status_name(status), trireme_last_error());
    exit(EXIT_FAILURE);
}

static void fail(const char *message) {
    fprintf(stderr, "%s\n", message);
    exit(EXIT_FAILURE);
}

static void read_data(void) {
    char command[4096];
    snprintf(command, sizeof command, "gzip -dc '%s'", job.data);
    FILE *file = popen(command, "r");
    if (file == NULL) fail("gzip cannot be run");
    for (; job.rows < ROWS; ++job.rows) {
        for (int i = 0; i < PIXELS; ++i) {
            int pixel = 0;
            if (fscanf(file, "%d,", &pixel) != 1) goto end;
            job.images[job.rows][i] = (float)pixel / 16.0f;
        }
        if (fscanf(file, "%d", &job.labels[job.rows]) != 1) break;
    }
end:
    if (pclose(file) != 0 || job.rows != ROWS) fail("the data is not the digits file");
}

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void initial_values(float *values, uint64_t *random) {
    for (int layer = 0; layer < LAYERS; ++layer) {
        const double limit = sqrt(6.0 / width[layer]);
        for (int i = 0; i < width[layer] * width[layer + 1]; ++i) {
            const double unit = (double)(next_random(random) >> 40) * 0x1p-24;
            *values++ = (float)((2 * unit - 1) * limit);
        }
        for (int i = 0; i < width[layer + 1]; ++i) *values++ = 0;
    }
}

/* One layer of one sample: out = bias + in * weight, then ReLU except for the last. */
static void
forward(int layer, const float *weight, const float *bias, const float *in, float *out) {
    const int columns = width[layer + 1];
    for (int j = 0; j < columns; ++j) out[j] = bias[j];
    for (int k = 0; k < width[layer]; ++k)
        for (int j = 0; j < columns; ++j) out[j] = out[j] + in[k] * weight[k * columns + j];
    if (layer < LAYERS - 1)
        for (int j = 0; j < columns; ++j) out[j] = out[j] > 0 ? out[j] : 0;
}

/* Gradient of the cross-entropy of softmax, as its share of the whole batch. */
static void output_delta(const float *scores, int label, float *delta) {
    double largest = scores[0], sum = 0, exponential[CLASSES];
    for (int c = 1; c < CLASSES; ++c) largest = scores[c] > largest ? scores[c] : largest;
    for (int c = 0; c < CLASSES; ++c) sum += exponential[c] = exp((double)scores[c] - largest);
    for (int c = 0; c < CLASSES; ++c)
        delta[c] = (float)((exponential[c] / sum - (c == label ? 1.0 : 0.0)) * (1.0 / BATCH));
}

/* ---- memory of the model: the host's, or a device's ---- */

struct worker {
    trireme_communicator *communicator;
    trireme_model *model;
    trireme_buffer
        *buffer;  /* room on the device for all elements; NULL: the model is on the host */
    void *device; /* its address */
};

static void make_room(struct worker *worker) {
    if (!job.on_device) return;
    check(trireme_buffer_alloc(worker->communicator, ELEMENTS * sizeof(float), &worker->buffer));
    check(trireme_buffer_get_data(worker->buffer, &worker->device));
}

static void copy(const struct worker *worker, void *to, const void *from, uint64_t count) {
    check(trireme_memory_copy(worker->communicator, to, from, count * sizeof(float), NULL));
}

/* Values of the host where the model takes them. */
static const float *lend(const struct worker *worker, const float *values, uint64_t count) {
    if (worker->buffer == NULL) return values;
    copy(worker, worker->device, values, count);
    return worker->device;
}

static void set_parameters(const struct worker *worker, const float *values) {
    check(trireme_model_broadcast_parameters(worker->model, lend(worker, values, ELEMENTS),
                                             ELEMENTS, TRIREME_DTYPE_F32, 0));
}

static void get_parameters(const struct worker *worker, float *values) {
    void *const to = worker->buffer == NULL ? values : worker->device;
    check(trireme_model_gather_parameters(worker->model, to, ELEMENTS, TRIREME_DTYPE_F32));
    if (worker->buffer != NULL) copy(worker, values, to, ELEMENTS);
}

static void
hand_in(const struct worker *worker, int parameter, const float *gradient, uint64_t count) {
    check(trireme_model_gradient_ready(worker->model, (uint64_t)parameter,
                                       lend(worker, gradient, count), count, TRIREME_DTYPE_F32));
}

static void
parameters_of(const struct worker *worker, int layer, const float **weight, const float **bias) {
    static _Thread_local float copies[2][WIDEST * WIDEST];
    void *data[2];
    for (int i = 0; i < 2; ++i) {
        uint64_t count = 0;
        check(trireme_model_get_parameter_data(worker->model, (uint64_t)(2 * layer + i), &data[i],
                                               &count));
        if (worker->buffer == NULL) continue;
        copy(worker, copies[i], data[i], count);
        data[i] = copies[i];
    }
    *weight = data[0];
    *bias = data[1];
}

/* ---- the training ---- */

/* One micro-batch: forward and backward of the leaf's samples, a unit gathered only while it is
 * used. Without samples the rank only takes part in the gathers. */
static void train_leaf(const struct worker *worker, const int *samples) {
    trireme_model *const model = worker->model;
    static _Thread_local float activation[LAYERS + 1][LEAF][WIDEST], delta[2][LEAF][WIDEST];
    static _Thread_local float gradient[WIDEST * WIDEST];
    const float *weight, *bias;

    for (int layer = 0; layer < LAYERS; ++layer) {
        check(trireme_model_gather_unit(model, (uint64_t)layer));
        parameters_of(worker, layer, &weight, &bias);
        for (int b = 0; samples != NULL && b < LEAF; ++b) {
            const float *in = layer == 0 ? job.images[samples[b]] : activation[layer][b];
            forward(layer, weight, bias, in, activation[layer + 1][b]);
        }
        check(trireme_model_release_unit(model, (uint64_t)layer));
    }
    if (samples != NULL) {
        check(trireme_model_begin_backward(model, 0));
        for (int b = 0; b < LEAF; ++b)
            output_delta(activation[LAYERS][b], job.labels[samples[b]], delta[0][b]);
    }
    for (int layer = LAYERS - 1; layer >= 0; --layer) {
        float(*above)[WIDEST] = delta[(LAYERS - 1 - layer) % 2];
        float(*below)[WIDEST] = delta[(LAYERS - layer) % 2];
        const int rows = width[layer], columns = width[layer + 1];
        check(trireme_model_gather_unit(model, (uint64_t)layer));
        parameters_of(worker, layer, &weight, &bias);
        if (samples != NULL) {
            memset(gradient, 0, sizeof gradient);
            for (int b = 0; b < LEAF; ++b) {
                const float *in = layer == 0 ? job.images[samples[b]] : activation[layer][b];
                for (int k = 0; k < rows; ++k)
                    for (int j = 0; j < columns; ++j) {
                        float *sum = &gradient[k * columns + j];
                        *sum = *sum + in[k] * above[b][j];
                    }
                for (int k = 0; layer > 0 && k < rows; ++k) {
                    float sum = 0;
                    for (int j = 0; j < columns; ++j) {
                        sum = sum + above[b][j] * weight[k * columns + j];
                    }
                    below[b][k] = in[k] > 0 ? sum : 0;
                }
            }
            hand_in(worker, 2 * layer, gradient, (uint64_t)(rows * columns));
            memset(gradient, 0, sizeof gradient);
            for (int b = 0; b < LEAF; ++b)
                for (int j = 0; j < columns; ++j) gradient[j] = gradient[j] + above[b][j];
            hand_in(worker, 2 * layer + 1, gradient, (uint64_t)columns);
        }
        check(trireme_model_release_unit(model, (uint64_t)layer));
    }
    if (samples != NULL) check(trireme_model_end_backward(model));
}

static double accuracy(const float *parameters) {
    int right = 0, all = 0;
    for (int row = 4; row < ROWS; row += 5, ++all) {
        float values[LAYERS + 1][WIDEST];
        const float *next = parameters;
        for (int layer = 0; layer < LAYERS; ++layer) {
            const float *bias = next + width[layer] * width[layer + 1];
            forward(layer, next, bias, layer == 0 ? job.images[row] : values[layer],
                    values[layer + 1]);
            next = bias + width[layer + 1];
        }
        int best = 0;
        for (int c = 1; c < CLASSES; ++c)
            if (values[LAYERS][c] > values[LAYERS][best]) best = c;
        right += best == job.labels[row];
    }
    return 100.0 * right / all;
}

static trireme_model *make_model(trireme_communicator *communicator) {
    static const char *const unit[LAYERS] = {"layer1", "layer2", "layer3"};
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job.strategy;
    options.leaves = LEAVES;
    options.gradients = TRIREME_GRADIENTS_SUM;
    trireme_model *model = NULL;
    check(trireme_model_create(communicator, &options, &model));
    for (int i = 0; i < PARAMETERS; ++i) {
        const int layer = i / 2, is_bias = i % 2;
        const uint64_t shape[2] = {(uint64_t)width[layer], (uint64_t)width[layer + 1]};
        char name[32];
        snprintf(name, sizeof name, "%s.%s", unit[layer], is_bias ? "bias" : "weight");
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.unit = unit[layer];
        parameter.dtype = TRIREME_DTYPE_F32;
        parameter.shape = shape + is_bias;
        parameter.dimensions = is_bias ? 1 : 2;
        check(trireme_model_add_parameter(model, &parameter, NULL));
    }
    check(trireme_model_seal(model));
    return model;
}

static void
report(trireme_model *model, const char *mode, double seconds, const float *parameters) {
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    check(trireme_model_get_info(model, &info));
    check(trireme_model_get_memory(model, &memory));
    printf(
        "language=c strategy=%s ranks=%d mode=%s accuracy=%.2f seconds=%.3f "
        "parameters=%llu/%llu gradients=%llu/%llu state=%llu/%llu working=%llu/%llu\n",
        trireme_strategy_name(info.strategy), info.world_size, mode, accuracy(parameters), seconds,
        (unsigned long long)memory.planned_parameters,
        (unsigned long long)memory.allocated_parameters,
        (unsigned long long)memory.planned_gradients,
        (unsigned long long)memory.allocated_gradients,
        (unsigned long long)memory.planned_optimizer_state,
        (unsigned long long)memory.allocated_optimizer_state,
        (unsigned long long)memory.planned_working, (unsigned long long)memory.allocated_working);
    if (job.out != NULL) {
        FILE *file = fopen(job.out, "wb");
        if (file == NULL || fwrite(parameters, sizeof *parameters, ELEMENTS, file) != ELEMENTS ||
            fclose(file) != 0)
            fail("the parameters cannot be written");
    }
}

/* Everything one rank does. */
static void train(trireme_communicator *communicator, const char *mode) {
    uint64_t random = 2026;
    float *values = malloc(ELEMENTS * sizeof *values);
    if (values == NULL) fail("no memory");
    initial_values(values, &random);

    trireme_model *model = make_model(communicator);
    struct worker worker = {communicator, model, NULL, NULL};
    make_room(&worker);
    set_parameters(&worker, values);
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_ADAMW;
    rule.learning_rate = 0.003;
    rule.weight_decay = 0.01;
    trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
    clipping.max_norm = 1.0;
    rule.clipping = &clipping;
    trireme_optimizer *optimizer = NULL;
    check(trireme_optimizer_create(model, &rule, &optimizer));

    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    check(trireme_model_get_info(model, &info));
    int order[ROWS], rows = 0;
    for (int row = 0; row < ROWS; ++row)
        if (row % 5 != 4) order[rows++] = row;

    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int pass = 0; pass < job.passes; ++pass) {
        for (int i = rows - 1; i > 0; --i) {
            const int j = (int)(next_random(&random) % (uint64_t)(i + 1)), other = order[j];
            order[j] = order[i];
            order[i] = other;
        }
        for (int step = 0; step < rows / BATCH; ++step) {
            for (uint32_t i = 0; i < info.micro_batches; ++i) {
                uint32_t leaf = 0;
                check(trireme_model_get_leaf(model, i, &leaf));
                train_leaf(&worker, leaf < LEAVES ? &order[step * BATCH + (int)leaf * LEAF] : NULL);
            }
            check(trireme_optimizer_step(optimizer));
        }
    }
    clock_gettime(CLOCK_MONOTONIC, &end);

    get_parameters(&worker, values);
    const double seconds =
        (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    if (info.rank == 0) report(model, mode, seconds, values);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_buffer_destroy(worker.buffer);
    free(values);
}

/* The device of a rank: the ranks of this host share the devices among them. */
static trireme_device device_of(int rank) {
    static const char *const names[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALRANKID"};
    const trireme_device host = {TRIREME_DEVICE_HOST, 0};
    int32_t devices = 0;
    if (!job.on_device) return host;
    check(trireme_device_count(TRIREME_DEVICE_CUDA, &devices));
    if (devices == 0) fail("there is no CUDA device");
    for (int i = 0; i < 3 && job.threads == 0; ++i)
        if (getenv(names[i]) != NULL) rank = atoi(getenv(names[i]));
    const trireme_device device = {TRIREME_DEVICE_CUDA, rank % devices};
    return device;
}

static trireme_communicator *join(const char *rendezvous, int rank, int world_size) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.device = device_of(rank);
    options.rendezvous = rendezvous;
    options.rank = rank;
    options.world_size = world_size;
    trireme_communicator *communicator = NULL;
    check(trireme_communicator_create(&options, &communicator));
    return communicator;
}

static void *rank_thread(void *rank) {
    char rendezvous[64];
    snprintf(rendezvous, sizeof rendezvous, "local://digits-%ld", (long)getpid());
    trireme_communicator *communicator = join(rendezvous, *(int *)rank, job.threads);
    train(communicator, "threads");
    trireme_communicator_destroy(communicator);
    return NULL;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value == NULL) fail("every option takes a value");
        if (strcmp(argv[i], "--strategy") == 0)
            check(trireme_strategy_parse(value, &job.strategy));
        else if (strcmp(argv[i], "--threads") == 0)
            job.threads = atoi(value);
        else if (strcmp(argv[i], "--passes") == 0)
            job.passes = atoi(value);
        else if (strcmp(argv[i], "--device") == 0) {
            job.on_device = strcmp(value, "cuda") == 0;
            if (!job.on_device && strcmp(value, "host") != 0) fail("--device takes host or cuda");
        } else if (strcmp(argv[i], "--data") == 0)
            job.data = value;
        else if (strcmp(argv[i], "--out") == 0)
            job.out = value;
        else
            fail("options: --strategy --threads --passes --device --data --out");
    }
    read_data();

    enum { MOST_THREADS = 64 };
    if (job.threads < 0 || job.threads > MOST_THREADS) fail("--threads takes 1 to 64");
    if (job.threads > 0) {
        pthread_t threads[MOST_THREADS];
        int ranks[MOST_THREADS];
        for (int rank = 0; rank < job.threads; ++rank) {
            ranks[rank] = rank;
            if (pthread_create(&threads[rank], NULL, rank_thread, &ranks[rank]) != 0) {
                fail("no thread");
            }
        }
        for (int rank = 0; rank < job.threads; ++rank) pthread_join(threads[rank], NULL);
        return 0;
    }
    /* By trireme run, or by mpirun of Open MPI or of MPICH: env:// understands them all. */
    const int launched = getenv("RANK") != NULL || getenv("OMPI_COMM_WORLD_RANK") != NULL ||
                         getenv("PMI_RANK") != NULL;
    trireme_communicator *communicator =
        launched ? join("env://", 0, 0) : join("local://digits", 0, 1);
    train(communicator, launched ? "processes" : "alone");
    trireme_communicator_destroy(communicator);
    return 0;
}
