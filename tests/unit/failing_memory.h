/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocator that runs out of memory on demand. Included by one source file of a program that is
 * linked with --wrap for these functions.
 */
#ifndef TENSORHAUL_FAILING_MEMORY_H
#define TENSORHAUL_FAILING_MEMORY_H

#include <stddef.h>

/* How many allocations still succeed; negative: all of them. */
static int memory_left = -1;

static int memory_fails(void)
{
	if (memory_left > 0)
		memory_left--;
	else if (!memory_left)
		return 1;
	return 0;
}

void *__real_malloc(size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_reallocarray(void *old, size_t count, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t length);

void *__wrap_malloc(size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_reallocarray(void *old, size_t count, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t length);

void *__wrap_malloc(size_t size)
{
	return memory_fails() ? NULL : __real_malloc(size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
	return memory_fails() ? NULL : __real_aligned_alloc(alignment, size);
}

void *__wrap_calloc(size_t count, size_t size)
{
	return memory_fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
	return memory_fails() ? NULL : __real_realloc(old, size);
}

void *__wrap_reallocarray(void *old, size_t count, size_t size)
{
	return memory_fails() ? NULL : __real_reallocarray(old, count, size);
}

char *__wrap_strdup(const char *text)
{
	return memory_fails() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t length)
{
	return memory_fails() ? NULL : __real_strndup(text, length);
}

#endif
