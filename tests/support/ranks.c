#include "ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport.h"

struct thread {
    pthread_t handle;
    int index;
    void (*function)(int index, void *context);
    void *context;
};

static void *thread_main(void *argument) {
    const struct thread *const thread = argument;
    thread->function(thread->index, thread->context);
    return NULL;
}

void run_threads(int count, void (*function)(int index, void *context), void *context) {
    struct thread *const threads = calloc((size_t)count + 1, sizeof *threads);
    if (threads == NULL) abort();
    for (int i = 0; i < count; ++i) {
        threads[i] = (struct thread){.index = i, .function = function, .context = context};
        if (pthread_create(&threads[i].handle, NULL, thread_main, &threads[i]) != 0) abort();
    }
    for (int i = 0; i < count; ++i) pthread_join(threads[i].handle, NULL);
    free(threads);
}

void unique_rendezvous(char *text, size_t capacity) {
    static atomic_uint next;
    snprintf(text, capacity, "local://test-%ld-%u", (long)getpid(), atomic_fetch_add(&next, 1));
}

unsigned own_number(void) {
    struct stat namespace = {0};
    (void)!stat("/proc/self/ns/pid", &namespace);
    return (unsigned)getpid() + (unsigned)namespace.st_ino * 2654435761u;
}

/* The first free port from `port` on. Another program may listen on all addresses, as trireme run
 * does on 29500. */
static unsigned free_port(const char *address, unsigned port) {
    for (const unsigned end = port + 100; port < end; ++port) {
        struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        if (inet_pton(AF_INET, address, &place.sin_addr) != 1) abort();
        const int socket_here = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (socket_here < 0) return port; /* joining meets the limit itself */
        const int yes = 1;
        setsockopt(socket_here, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        const bool is_free = bind(socket_here, (struct sockaddr *)&place, sizeof place) == 0;
        close(socket_here);
        if (is_free) return port;
    }
    abort();
}

static void write_network_rendezvous(char *text, size_t capacity, bool own_port) {
    static atomic_uint next;
    static atomic_uint
        shared_port; /* of all groups of this program that need no port of their own */
    const unsigned id = own_number();
    const unsigned number = atomic_fetch_add(&next, 1);
    char address[20];
    snprintf(address, sizeof address, "127.%u.%u.%u", 64 + (id >> 14 & 63), id >> 7 & 127,
             1 + (id & 127));
    unsigned port =
        own_port ? free_port(address, 26000 + number % 2000) : atomic_load(&shared_port);
    if (port == 0) {
        unsigned none = 0;
        port = free_port(address, 25500);
        if (!atomic_compare_exchange_strong(&shared_port, &none, port)) port = none;
    }
    snprintf(text, capacity, "tcp://%s:%u/test-%u", address, port, number);
}

void unique_network_rendezvous(char *text, size_t capacity) {
    write_network_rendezvous(text, capacity, false);
}

void unique_meeting(char *text, size_t capacity) {
    write_network_rendezvous(text, capacity, true);
}

static bool network_is(const char *name) {
    const char *const network = getenv("TRIREME_TESTS_NETWORK");
    return network != NULL && strcmp(network, name) == 0;
}

bool network_has_engine(void) {
    return network_is("gloo");
}

bool network_is_memory(void) {
    return network_is("memory");
}

const char *network_backend(void) {
    if (network_is_memory()) return NULL;
    return network_has_engine() ? "gloo" : "frames";
}

static void add_option(char *rendezvous, size_t capacity, const char *option) {
    const size_t length = strlen(rendezvous);
    snprintf(rendezvous + length, capacity - length, "%c%s",
             strchr(rendezvous, '?') == NULL ? '?' : '&', option);
}

void add_host(char *rendezvous, size_t capacity, int rank) {
    if (strncmp(rendezvous, "tcp", 3) != 0) return;
    const char *const hosts = getenv("TRIREME_TESTS_HOSTS");
    if (hosts != NULL) {
        const char option[] = {'h', 'o', 's', 't', '=', hosts[(size_t)rank % strlen(hosts)], 0};
        add_option(rendezvous, capacity, option);
    }
    if (getenv("TRIREME_TESTS_FEW_CONNECTIONS") != NULL) {
        add_option(rendezvous, capacity, "connections=few");
    }
    const char *const lines = getenv("TRIREME_TESTS_LINES");
    if (lines != NULL) {
        /* So many addresses: pairs of ranks may have different numbers of lines. */
        const int count = lines[(size_t)rank % strlen(lines)] - '0';
        char option[160] = "interface=127.0.0.2";
        for (int i = 1; i < count; ++i) {
            snprintf(option + strlen(option), sizeof option - strlen(option), ",127.0.0.%d", 2 + i);
        }
        add_option(rendezvous, capacity, option);
    } else if (network_is("1") && strstr(rendezvous, "interface=") == NULL) {
        /* That of the rendezvous, which no other program has. All connections of a minute from one
         * address share its 28,000 ports. */
        char option[32] = "interface=";
        const char *const address = rendezvous + strlen("tcp://");
        strncat(option, address, strcspn(address, ":"));
        add_option(rendezvous, capacity, option);
    }
}

trireme_communicator *join_rank(int rank, int world_size, const char *rendezvous) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = world_size;
    options.rendezvous = rendezvous;
    options.timeout_ns = LONG_NS;
    if (strncmp(rendezvous, "tcp", 3) == 0) options.backend = network_backend();
    trireme_communicator *communicator = NULL;
    if (trireme_communicator_create(&options, &communicator) != TRIREME_OK) {
        fprintf(stderr, "rank %d of %d cannot join: %s\n", rank, world_size, trireme_last_error());
        abort();
    }
    return communicator;
}

