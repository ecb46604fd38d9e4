/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several traces as one: the first file's clock, from 0 on; a process for each file; an arrow from
 * where a tensor left to where it arrived.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trace_file.h"

struct merge {
	FILE *out;
	const struct trace_file *file;
	unsigned number; /* of the file, from 1: its process */
	double base;     /* what is time 0 */
	bool begun;
};

static void print_event(struct merge *merge, const cJSON *event)
{
	char *text = cJSON_PrintUnformatted(event);

	fprintf(merge->out, "%s\n%s", merge->begun ? "," : "[", text ? text : "{}");
	merge->begun = true;
	cJSON_free(text);
}

static void set_number(cJSON *event, const char *name, double value)
{
	cJSON *item = cJSON_GetObjectItemCaseSensitive(event, name);

	if (cJSON_IsNumber(item))
		cJSON_SetNumberValue(item, value);
}

/* Microseconds to three decimals: what the files have. */
static double merged_time(const struct merge *merge, double time)
{
	return round((trace_file_time(merge->file, time) - merge->base) * 1000) / 1000;
}

static const char *take_event(void *user, cJSON *event)
{
	struct merge *merge = user;
	const cJSON *time = cJSON_GetObjectItemCaseSensitive(event, "ts");
	const char *id = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(event, "id"));
	char unique[32];

	set_number(event, "pid", merge->number);
	if (cJSON_IsNumber(time))
		set_number(event, "ts", merged_time(merge, time->valuedouble));
	/* Numbers of two files would meet. */
	if (id) {
		snprintf(unique, sizeof(unique), "0x%x%012llx", merge->number,
			 strtoull(id, NULL, 16) & 0xffffffffffff);
		cJSON_ReplaceItemInObjectCaseSensitive(event, "id", cJSON_CreateString(unique));
	}
	print_event(merge, event);
	return NULL;
}

/* ---- Arrows ------------------------------------------------------------ */

/* Where a share is, and which file it is in. */
struct end {
	struct tensor_name name;
	double begin, thread;
	const struct trace_file *file;
	unsigned number;
};

static int compare_ends(const void *left, const void *right)
{
	const struct end *a = left, *b = right;

	return tensor_name_compare(&a->name, &b->name);
}

/* The first share of each tensor that this way has, sorted; the count. */
static size_t collect(const struct trace_file *files, size_t count, bool out, struct end *ends)
{
	size_t found = 0, kept = 0;

	for (size_t i = 0; i < count; i++)
		for (size_t n = 0; n < files[i].share_count; n++) {
			const struct share *share = &files[i].shares[n];

			if (share->out == out)
				ends[found++] =
					(struct end){share->name, share->begin, share->thread,
						     &files[i], (unsigned)i + 1};
		}
	qsort(ends, found, sizeof(*ends), compare_ends);
	for (size_t i = 0; i < found; i++) {
		if (kept && compare_ends(&ends[kept - 1], &ends[i]) == 0) {
			if (ends[i].begin < ends[kept - 1].begin)
				ends[kept - 1] = ends[i];
		} else {
			ends[kept++] = ends[i];
		}
	}
	return kept;
}

static void print_end(struct merge *merge, const char *phase, const struct end *end, size_t number)
{
	cJSON *event = cJSON_CreateObject();

	merge->file = end->file;
	cJSON_AddStringToObject(event, "ph", phase);
	cJSON_AddNumberToObject(event, "pid", end->number);
	cJSON_AddNumberToObject(event, "tid", end->thread);
	cJSON_AddStringToObject(event, "cat", "way");
	cJSON_AddStringToObject(event, "name", "tensor");
	cJSON_AddNumberToObject(event, "id", (double)number);
	cJSON_AddNumberToObject(event, "ts", merged_time(merge, end->begin));
	cJSON_AddStringToObject(event, "bp", "e");
	print_event(merge, event);
	cJSON_Delete(event);
}

static int print_arrows(struct merge *merge, const struct trace_file *files, size_t count)
{
	size_t shares = 1, out_count, number = 0;
	struct end *out, *in;
	int error = 0;

	for (size_t i = 0; i < count; i++)
		shares += files[i].share_count;
	out = calloc(shares, sizeof(*out));
	in = calloc(shares, sizeof(*in));
	if (!out || !in) {
		error = -ENOMEM;
		goto done;
	}
	out_count = collect(files, count, true, out);
	shares = collect(files, count, false, in);
	for (size_t i = 0; i < out_count; i++) {
		const struct end *to = bsearch(&out[i], in, shares, sizeof(*in), compare_ends);

		if (!to)
			continue;
		print_end(merge, "s", &out[i], ++number);
		print_end(merge, "f", to, number);
	}
done:
	free(out);
	free(in);
	return error;
}

/* ---- All --------------------------------------------------------------- */

static int print_all(struct merge *merge, const struct trace_file *files, size_t count, char *why,
		     size_t room)
{
	bool whole;
	int error = 0;

	for (size_t i = 0; !error && i < count; i++) {
		merge->file = &files[i];
		merge->number = (unsigned)i + 1;
		error = trace_file_events(files[i].path, take_event, merge, &whole, why, room);
	}
	if (!error) {
		error = print_arrows(merge, files, count);
		snprintf(why, room, "%s", strerror(-error));
	}
	fprintf(merge->out, "\n]\n");
	return error;
}

int trace_merge(const struct trace_file *files, size_t count, const char *path, char *why,
		size_t room)
{
	struct merge merge = {.base = INFINITY};
	int error;

	for (size_t i = 0; i < count; i++) {
		if (files[i].processes > 1) {
			snprintf(why, room,
				 "%s was merged already: give the files that it was "
				 "made of",
				 files[i].path);
			return -EINVAL;
		}
		merge.base = fmin(merge.base, trace_file_time(&files[i], files[i].first));
	}
	/* Files without any tensor have no first time. */
	if (isinf(merge.base))
		merge.base = 0;
	merge.out = fopen(path, "we");
	if (!merge.out) {
		error = -errno;
		snprintf(why, room, "--merge=%s: %s", path, strerror(-error));
		return error;
	}
	error = print_all(&merge, files, count, why, room);
	if ((fflush(merge.out) || ferror(merge.out)) && !error) {
		error = errno ? -errno : -EIO;
		snprintf(why, room, "--merge=%s: %s", path, strerror(-error));
	}
	fclose(merge.out);
	return error;
}
