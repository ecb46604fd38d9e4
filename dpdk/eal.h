/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DPDK's environment (EAL): started once per process by the first port, and it stays. A host that
 * runs other programs' threads has to be left as it was: arguments, affinity, names, signals,
 * standard streams and directories are this file's business.
 */
#ifndef TENSORHAUL_DPDK_EAL_H
#define TENSORHAUL_DPDK_EAL_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct haul_context;
struct dpdk_config;

/* DPDK's calls to make, find and remove devices run one at a time, and raise no SIGPIPE. */
void eal_lock(void);
void eal_unlock(void);

/*
 * Between the two calls this thread gets no SIGPIPE from writing to a socket without a reader, as
 * virtio_user does when its other end is gone. One that the program had pending stays.
 */
struct eal_pipes {
	sigset_t before;
	bool pending;
};

void eal_pipes_ignore(struct eal_pipes *pipes);
void eal_pipes_restore(const struct eal_pipes *pipes);

/*
 * Start it unless it runs; with the lock held. `shared` bytes are those that a driver needs in
 * DPDK's own memory. 0, or a negative errno that haul_fail() was told.
 */
int eal_start(struct haul_context *engine, const struct dpdk_config *config, uint64_t shared);

/*
 * What DPDK's log said in this thread between the two calls, when it was a warning or worse: one
 * line, "" for nothing. haul_log() is told everything at all times, see eal_hush().
 */
struct eal_words {
	char text[400];
};

void eal_hear(struct eal_words *words);
void eal_heard(void);

/* What DPDK's log says in this thread meanwhile is told as haul_log()'s HAUL_LOG_DEBUG. */
void eal_hush(bool hush);

/*
 * Run a function in the thread that handles the drivers' control events, and wait for its end:
 * while it runs no driver's handler does. 0 or a negative errno.
 */
int eal_run(void (*run)(void *user), void *user);

/* The hugepages of this host, of the size that it has most of. */
struct eal_hugepages {
	uint64_t size;           /* bytes */
	uint64_t reserved, free; /* count */
};

void eal_hugepages(struct eal_hugepages *pages);

#endif