struct rank_pair make_rank_pair(void) {
    struct rank_pair pair;
    unique_rendezvous(pair.rendezvous, sizeof pair.rendezvous);
    for (int rank = 0; rank < 2; ++rank) pair.ranks[rank] = join_rank(rank, 2, pair.rendezvous);
    return pair;
}

void free_rank_pair(struct rank_pair pair) {
    for (int rank = 0; rank < 2; ++rank) trireme_communicator_destroy(pair.ranks[rank]);
}

struct group {
    int world_size;
    char rendezvous[64];
    rank_function *function;
    void *context;
    pthread_barrier_t joined;
    struct net *net; /* NULL: no transport */
};

bool ranks_use_network(void) {
    return getenv("TRIREME_TESTS_NETWORK") != NULL && !network_is_memory();
}

bool ranks_use_transport(void) {
    return getenv("TRIREME_TESTS_TRANSPORT") != NULL || ranks_use_network();
}

static void rank_main(int rank, void *argument) {
    struct group *const group = argument;
    trireme_communicator *communicator = NULL;
    if (group->net == NULL) {
        char rendezvous[192];
        snprintf(rendezvous, sizeof rendezvous, "%s", group->rendezvous);
        add_host(rendezvous, sizeof rendezvous, rank);
        communicator = join_rank(rank, group->world_size, rendezvous);
    } else if (net_join(group->net, rank, group->world_size, "transport://ranks", LONG_NS,
                        &communicator) != TRIREME_OK) {
        abort();
    }
    pthread_barrier_wait(&group->joined);
    group->function(communicator, rank, group->context);
    trireme_communicator_destroy(communicator);
}

bool ranks_make_groups(void) {
    return !ranks_use_transport() || ranks_use_network();
}

void run_ranks(int world_size, rank_function *function, void *context) {
    struct group group = {.world_size = world_size, .function = function, .context = context};
    unique_rendezvous(group.rendezvous, sizeof group.rendezvous);
    if (ranks_use_network() || network_is_memory()) {
        unique_network_rendezvous(group.rendezvous, sizeof group.rendezvous);
    } else if (ranks_use_transport()) {
        group.net = net_create(world_size);
    }
    if (pthread_barrier_init(&group.joined, NULL, (unsigned)world_size) != 0) abort();
    run_threads(world_size, rank_main, &group);
    pthread_barrier_destroy(&group.joined);
    if (group.net != NULL) net_destroy(group.net, world_size);
}

int expect_failed(struct verdict *verdict, const char *file, int line, const char *condition) {
    if (verdict->text[0] == 0) {
        snprintf(verdict->text, sizeof verdict->text, "%s:%d: not so: %s (last error: %s)", file,
                 line, condition, trireme_last_error());
    }
    return 0;
}

int expect_status(struct verdict *verdict, const char *file, int line, const char *call,
                  trireme_status expected, trireme_status status) {
    if (status == expected) return 1;
    if (verdict->text[0] == 0) {
        snprintf(verdict->text, sizeof verdict->text, "%s:%d: %s is %s, not %s (last error: %s)",
                 file, line, call, trireme_status_name(status), trireme_status_name(expected),
                 trireme_last_error());
    }
    return 0;
}

/* One rank's failure is often the effect of another's. */
void assert_verdicts(const struct verdict *verdicts, int count) {
    int wrong = 0;
    for (int i = 0; i < count; ++i) {
        if (verdicts[i].text[0] == 0) continue;
        print_error("rank %d: %s\n", i, verdicts[i].text);
        ++wrong;
    }
    if (wrong > 0) fail_msg("%d of %d ranks: see above", wrong, count);
}
