/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_common.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

uint64_t bench_now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

static double seconds_of(struct timeval time)
{
	return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

struct bench_usage bench_usage_now(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (struct bench_usage){seconds_of(usage.ru_utime), seconds_of(usage.ru_stime)};
}

struct bench_usage bench_usage_since(const struct bench_usage *before)
{
	struct bench_usage now = bench_usage_now();

	return (struct bench_usage){now.user_s - before->user_s, now.system_s - before->system_s};
}

uint64_t bench_memory_available(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	unsigned long long kib, found = UINT64_MAX >> 10;
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			found = kib;
	if (file)
		fclose(file);
	return found << 10;
}

void bench_hold_standard_streams(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

/* ---- Texts to numbers and back ---- */

int bench_parse_number(const char *text, uint64_t low, uint64_t high, uint64_t *value)
{
	unsigned long long number;
	char *end;

	/* strtoull() takes signs and leading blanks. */
	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno || *end || number < low || number > high)
		return -EINVAL;
	*value = number;
	return 0;
}

static const struct {
	const char *name;
	uint64_t bytes;
} size_units[] = {
	{"TiB", UINT64_C(1) << 40},
	{"GiB", UINT64_C(1) << 30},
	{"MiB", UINT64_C(1) << 20},
	{"KiB", UINT64_C(1) << 10},
	{"TB", UINT64_C(1000000000000)},
	{"GB", UINT64_C(1000000000)},
	{"MB", UINT64_C(1000000)},
	{"KB", UINT64_C(1000)},
	{"kB", UINT64_C(1000)},
	{"B", 1},
	{"", 1},
};

int bench_parse_size(const char *text, uint64_t *bytes)
{
	unsigned long long number;
	uint64_t product;
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno)
		return -EINVAL;
	if (*end == ' ' && end[1])
		end++;
	for (size_t i = 0; i < ARRAY_LENGTH(size_units); i++) {
		if (strcmp(end, size_units[i].name) != 0)
			continue;
		if (__builtin_mul_overflow((uint64_t)number, size_units[i].bytes, &product))
			return -EINVAL;
		*bytes = product;
		return 0;
	}
	return -EINVAL;
}

int bench_parse_seconds(const char *text, double low, double high, double *seconds)
{
	double number;
	char *end;

	if (!isdigit((unsigned char)text[0]) && text[0] != '.')
		return -EINVAL;
	number = strtod(text, &end);
	if (end == text || (*end && strcmp(end, "s") != 0))
		return -EINVAL;
	if (!(number >= low && number <= high))
		return -EINVAL;
	*seconds = number;
	return 0;
}

int bench_parse_choice(const char *text, const char *const *choices)
{
	for (int i = 0; choices[i]; i++)
		if (strcmp(text, choices[i]) == 0)
			return i;
	return -EINVAL;
}

const char *bench_size_text(char text[BENCH_SIZE_TEXT], uint64_t bytes)
{
	for (size_t i = 0; i < 4; i++) {
		uint64_t unit = size_units[i].bytes;

		if (bytes && bytes % unit == 0) {
			snprintf(text, BENCH_SIZE_TEXT, "%llu %s",
				 (unsigned long long)(bytes / unit), size_units[i].name);
			return text;
		}
	}
	snprintf(text, BENCH_SIZE_TEXT, "%llu B", (unsigned long long)bytes);
	return text;
}

const char *bench_spec_name(char name[BENCH_NAME_TEXT], const char *spec)
{
	snprintf(name, BENCH_NAME_TEXT, "%.*s", (int)strcspn(spec, ","), spec);
	return name;
}

char *bench_spec_traced(const char *spec, const char *trace)
{
	char *traced = NULL;

	if (!spec && trace)
		spec = getenv("HAUL_TRANSPORT");
	if (!trace)
		return spec ? strdup(spec) : NULL;
	if (asprintf(&traced, "%s,trace={%s}", spec && *spec ? spec : "auto", trace) < 0) {
		bench_complain("no memory");
		exit(EXIT_FAILED);
	}
	return traced;
}

int bench_split_address(const char *address, char *host, size_t room, uint16_t *port)
{
	const char *colon = strrchr(address, ':');
	const char *start = address;
	uint64_t number;
	size_t length;

	if (!colon || bench_parse_number(colon + 1, 0, 65535, &number))
		return -EINVAL;
	length = (size_t)(colon - address);
	if (length >= 2 && address[0] == '[' && colon[-1] == ']') {
		start++;
		length -= 2;
	} else if (memchr(address, ':', length)) {
		return -EINVAL; /* an IPv6 address without brackets */
	}
	if (length == 0 || length >= room)
		return -EINVAL;
	memcpy(host, start, length);
	host[length] = '\0';
	*port = (uint16_t)number;
	return 0;
}

/* ---- Small statistics ---- */

static int compare_doubles(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

double bench_median(const double *values, size_t count)
{
	double *sorted = malloc((count ? count : 1) * sizeof(*sorted));
	double median = NAN;
	size_t known = 0;

	if (!sorted)
		return NAN;
	for (size_t i = 0; i < count; i++)
		if (!isnan(values[i]))
			sorted[known++] = values[i];
	if (known) {
		qsort(sorted, known, sizeof(*sorted), compare_doubles);
		median = (sorted[(known - 1) / 2] + sorted[known / 2]) / 2;
	}
	free(sorted);
	return median;
}

void bench_range(const double *values, size_t count, double *low, double *high)
{
	*low = *high = NAN;
	/* fmin() and fmax() take the one that is not NAN. */
	for (size_t i = 0; i < count; i++) {
		*low = fmin(*low, values[i]);
		*high = fmax(*high, values[i]);
	}
}

double bench_jain(const double *values, size_t count)
{
	double sum = 0, squares = 0;

	for (size_t i = 0; i < count; i++) {
		sum += values[i];
		squares += values[i] * values[i];
	}
	return squares > 0 ? sum * sum / ((double)count * squares) : NAN;
}

double bench_gbps(double bytes, double seconds)
{
	return seconds > 0 ? bytes * 8e-9 / seconds : NAN;
}

/* ---- Complaints ---- */

static void complain(const char *format, va_list arguments)
{
	fflush(stdout);
	fprintf(stderr, "%s: ", program_invocation_short_name);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
}

void bench_complain(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	complain(format, arguments);
	va_end(arguments);
}

void bench_usage_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	complain(format, arguments);
	va_end(arguments);
	fprintf(stderr, "Try '%s --help'.\n", program_invocation_short_name);
	exit(EXIT_USAGE);
}
