#include "processes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CANNOT_JOIN 90

uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sleep_ms(unsigned milliseconds) {
    struct timespec rest = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {
    }
}

static void give_up(const char *what) {
    perror(what);
    abort();
}

/* cmocka's handlers would jump into the parent's test. */
static void set_default_signals(void) {
    sigset_t none;
    for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

void start_processes(struct processes *processes, int count, process_function *function,
                     void *context) {
    int alive[2];
    memset(processes, 0, sizeof *processes);
    if (count > MOST_PROCESSES || pipe2(alive, O_CLOEXEC) != 0) give_up("pipe");
    processes->count = count;
    processes->alive = alive[0];
    processes->outcomes = mmap(NULL, sizeof(struct outcome) * MOST_PROCESSES,
                               PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (processes->outcomes == MAP_FAILED) give_up("mmap");
    const pid_t parent = getpid();
    fflush(NULL);
    for (int rank = 0; rank < count; ++rank) {
        processes->ids[rank] = fork();
        if (processes->ids[rank] < 0) give_up("fork");
        if (processes->ids[rank] > 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        set_default_signals();
        close(alive[0]);
        function(rank, context, &processes->outcomes[rank]);
        _exit(0);
    }
    close(alive[1]);
}

static void note_end(struct processes *processes, int rank, int wait_status) {
    struct outcome *const outcome = &processes->outcomes[rank];
    processes->ended[rank] = true;
    outcome->exit_code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    outcome->signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
}

void wait_processes(struct processes *processes) {
    wait_processes_for(processes, HANG_NS);
}

void wait_processes_for(struct processes *processes, uint64_t most_ns) {
    const uint64_t end = monotonic_ns() + most_ns;
    bool all_ended = false;
    while (!all_ended && monotonic_ns() < end) {
        struct pollfd alive = {processes->alive, POLLIN, 0};
        all_ended = poll(&alive, 1, 1000) > 0;
    }
    for (int rank = 0; rank < processes->count; ++rank) {
        int wait_status = 0;
        if (processes->ended[rank]) continue;
        if (!all_ended && waitpid(processes->ids[rank], &wait_status, WNOHANG) == 0) {
            processes->outcomes[rank].hung = true;
            kill(processes->ids[rank], SIGKILL);
            waitpid(processes->ids[rank], &wait_status, 0);
        } else if (all_ended) {
            waitpid(processes->ids[rank], &wait_status, 0);
        }
        note_end(processes, rank, wait_status);
    }
}

bool wait_stopped(struct processes *processes, int rank) {
    const uint64_t end = monotonic_ns() + HANG_NS;
    while (monotonic_ns() < end) {
        int wait_status = 0;
        const pid_t changed = waitpid(processes->ids[rank], &wait_status, WUNTRACED | WNOHANG);
        if (changed > 0 && WIFSTOPPED(wait_status)) return true;
        if (changed > 0) {
            note_end(processes, rank, wait_status);
            return false;
        }
        sleep_ms(2);
    }
    return false;
}

void free_processes(struct processes *processes) {
    close(processes->alive);
    munmap(processes->outcomes, sizeof(struct outcome) * MOST_PROCESSES);
    memset(processes, 0, sizeof *processes);
}

void keep_error(struct outcome *outcome, trireme_status status) {
    outcome->status = status;
    snprintf(outcome->message, sizeof outcome->message, "%s", trireme_last_error());
    outcome->info = (trireme_error_info)TRIREME_ERROR_INFO_INIT;
    if (trireme_last_error_info(&outcome->info) != TRIREME_OK) outcome->info.code = 1;
}

void unique_host_rendezvous(char *text, size_t capacity) {
    static unsigned next;
    snprintf(text, capacity, "host://test-%x-%u", own_number(), next++);
}

void unique_process_rendezvous(char *text, size_t capacity) {
    if (getenv("TRIREME_TESTS_NETWORK") != NULL) {
        unique_meeting(text, capacity);
    } else {
        unique_host_rendezvous(text, capacity);
    }
}

trireme_communicator *
join_process(int rank, int world_size, const char *rendezvous, uint64_t timeout_ns) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    char place[128];
    snprintf(place, sizeof place, "%s", rendezvous);
    add_host(place, sizeof place, rank);
    options.rank = rank;
    options.world_size = world_size;
    options.rendezvous = place;
    options.timeout_ns = timeout_ns;
    if (strncmp(rendezvous, "tcp", 3) == 0) options.backend = network_backend();
    trireme_communicator *communicator = NULL;
    if (trireme_communicator_create(&options, &communicator) != TRIREME_OK) {
        fprintf(stderr, "rank %d of %d cannot join: %s\n", rank, world_size, trireme_last_error());
        _exit(CANNOT_JOIN);
    }
    return communicator;
}

bool is_quick(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    return getenv("TRIREME_TEST_QUICK") != NULL;
#endif
}

bool sees_threads_alone(void) {
#if defined(__SANITIZE_THREAD__)
    return true;
#else
    return false;
#endif
}

bool blames_only(const trireme_error_info *info, int rank) {
    return info->blamed_count == 1 && info->blamed[0] == rank;
}

/* ---- files ---- */

#define MOST_FILES 512

struct names {
    char text[MOST_FILES][300];
    int count;
};

static struct names known_files;

static bool has_name(const struct names *names, const char *name) {
    for (int i = 0; i < names->count; ++i) {
        if (strcmp(names->text[i], name) == 0) return true;
    }
    return false;
}

static void find_files(struct names *names) {
    static const char *const folders[] = {"/dev/shm", "/tmp"};
    names->count = 0;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; ++i) {
        DIR *const folder = opendir(folders[i]);
        if (folder == NULL) continue;
        for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            if (strstr(entry->d_name, "trireme") == NULL) continue;
            if (names->count == MOST_FILES) give_up("more files than a test can remember");
            snprintf(names->text[names->count++], sizeof names->text[0], "%s/%s", folders[i],
                     entry->d_name);
        }
        closedir(folder);
    }
}

void remember_files(void) {
    find_files(&known_files);
}

bool no_file_is_left(void) {
    static struct names once, now;
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    find_files(&once);
    for (int i = 0; i < once.count; ++i) {
        const char *const name = once.text[i];
        if (has_name(&known_files, name)) continue;
        for (find_files(&now); has_name(&now, name); find_files(&now)) {
            if (monotonic_ns() > end) {
                fprintf(stderr, "%s is left\n", name);
                return false;
            }
            sleep_ms(20);
        }
    }
    return true;
}
