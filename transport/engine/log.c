/* SPDX-License-Identifier: Apache-2.0 */
#include "log.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include <string.h>
#include <time.h>

#include "../backend.h"

/* ---- Details ----------------------------------------------------------- */

static _Thread_local char open_detail[DETAIL_MAX];
static _Thread_local char answer[DETAIL_MAX];

int detail_of_open(int error, const char *format, ...)
{
	char text[DETAIL_MAX]; /* the arguments may point into open_detail */
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	replace_control_characters(text);
	memcpy(open_detail, text, sizeof(text));
	return error;
}

char *detail_buffer(void)
{
	return answer;
}

const char *detail_of_last_open(void)
{
	return open_detail;
}

/* ---- The log callback -------------------------------------------------- */

/*
 * Held for reading while the callback runs, so that haul_log_set() returns only when nobody uses
 * the old function and its user pointer any more.
 */
static pthread_rwlock_t log_lock = PTHREAD_RWLOCK_INITIALIZER;
static haul_log_function *log_function;
static void *log_user;
static atomic_int log_limit = -1; /* the highest level that is wanted; read without the lock */
static _Thread_local unsigned log_depth; /* how often this thread holds the lock */
static pthread_once_t fork_handler_once = PTHREAD_ONCE_INIT;

/* The threads that held the lock don't exist in the child, except for the one that forked. */
static void renew_lock_in_child(void)
{
	pthread_rwlock_init(&log_lock, NULL);
	for (unsigned i = 0; i < log_depth; i++)
		pthread_rwlock_rdlock(&log_lock);
}

static void add_fork_handler(void)
{
	pthread_atfork(NULL, NULL, renew_lock_in_child);
}

void haul_log_set(haul_log_function *function, void *user, enum haul_log_level level)
{
	pthread_once(&fork_handler_once, add_fork_handler);
	pthread_rwlock_wrlock(&log_lock);
	log_function = function;
	log_user = user;
	atomic_store_explicit(&log_limit, function ? (int)level : -1, memory_order_relaxed);
	pthread_rwlock_unlock(&log_lock);
}

void haul_log(enum haul_log_level level, const char *format, ...)
{
	int saved_errno = errno;
	char text[DETAIL_MAX];
	va_list arguments;

	if ((int)level > atomic_load_explicit(&log_limit, memory_order_relaxed))
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	replace_control_characters(text);

	pthread_rwlock_rdlock(&log_lock);
	log_depth++;
	if (log_function && (int)level <= atomic_load_explicit(&log_limit, memory_order_relaxed))
		log_function(log_user, level, text);
	log_depth--;
	pthread_rwlock_unlock(&log_lock);
	errno = saved_errno;
}

/* ---- Errors, randomness, time ------------------------------------------ */

static const struct {
	int error;
	const char *text;
} error_texts[] = {
	{0, "success"},
	{EACCES, "not allowed: authentication, file, port or use of the region"},
	{EADDRINUSE, "address is in use"},
	{EADDRNOTAVAIL, "address does not belong to this host"},
	{EBADMSG, "checksum of the tensor was wrong twice"},
	{EBUSY, "in use by an operation"},
	{ECANCELED, "operation was given up"},
	{ECHILD, "context belongs to the parent process"},
	{ECONNREFUSED, "nobody listens at that address"},
	{ECONNRESET, "peer was lost"},
	{EFAULT, "tensor is not inside the region"},
	{EINVAL, "invalid spec, option, address, tensor, key or argument"},
	{EMFILE, "too many open files in this process"},
	{EMSGSIZE, "tensor that was sent is larger than the receive"},
	{ENOENT, "no such host, file or operation"},
	{ENOSYS, "transport is not built, or its module can't be loaded"},
	{ENOTCONN, "endpoint was lost"},
	{EOVERFLOW, "tensor is larger than 2^63 - 1 bytes"},
	{EPROTO, "peer is no tensorhaul, of another version, or broke the protocol"},
	{ETIMEDOUT, "deadline passed, or peer stopped answering"},
};

const char *haul_strerror(int error)
{
	const char *text;

	if (error < 0)
		error = error == INT_MIN ? INT_MAX : -error;
	for (size_t i = 0; i < sizeof(error_texts) / sizeof(error_texts[0]); i++) {
		if (error_texts[i].error == error)
			return error_texts[i].text;
	}
	text = strerrordesc_np(error);
	return text ? text : "unknown error";
}

int haul_descriptor(int fd)
{
	int error = errno;
	int above = fd;

	if (fd >= 0 && fd <= STDERR_FILENO) {
		above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		if (above < 0)
			error = errno;
		close(fd);
	}
	errno = error;
	return above;
}

int haul_random(void *bytes, size_t length)
{
	uint8_t *next = bytes;
	int error = 0;

	ERR_set_mark(); /* the caller's own OpenSSL errors stay as they are */
	while (length && !error) {
		int step = length > INT_MAX ? INT_MAX : (int)length;

		if (RAND_bytes(next, step) != 1)
			error = -EIO;
		next += step;
		length -= (size_t)step;
	}
	ERR_pop_to_mark();
	return error;
}

uint64_t haul_clock(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
