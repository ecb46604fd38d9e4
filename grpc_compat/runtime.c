/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC itself: it runs while there is a context, and its log goes where ours does. What a program
 * that uses gRPC too has set up stays as it is.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <grpc/support/log.h>

#include "rpc.h"

/* What gRPC opens for itself and can't do without: it would end the program. */
#define RUNTIME_DESCRIPTORS 12

/* The largest block for which glibc learns from its being freed. */
#define HEAP_LESSON ((size_t)31 << 20)

static struct {
	pthread_mutex_t lock;
	pid_t owner;
	unsigned contexts;
	/* Never started. gRPC makes its event engine with the first server or channel and ends the
	 * program if there is no descriptor for that: this one is made while there are some. */
	grpc_server *keeper;
} runtime = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Descriptors -------------------------------------------------------- */

int no_descriptor(haul_context *engine, int error)
{
	if (error != -EMFILE && error != -ENFILE)
		return haul_fail(engine, error, "no descriptor: %s", haul_strerror(error));
	return haul_fail(engine, error,
			 "no descriptor is left: the limit of open files is %ld (ulimit -n shows "
			 "and raises it)",
			 sysconf(_SC_OPEN_MAX));
}

static bool descriptors_left(void)
{
	int opened[RUNTIME_DESCRIPTORS], count = 0;
	bool enough;

	while (count < RUNTIME_DESCRIPTORS &&
	       (opened[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		count++;
	enough = count == RUNTIME_DESCRIPTORS;
	while (count)
		close(opened[--count]);
	return enough;
}

/* ---- The log ------------------------------------------------------------ */

static void take_log(gpr_log_func_args *line)
{
	enum haul_log_level level = HAUL_LOG_DEBUG;

	if (line->severity == GPR_LOG_SEVERITY_ERROR)
		level = HAUL_LOG_WARNING; /* whoever asked gRPC for something reports the error */
	else if (line->severity == GPR_LOG_SEVERITY_INFO)
		level = HAUL_LOG_INFO;
	haul_log(level, "grpc: %s", line->message);
}

/* ---- Starting and stopping ---------------------------------------------- */

/*
 * gRPC reads into blocks of some ten KiB, and with glibc's defaults the heap's end is given back to
 * the kernel and faulted in again for each message. glibc keeps more once it has seen a large block
 * come and go, as it does in any program that uses some. Where the limits were set by the program
 * or the environment this changes nothing.
 */
static void warm_heap(void)
{
	void *volatile lesson = malloc(HEAP_LESSON);

	free(lesson);
}

static int start(haul_context *engine, bool warm)
{
	if (!descriptors_left())
		return no_descriptor(engine, -EMFILE);
	/* A program that has started gRPC itself has its own idea of where the log goes. */
	if (!grpc_is_initialized())
		gpr_set_log_function(take_log);
	if (warm)
		warm_heap();
	grpc_init();
	runtime.keeper = grpc_server_create(NULL, NULL);
	runtime.owner = getpid();
	return 0;
}

int runtime_enter(haul_context *engine, bool warm)
{
	int error = 0;

	pthread_mutex_lock(&runtime.lock);
	if (!runtime.contexts)
		error = start(engine, warm);
	else if (runtime.owner != getpid())
		error = haul_fail(
			engine, -ECHILD,
			"this process was forked while gRPC was running, and gRPC does not "
			"survive that: open the context before anything else, or fork first");
	if (!error)
		runtime.contexts++;
	pthread_mutex_unlock(&runtime.lock);
	return error;
}

void runtime_leave(void)
{
	pthread_mutex_lock(&runtime.lock);
	if (--runtime.contexts == 0) {
		grpc_server_destroy(runtime.keeper);
		grpc_shutdown();
	}
	pthread_mutex_unlock(&runtime.lock);
}
