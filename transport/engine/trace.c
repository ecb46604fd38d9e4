/* SPDX-License-Identifier: Apache-2.0 */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../backend.h"
#include "log.h"

/* How often the thread looks. Nobody wakes it: that would cost the recording side a system call. */
#define LOOK_NS 50000000

/* JSON is handed to the file in pieces of this size. */
#define PIECE (UINT64_C(256) << 10)

/* The last places of the ring are kept for what the rest can't be understood without. */
#define RESERVED 64

/* How long the end of the process waits for the last of all traces that were left open. */
#define EXIT_PATIENCE_S 1

/* How many suffixes are tried for a file that is being written. */
#define SUFFIX_MAX 9999

struct haul_trace {
	/* Those who record take turns; the thread never holds it while it works. */
	pthread_mutex_t lock;
	pthread_cond_t closed;
	bool closing;
	bool whole; /* ... and nothing is recorded any more: the file gets its end */
	struct trace_record *ring;
	uint64_t count;        /* a power of two */
	_Atomic uint64_t head; /* records were put in */
	_Atomic uint64_t tail; /* ... and taken out */
	_Atomic uint64_t dropped, unwritten;

	/* The thread's own. */
	pthread_t thread;
	struct trace_json *json;
	char *piece;
	size_t used;
	uint64_t in_piece; /* records in it */
	uint64_t written;
	uint64_t told; /* losses that the file tells of */
	int fd;
	off_t good; /* the file is whole up to here */
	bool complained;
	char path[4096];

	/* Under open_lock: */
	bool ended; /* the thread has written all, and is gone */
	LIST_ENTRY(haul_trace) entry;
};

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, haul_trace) open_traces = LIST_HEAD_INITIALIZER(open_traces);
static pthread_once_t fork_handler_once = PTHREAD_ONCE_INIT;

/* The parent's threads are not here, and one of them may have held the lock. */
static void forget_in_child(void)
{
	pthread_mutex_init(&open_lock, NULL);
	LIST_INIT(&open_traces);
}

static void add_fork_handler(void)
{
	pthread_atfork(NULL, NULL, forget_in_child);
}

uint64_t trace_lost(struct haul_trace *trace)
{
	return atomic_load_explicit(&trace->dropped, memory_order_relaxed) +
	       atomic_load_explicit(&trace->unwritten, memory_order_relaxed);
}

