/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmark programs share: the clock, CPU usage, texts to numbers and back, small
 * statistics, JSON helpers.
 *
 * Units: times are nanoseconds of CLOCK_MONOTONIC unless a name says otherwise, GB is 1e9 bytes and
 * Gb/s 1e9 bits per second. A number that was not measured is NAN and becomes null in JSON.
 */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)
#define ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#define BENCH_DEFAULT_PORT "7411"

/* Exit codes of the programs. */
enum {
	EXIT_FAILED = 1, /* could not run, or what was measured is wrong */
	EXIT_USAGE = 2,  /* bad options */
};

uint64_t bench_now(void);

/* Bytes that the kernel can give without swapping; a huge number when it does not say. */
uint64_t bench_memory_available(void);

/* First in main(): opens the standard streams that are closed as /dev/null, so that no file or
 * socket takes their place and gets the program's messages. */
void bench_hold_standard_streams(void);

/* CPU seconds of this process, all threads. */
struct bench_usage {
	double user_s, system_s;
};

struct bench_usage bench_usage_now(void);
struct bench_usage bench_usage_since(const struct bench_usage *before);

/*
 * Texts to numbers. They take the whole text or nothing, and return 0 or -EINVAL with the value
 * unchanged. Sizes know B, KB, MB, GB, TB (1000) and KiB, MiB, GiB, TiB (1024).
 */
int bench_parse_size(const char *text, uint64_t *bytes);
int bench_parse_number(const char *text, uint64_t low, uint64_t high, uint64_t *value);
int bench_parse_seconds(const char *text, double low, double high, double *seconds);
/* The number of `text` in a NULL-terminated list, or -EINVAL. */
int bench_parse_choice(const char *text, const char *const *choices);

/* "100 MiB" when it is whole, "1234 B" otherwise; returns `text`. */
#define BENCH_SIZE_TEXT 32
const char *bench_size_text(char text[BENCH_SIZE_TEXT], uint64_t bytes);

/* The name of the transport in a spec: "tcp" of "tcp,streams=8"; returns `name`. */
#define BENCH_NAME_TEXT 64
const char *bench_spec_name(char name[BENCH_NAME_TEXT], const char *spec);

/*
 * The spec of --transport (NULL: the environment's, or auto) with the option trace of --trace=FILE
 * (NULL: as it is); what haul_open() takes. Owned by the caller; NULL when neither was given, or
 * after a complaint and the end for want of memory.
 */
char *bench_spec_traced(const char *spec, const char *trace);

/*
 * Split "HOST:PORT", "[V6]:PORT" or "*:PORT" into a host without brackets and a port. -EINVAL
 * when there is no port or it is not a number up to 65535.
 */
int bench_split_address(const char *address, char *host, size_t room, uint16_t *port);

/* The median of the values that are not NAN; NAN when there are none. The values stay in order. */
double bench_median(const double *values, size_t count);
void bench_range(const double *values, size_t count, double *low, double *high);
/* Jain's fairness index: 1 when all are equal, 1/count when one has everything. */
double bench_jain(const double *values, size_t count);

double bench_gbps(double bytes, double seconds);

/* JSON. Numbers are rounded to 9 decimals; NAN becomes null. */
void bench_json_number(cJSON *object, const char *name, double value);
void bench_json_numbers(cJSON *object, const char *name, const double *values, size_t count);
/* Find out before a long run whether a file can be written; 0 or a negative errno. */
int bench_json_check(const char *path);
/* "-" is the standard output. 0 or a negative errno. */
int bench_json_write(const char *path, const cJSON *json);

/* "name: message" on the standard error. */
/* What was printed has to have arrived: false, with a complaint, when the output is full or closed.
 */
bool bench_output_arrived(void);
void bench_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same, and "try --help", and the end. */
_Noreturn void bench_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * A table whose columns are as wide as they have to be; the first column is flush left, the first
 * row holds the heads. A column without any value is left out.
 */
struct bench_table {
	char ***rows;
	size_t count, columns;
};

int bench_table_init(struct bench_table *table, size_t columns);
/* Start a row of empty cells, then fill cells of the last row. */
int bench_table_row(struct bench_table *table);
void bench_table_cell(struct bench_table *table, size_t column, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void bench_table_print(const struct bench_table *table, FILE *file);
/* With every column flush left. */
void bench_table_print_left(const struct bench_table *table, FILE *file);
void bench_table_free(struct bench_table *table);

#endif
