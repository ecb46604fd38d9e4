/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The housekeeping thread. Elsewhere the kernel or the card answers for a program that computes;
 * here nobody does. When the context's owner has not looked at the port for a moment, this thread
 * drives the context instead, in its own way (context->away): it answers the peers, acknowledges
 * and sends, but what asks for a place in the owner's memory is kept until the owner comes, and
 * tells so by the event descriptor. When that takes long, the window is closed. So a context takes
 * nothing behind its owner's back, and no peer gives it up.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "dpdk.h"

/* The owner has not looked for so long: it computes. One that sleeps on its event descriptor says
 * so: see keeper_wake(). */
#define ASLEEP (2 * MS)

/* How long to rest: when packets came a moment ago, a while ago, and long ago. */
#define REST_BUSY (20 * US)
#define BUSY_FOR (1 * MS)
#define REST_QUIET (200 * US)
#define QUIET_FOR (20 * MS)
#define REST_IDLE (2 * MS)

static uint64_t looked_at(const struct backend_context *context)
{
	return __atomic_load_n(&context->looked_at, __ATOMIC_RELAXED);
}

/* The port will wake the owner. */
static bool listens(const struct backend_context *context)
{
	return __atomic_load_n(&context->listens, __ATOMIC_RELAXED);
}

/* Sleep; true: the thread has to end. */
static bool rest(struct backend_context *context, uint64_t ns)
{
	struct pollfd wake = {.fd = context->keeper_fd, .events = POLLIN};
	struct timespec time = {.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)};
	uint64_t value;
	ssize_t ignored;

	/* Those who need it sooner wake it. */
	__atomic_store_n(&context->keeper_rests, ns > REST_BUSY, __ATOMIC_SEQ_CST);
	ppoll(&wake, 1, &time, NULL);
	__atomic_store_n(&context->keeper_rests, false, __ATOMIC_RELAXED);
	if (wake.revents) {
		ignored = read(context->keeper_fd, &value, sizeof(value));
		(void)ignored;
	}
	return __atomic_load_n(&context->keeper_ends, __ATOMIC_ACQUIRE);
}

void keeper_wake(struct backend_context *context)
{
	uint64_t value = 1;
	ssize_t ignored;

	__atomic_store_n(&context->looked_at, 0, __ATOMIC_SEQ_CST);
	if (!__atomic_load_n(&context->keeper_rests, __ATOMIC_SEQ_CST))
		return;
	ignored = write(context->keeper_fd, &value, sizeof(value));
	(void)ignored;
}

static void *keep(void *argument)
{
	struct backend_context *context = argument;
	uint64_t busy_at = haul_clock(), pause = REST_QUIET;

	/* A rest of 20 us is one of 20 us. */
	prctl(PR_SET_NAME, "haul-dpdk");
	prctl(PR_SET_TIMERSLACK, 1000UL);
	while (!rest(context, pause)) {
		uint64_t now = haul_clock(), looked = looked_at(context);
		int done;

		if (now < looked + ASLEEP || listens(context)) {
			pause = now < looked + ASLEEP ? looked + ASLEEP - now : ASLEEP;
			busy_at = now;
			continue;
		}
		done = haul_drive(context->engine);
		if (done > 0)
			busy_at = now;
		if (done < 0) /* somebody else drives */
			pause = ASLEEP;
		else if (now - busy_at < BUSY_FOR)
			pause = REST_BUSY;
		else
			pause = now - busy_at < QUIET_FOR ? REST_QUIET : REST_IDLE;
	}
	return NULL;
}

int keeper_start(struct backend_context *context)
{
	sigset_t all, before;
	int error;

	context->keeper_fd = haul_descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (context->keeper_fd < 0)
		return haul_fail(
			context->engine, -errno,
			"no descriptor for the housekeeping thread: %s (ulimit -n shows and "
			"raises the limit)",
			haul_strerror(errno));
	/* The program's signal handlers run on its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&context->keeper, NULL, keep, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return haul_fail(context->engine, -error, "can't start the housekeeping thread: %s",
				 haul_strerror(error));
	context->keeping = true;
	return 0;
}

void keeper_stop(struct backend_context *context)
{
	uint64_t value = 1;
	ssize_t ignored;

	if (context->keeping) {
		__atomic_store_n(&context->keeper_ends, true, __ATOMIC_RELEASE);
		ignored = write(context->keeper_fd, &value, sizeof(value));
		(void)ignored;
		pthread_join(context->keeper, NULL);
		context->keeping = false;
	}
	if (context->keeper_fd >= 0)
		close(context->keeper_fd);
	context->keeper_fd = -1;
}
