/* SPDX-License-Identifier: Apache-2.0 */
/* The log callback, and details of errors. */
#ifndef TENSORHAUL_LOG_H
#define TENSORHAUL_LOG_H

#include <stddef.h>

#define DETAIL_MAX 512

/* Keep the calling thread's detail of a failed haul_open(); returns `error`. */
int detail_of_open(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The thread's buffer that haul_detail() answers with; DETAIL_MAX bytes. */
char *detail_buffer(void);
const char *detail_of_last_open(void);

/*
 * Write one sentence into `why` (may be NULL), cut off at `room`, and return `error`. Control
 * characters of the values that are named become '?': a detail and a log message have no newline.
 */
int explain(char *why, size_t room, int error, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* Make each control character of `text` a '?'. */
void replace_control_characters(char *text);

#endif