void trace_record(struct haul_trace *trace, const struct trace_record *record)
{
	bool needed = record->kind == TRACE_LINK || record->kind == TRACE_CLOCK;
	uint64_t head, room;

	pthread_mutex_lock(&trace->lock);
	head = atomic_load_explicit(&trace->head, memory_order_relaxed);
	room = trace->count - (head - atomic_load_explicit(&trace->tail, memory_order_acquire));
	if (room > (needed ? 0 : RESERVED)) {
		trace->ring[head & (trace->count - 1)] = *record;
		atomic_store_explicit(&trace->head, head + 1, memory_order_release);
	} else {
		atomic_fetch_add_explicit(&trace->dropped, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&trace->lock);
}

/* ---- The file ---------------------------------------------------------- */

static int write_all(int fd, const char *bytes, size_t length)
{
	while (length) {
		ssize_t done = write(fd, bytes, length);

		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return -errno;
		bytes += done;
		length -= (size_t)done;
	}
	return 0;
}

/* Half an event would spoil what follows it. What can't be cut is a pipe or a device. */
static void cut_back(struct haul_trace *trace)
{
	if (ftruncate(trace->fd, trace->good) == 0)
		lseek(trace->fd, trace->good, SEEK_SET);
}

/* Hand the piece to the file. When that fails, its records are lost, and the next ones are tried.
 */
static void flush_piece(struct haul_trace *trace)
{
	int error = trace->used ? write_all(trace->fd, trace->piece, trace->used) : 0;

	if (!error) {
		trace->good += (off_t)trace->used;
		trace->written += trace->in_piece;
	} else {
		cut_back(trace);
		atomic_fetch_add_explicit(&trace->unwritten, trace->in_piece, memory_order_relaxed);
		if (!trace->complained)
			haul_log(HAUL_LOG_ERROR,
				 "trace=%s: %s; what can't be written is counted and dropped",
				 trace->path, haul_strerror(error));
		trace->complained = true;
		trace->told = 0;
	}
	trace->used = 0;
	trace->in_piece = 0;
}

static char *room_in_piece(struct haul_trace *trace)
{
	if (PIECE - trace->used < TRACE_JSON_MAX)
		flush_piece(trace);
	return trace->piece + trace->used;
}

/* Where in time something is missing. */
static void tell_lost(struct haul_trace *trace)
{
	uint64_t lost = trace_lost(trace);

	if (lost == trace->told)
		return;
	trace->used += trace_json_lost(room_in_piece(trace), haul_clock(), lost);
	trace->told = lost;
}

static void write_out(struct haul_trace *trace)
{
	uint64_t tail = atomic_load_explicit(&trace->tail, memory_order_relaxed);

	while (tail != atomic_load_explicit(&trace->head, memory_order_acquire)) {
		const struct trace_record *record = &trace->ring[tail & (trace->count - 1)];

		trace->used += trace_json_record(trace->json, record, room_in_piece(trace));
		trace->in_piece++;
		atomic_store_explicit(&trace->tail, ++tail, memory_order_release);
	}
	tell_lost(trace);
	flush_piece(trace);
}

/* ---- The thread -------------------------------------------------------- */

static bool wait_and_look(struct haul_trace *trace)
{
	uint64_t until = haul_clock() + LOOK_NS;
	struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
	bool closing;

	pthread_mutex_lock(&trace->lock);
	while (!trace->closing && pthread_cond_timedwait(&trace->closed, &trace->lock, &at) == 0)
		;
	closing = trace->closing;
	pthread_mutex_unlock(&trace->lock);
	return closing;
}

static void *run(void *argument)
{
	struct haul_trace *trace = argument;
	bool closing;

	do {
		closing = wait_and_look(trace);
		write_out(trace);
	} while (!closing);
	if (trace->whole) {
		trace->used = trace_json_end(trace->piece, trace->written, trace_lost(trace));
		flush_piece(trace);
	}
	return NULL;
}

static int start_thread(struct haul_trace *trace)
{
	sigset_t all, before;
	int error;

	/* The program's signal handlers run on its own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&trace->thread, NULL, run, trace);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -error;
}

/* ---- Opening and closing ----------------------------------------------- */

/*
 * Open the file for this trace alone, emptied. -EWOULDBLOCK: another trace is being written to it,
 * by this process or another one.
 */
static int open_file(const char *path, int *out)
{
	int fd = haul_descriptor(open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
	struct stat status;
	int error = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &status))
		error = -errno;
	if (!error && S_ISREG(status.st_mode)) {
		/* A file system without locks has one trace for each file all the same. */
		if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
			error = -EWOULDBLOCK;
		else if (ftruncate(fd, 0))
			error = -errno;
	}
	/* A pipe without a reader had to be an error; from here on its reader is waited for. */
	if (!error && fcntl(fd, F_SETFL, 0))
		error = -errno;
	if (error)
		close(fd);
	else
		*out = fd;
	return error;
}

static int take_file(struct haul_trace *trace, const char *path)
{
	int error;

	snprintf(trace->path, sizeof(trace->path), "%s", path);
	error = open_file(trace->path, &trace->fd);
	for (int i = 2; error == -EWOULDBLOCK && i <= SUFFIX_MAX; i++) {
		if ((size_t)snprintf(trace->path, sizeof(trace->path), "%s.%d", path, i) >=
		    sizeof(trace->path))
			return -ENAMETOOLONG;
		error = open_file(trace->path, &trace->fd);
	}
	return error;
}

static int write_head(struct haul_trace *trace, const char *spec, uint64_t incarnation)
{
	size_t length = trace_json_head(trace->piece, spec, incarnation);
	int error = write_all(trace->fd, trace->piece, length);

	trace->good = (off_t)length;
	return error;
}

static int init_lock(struct haul_trace *trace)
{
	pthread_condattr_t attributes;
	int error = pthread_condattr_init(&attributes);

	if (error)
		return -error;
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	error = pthread_cond_init(&trace->closed, &attributes);
	pthread_condattr_destroy(&attributes);
	if (!error)
		error = pthread_mutex_init(&trace->lock, NULL);
	return -error;
}

static void free_trace(struct haul_trace *trace)
{
	if (trace->fd >= 0) {
		/* A forked child may still have the description; it must not keep the lock. */
		flock(trace->fd, LOCK_UN);
		close(trace->fd);
	}
	trace_json_free(trace->json);
	free(trace->piece);
	free(trace->ring);
	free(trace);
}

int trace_open(const char *path, uint64_t bytes, const char *spec, uint64_t incarnation,
	       struct haul_trace **out, char *why, size_t room)
{
	struct haul_trace *trace = calloc(1, sizeof(*trace));
	int error;

	if (!trace)
		return explain(why, room, -ENOMEM, "no memory for a trace");
	trace->fd = -1;
	trace->count = 4 * RESERVED;
	while (2 * trace->count * sizeof(*trace->ring) <= bytes)
		trace->count *= 2;
	trace->ring = malloc(trace->count * sizeof(*trace->ring));
	trace->piece = malloc(PIECE);
	trace->json = trace_json_new();
	if (!trace->ring || !trace->piece || !trace->json) {
		error = explain(why, room, -ENOMEM, "no memory for a trace (trace_buffer=%llu)",
				(unsigned long long)bytes);
		goto failed;
	}
	/* The pages are there before anything is measured. */
	memset(trace->ring, 0, trace->count * sizeof(*trace->ring));
	error = take_file(trace, path);
	if (!error)
		error = write_head(trace, spec, incarnation);
	if (error) {
		explain(why, room, error, "trace=%s: %s", path, strerror(-error));
		goto failed;
	}
	error = init_lock(trace);
	if (!error)
		error = start_thread(trace);
	if (error) {
		explain(why, room, error, "can't start the thread of the trace: %s",
			strerror(-error));
		goto failed;
	}
	if (strcmp(trace->path, path) != 0)
		haul_log(HAUL_LOG_INFO, "trace=%s is being written: this context writes %s", path,
			 trace->path);
	pthread_once(&fork_handler_once, add_fork_handler);
	pthread_mutex_lock(&open_lock);
	LIST_INSERT_HEAD(&open_traces, trace, entry);
	pthread_mutex_unlock(&open_lock);
	*out = trace;
	return 0;
failed:
	free_trace(trace);
	return error;
}

static void tell_thread(struct haul_trace *trace, bool whole)
{
	pthread_mutex_lock(&trace->lock);
	trace->closing = true;
	trace->whole = whole;
	pthread_cond_signal(&trace->closed);
	pthread_mutex_unlock(&trace->lock);
}

/*
 * A program may end without closing its contexts: what was recorded is written all the same, and
 * nobody waits for long for a pipe that nobody reads. The file gets no end, since records may still
 * come.
 */
__attribute__((destructor)) static void write_out_open_traces(void)
{
	struct haul_trace *trace;
	struct timespec until;

	pthread_mutex_lock(&open_lock);
	LIST_FOREACH (trace, &open_traces, entry) {
		if (!trace->ended)
			tell_thread(trace, false);
	}
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += EXIT_PATIENCE_S;
	LIST_FOREACH (trace, &open_traces, entry) {
		if (!trace->ended)
			trace->ended = !pthread_timedjoin_np(trace->thread, NULL, &until);
	}
	pthread_mutex_unlock(&open_lock);
}

void trace_close(struct haul_trace *trace)
{
	uint64_t lost;

	if (!trace)
		return;
	pthread_mutex_lock(&open_lock);
	LIST_REMOVE(trace, entry);
	pthread_mutex_unlock(&open_lock);
	/* The thread writes, which takes no signals: a pipe whose reader has left raises one. */
	tell_thread(trace, true);
	if (!trace->ended)
		pthread_join(trace->thread, NULL);
	lost = trace_lost(trace);
	if (lost)
		haul_log(HAUL_LOG_WARNING,
			 "trace=%s: %llu events were written and %llu lost (%llu for want of room "
			 "in "
			 "trace_buffer, %llu in the file)",
			 trace->path, (unsigned long long)trace->written, (unsigned long long)lost,
			 (unsigned long long)atomic_load(&trace->dropped),
			 (unsigned long long)atomic_load(&trace->unwritten));
	pthread_cond_destroy(&trace->closed);
	pthread_mutex_destroy(&trace->lock);
	free_trace(trace);
}

void trace_close_in_child(struct haul_trace *trace)
{
	if (trace)
		close(trace->fd);
}
