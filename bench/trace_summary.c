/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of the time for one tensor, so much was waiting, moving, copying, completing: by size and by
 * peer, for either side, and for both sides together where both files are there.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench_common.h"
#include "trace_file.h"

/* A size belongs to the first class that it is not larger than. */
static const struct {
	const char *name;
	double limit;
} classes[] = {
	{"up to 64 B", 64},          {"up to 1 KiB", 1024},      {"up to 16 KiB", 16384},
	{"up to 256 KiB", 262144},   {"up to 1 MiB", 1048576},   {"up to 4 MiB", 4194304},
	{"up to 16 MiB", 16777216},  {"up to 64 MiB", 67108864}, {"up to 256 MiB", 268435456},
	{"up to 1 GiB", 1073741824}, {"over 1 GiB", INFINITY},
};

static size_t class_of(double bytes)
{
	size_t i = 0;

	while (bytes > classes[i].limit)
		i++;
	return i;
}

/* ---- Groups ------------------------------------------------------------ */

enum way { WAY_SEND, WAY_RECEIVE, WAY_BOTH, WAYS };

static const char *const way_names[] = {"send", "receive", "send and receive"};

/* Tensors that are summed up together. Times are sums in microseconds. */
struct group {
	enum way way;
	size_t class;     /* of sizes; ARRAY_LENGTH(classes): all */
	const char *peer; /* NULL: all */
	double count, bytes;
	double wait, checksum, move, copy, complete, kernel;
	double back; /* WAY_BOTH: from the last byte's arrival until PLACED was read */
	double *totals;
	size_t room;
};

struct groups {
	struct group *items;
	size_t count;
};

static struct group *find_group(struct groups *groups, enum way way, size_t class, const char *peer)
{
	struct group *grown;

	for (size_t i = 0; i < groups->count; i++) {
		struct group *group = &groups->items[i];

		if (group->way == way && group->class == class &&
		    (group->peer == peer ||
		     (group->peer && peer && strcmp(group->peer, peer) == 0)))
			return group;
	}
	grown = reallocarray(groups->items, groups->count + 1, sizeof(*grown));
	if (!grown)
		return NULL;
	groups->items = grown;
	grown += groups->count++;
	*grown = (struct group){.way = way, .class = class, .peer = peer};
	return grown;
}

static bool add_total(struct group *group, double total)
{
	size_t count = (size_t)group->count;

	if (count == group->room) {
		size_t room = group->room ? 2 * group->room : 64;
		double *grown = reallocarray(group->totals, room, sizeof(*grown));

		if (!grown)
			return false;
		group->totals = grown;
		group->room = room;
	}
	group->totals[count] = total;
	group->count++;
	return true;
}

static void add_tensor(struct group *group, const struct tensor *tensor)
{
	if (!group || !add_total(group, tensor->end - tensor->begin))
		return;
	group->bytes += tensor->bytes;
	group->wait += tensor->wait;
	group->checksum += tensor->checksum;
	group->copy += fmin(tensor->copy, tensor->move);
	group->move += tensor->move - fmin(tensor->copy, tensor->move);
	group->complete += tensor->complete;
	group->kernel += tensor->kernel;
}

/* ---- Both sides -------------------------------------------------------- */

struct received {
	const struct tensor *tensor;
	const struct trace_file *file;
};

static int compare_received(const void *left, const void *right)
{
	const struct tensor *a = ((const struct received *)left)->tensor;
	const struct tensor *b = ((const struct received *)right)->tensor;

	return tensor_name_compare(&a->name, &b->name);
}

static struct received *collect_received(const struct trace_file *files, size_t count,
					 size_t *found)
{
	struct received *list;
	size_t room = 1;

	for (size_t i = 0; i < count; i++)
		room += files[i].tensor_count;
	list = calloc(room, sizeof(*list));
	*found = 0;
	for (size_t i = 0; list && i < count; i++)
		for (size_t n = 0; files[i].alignment.known && n < files[i].tensor_count; n++)
			if (!files[i].tensors[n].send && files[i].tensors[n].result == 0)
				list[(*found)++] =
					(struct received){&files[i].tensors[n], &files[i]};
	if (list)
		qsort(list, *found, sizeof(*list), compare_received);
	return list;
}

/*
 * The sender's call until its completion was handed out. In between: all bytes in place, by the
 * receiver's clock.
 */
static void add_both(struct groups *groups, const struct trace_file *file,
		     const struct tensor *sent, const struct received *received)
{
	const struct tensor *in = received->tensor;
	double left = sent->begin + sent->wait + sent->checksum;
	double placed = in->begin + in->wait + in->move;
	double done = left + sent->move;
	double there = trace_file_time(received->file, placed) - trace_file_time(file, left);
	struct group *group = find_group(groups, WAY_BOTH, class_of(sent->bytes), NULL);

	if (!group || !add_total(group, sent->end - sent->begin))
		return;
	group->bytes += sent->bytes;
	group->wait += sent->wait;
	group->checksum += sent->checksum + in->checksum;
	group->copy += sent->copy + in->copy;
	group->move += there - sent->copy - in->copy;
	group->back += done - left - there - in->checksum;
	group->complete += sent->complete;
	group->kernel += sent->kernel + in->kernel;
}

static void group_both(struct groups *groups, const struct trace_file *files, size_t count)
{
	size_t found;
	struct received *list = collect_received(files, count, &found);

	for (size_t i = 0; list && count > 1 && i < count; i++)
		for (size_t n = 0; files[i].alignment.known && n < files[i].tensor_count; n++) {
			const struct tensor *sent = &files[i].tensors[n];
			struct received key = {sent, &files[i]}, *other;

			if (!sent->send || sent->result)
				continue;
			other = bsearch(&key, list, found, sizeof(*list), compare_received);
			if (other)
				add_both(groups, &files[i], sent, other);
		}
	free(list);
}

/* ---- Order ------------------------------------------------------------- */

static int compare_groups(const void *left, const void *right)
{
	const struct group *a = left, *b = right;

	if (!a->peer != !b->peer)
		return a->peer ? 1 : -1;
	if (a->peer && strcmp(a->peer, b->peer) != 0)
		return strcmp(a->peer, b->peer);
	if (a->class != b->class)
		return a->class < b->class ? -1 : 1;
	return (int)a->way - (int)b->way;
}

static struct groups make_groups(const struct trace_file *files, size_t count)
{
	struct groups groups = {0};

	for (size_t i = 0; i < count; i++)
		for (size_t n = 0; n < files[i].tensor_count; n++) {
			const struct tensor *tensor = &files[i].tensors[n];
			enum way way = tensor->send ? WAY_SEND : WAY_RECEIVE;

			if (tensor->result)
				continue;
			add_tensor(find_group(&groups, way, class_of(tensor->bytes), NULL), tensor);
			add_tensor(find_group(&groups, way, ARRAY_LENGTH(classes), tensor->peer),
				   tensor);
		}
	group_both(&groups, files, count);
	if (groups.count)
		qsort(groups.items, groups.count, sizeof(*groups.items), compare_groups);
	return groups;
}

static void free_groups(struct groups *groups)
{
	for (size_t i = 0; i < groups->count; i++)
		free(groups->items[i].totals);
	free(groups->items);
}

static int compare_times(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

static double percentile(const struct group *group, double share)
{
	size_t at = (size_t)(share * (group->count - 1) + 0.5);

	qsort(group->totals, (size_t)group->count, sizeof(*group->totals), compare_times);
	return group->totals[at];
}

static double total_of(const struct group *group)
{
	double sum = 0;

	for (size_t i = 0; i < (size_t)group->count; i++)
		sum += group->totals[i];
	return sum;
}

/* ---- Files ------------------------------------------------------------- */

/* Of one file, in seconds. */
struct sums {
	double seconds, copy, kernel, tensors, waited, failed;
};

/*
 * A receive that nothing was sent for until it was cancelled or its peer left. Receives are posted
 * ahead, so that some are left at the end of a run: that is no failure.
 */
static bool still_waited(const struct tensor *tensor)
{
	return !tensor->send && tensor->move == 0 &&
	       (tensor->result == -ECANCELED || tensor->result == -ECONNRESET);
}

static struct sums sum_up(const struct trace_file *file)
{
	struct sums sums = {.seconds = fmax(0, file->last - file->first) * 1e-6};

	for (size_t i = 0; i < file->tensor_count; i++) {
		const struct tensor *tensor = &file->tensors[i];

		sums.tensors += tensor->result == 0;
		sums.waited += still_waited(tensor);
		sums.failed += tensor->result != 0 && !still_waited(tensor);
		sums.copy += tensor->copy * 1e-6;
		sums.kernel += tensor->kernel * 1e-6;
	}
	return sums;
}

static double share_of(double part, double all)
{
	return all > 0 ? part / all : 0;
}

static void print_file(const struct trace_file *file, bool first, FILE *out)
{
	struct sums sums = sum_up(file);

	fprintf(out, "%s: %s on %s, %.3f s, %.0f tensors, %.0f failed", file->path, file->program,
		file->host, sums.seconds, sums.tensors, sums.failed);
	if (sums.waited > 0)
		fprintf(out, ", %.0f receive%s still waited at the end", sums.waited,
			sums.waited == 1 ? "" : "s");
	fputc('\n', out);
	if (!file->alignment.known)
		fprintf(out,
			"  clock: unknown, so that its tensors are not laid over the others\n");
	else if (!first)
		fprintf(out, "  clock: %+.3f us to the first file's, at most %.3f us wrong\n",
			file->alignment.offset, file->alignment.uncertainty);
	fprintf(out,
		"  copies outside of the kernel: %.6f s, %.2f %% of the time; in system calls "
		"that move tensors: %.3f s, %.1f %%\n",
		sums.copy, 100 * share_of(sums.copy, sums.seconds), sums.kernel,
		100 * share_of(sums.kernel, sums.seconds));
	for (size_t i = 0; i < file->span_count; i++)
		fprintf(out, "  %s: %.0f times, %.3f s, %.1f %% of the time, %.1f us each\n",
			file->spans[i].name, file->spans[i].count, file->spans[i].total * 1e-6,
			100 * share_of(file->spans[i].total * 1e-6, sums.seconds),
			file->spans[i].total / file->spans[i].count);
	if (file->lost > 0)
		fprintf(out,
			"  %.0f events were lost: trace_buffer was too small, or the file "
			"could not be written\n",
			file->lost);
	if (!file->whole)
		fprintf(out, "  the end is missing: the program is still running, was killed, or "
			     "left its context open\n");
}

/* ---- Tables ------------------------------------------------------------ */

static const char *const heads[] = {"size",   "peer",   "way",       "tensors",    "mean us",
				    "p50 us", "p99 us", "wait %",    "checksum %", "move %",
				    "copy %", "back %", "complete %"};

static void print_share(struct bench_table *table, size_t column, double part, double all)
{
	if (part != 0)
		bench_table_cell(table, column, "%.1f", 100 * share_of(part, all));
}

static void print_group(struct bench_table *table, const struct group *group)
{
	double all = total_of(group);

	bench_table_row(table);
	if (group->peer)
		bench_table_cell(table, 1, "%s", group->peer);
	else
		bench_table_cell(table, 0, "%s", classes[group->class].name);
	bench_table_cell(table, 2, "%s", way_names[group->way]);
	bench_table_cell(table, 3, "%.0f", group->count);
	bench_table_cell(table, 4, "%.1f", all / group->count);
	bench_table_cell(table, 5, "%.1f", percentile(group, 0.5));
	bench_table_cell(table, 6, "%.1f", percentile(group, 0.99));
	print_share(table, 7, group->wait, all);
	print_share(table, 8, group->checksum, all);
	print_share(table, 9, group->move, all);
	print_share(table, 10, group->copy, all);
	print_share(table, 11, group->back, all);
	print_share(table, 12, group->complete, all);
}

static void print_groups(const struct groups *groups, bool peers, FILE *out)
{
	struct bench_table table;

	bench_table_init(&table, ARRAY_LENGTH(heads));
	bench_table_row(&table);
	for (size_t i = 0; i < ARRAY_LENGTH(heads); i++)
		bench_table_cell(&table, i, "%s", heads[i]);
	for (size_t i = 0; i < groups->count; i++)
		if (!groups->items[i].peer == !peers)
			print_group(&table, &groups->items[i]);
	if (table.count > 1) {
		fputc('\n', out);
		bench_table_print(&table, out);
	}
	bench_table_free(&table);
}

void trace_summary_print(const struct trace_file *files, size_t count, FILE *out)
{
	struct groups groups = make_groups(files, count);

	for (size_t i = 0; i < count; i++)
		print_file(&files[i], i == 0, out);
	print_groups(&groups, false, out);
	print_groups(&groups, true, out);
	free_groups(&groups);
}

/* ---- JSON -------------------------------------------------------------- */

static void add_file(cJSON *array, const struct trace_file *file)
{
	struct sums sums = sum_up(file);
	const struct alignment *clock = &file->alignment;
	cJSON *object = cJSON_CreateObject(), *spans;

	cJSON_AddItemToArray(array, object);
	cJSON_AddStringToObject(object, "path", file->path);
	cJSON_AddStringToObject(object, "program", file->program);
	cJSON_AddStringToObject(object, "host", file->host);
	cJSON_AddStringToObject(object, "transport_options", file->spec);
	bench_json_number(object, "seconds", sums.seconds);
	bench_json_number(object, "tensors", sums.tensors);
	bench_json_number(object, "failed", sums.failed);
	bench_json_number(object, "still_waited", sums.waited);
	bench_json_number(object, "copy_s", sums.copy);
	bench_json_number(object, "copy_share", share_of(sums.copy, sums.seconds));
	bench_json_number(object, "kernel_s", sums.kernel);
	bench_json_number(object, "clock_offset_us", clock->known ? clock->offset : NAN);
	bench_json_number(object, "clock_drift", clock->known ? clock->drift : NAN);
	bench_json_number(object, "clock_uncertainty_us", clock->known ? clock->uncertainty : NAN);
	bench_json_number(object, "lost", file->lost);
	cJSON_AddBoolToObject(object, "whole", file->whole);
	spans = cJSON_AddArrayToObject(object, "spans");
	for (size_t i = 0; i < file->span_count; i++) {
		cJSON *span = cJSON_CreateObject();

		cJSON_AddItemToArray(spans, span);
		cJSON_AddStringToObject(span, "name", file->spans[i].name);
		bench_json_number(span, "count", file->spans[i].count);
		bench_json_number(span, "seconds", file->spans[i].total * 1e-6);
		bench_json_number(span, "bytes", file->spans[i].bytes);
	}
}

static void add_group(cJSON *array, const struct group *group)
{
	cJSON *object = cJSON_CreateObject();
	double count = group->count;

	cJSON_AddItemToArray(array, object);
	if (group->peer)
		cJSON_AddStringToObject(object, "peer", group->peer);
	else
		cJSON_AddStringToObject(object, "size", classes[group->class].name);
	cJSON_AddStringToObject(object, "way", way_names[group->way]);
	bench_json_number(object, "tensors", count);
	bench_json_number(object, "bytes", group->bytes);
	bench_json_number(object, "mean_us", total_of(group) / count);
	bench_json_number(object, "p50_us", percentile(group, 0.5));
	bench_json_number(object, "p99_us", percentile(group, 0.99));
	bench_json_number(object, "wait_us", group->wait / count);
	bench_json_number(object, "checksum_us", group->checksum / count);
	bench_json_number(object, "move_us", group->move / count);
	bench_json_number(object, "copy_us", group->copy / count);
	bench_json_number(object, "back_us", group->way == WAY_BOTH ? group->back / count : NAN);
	bench_json_number(object, "complete_us", group->complete / count);
	bench_json_number(object, "kernel_us", group->kernel / count);
}

cJSON *trace_summary_json(const struct trace_file *files, size_t count)
{
	struct groups groups = make_groups(files, count);
	cJSON *json = cJSON_CreateObject(), *sizes, *peers, *list;

	cJSON_AddStringToObject(json, "tool", "haul-trace");
	list = cJSON_AddArrayToObject(json, "files");
	for (size_t i = 0; i < count; i++)
		add_file(list, &files[i]);
	sizes = cJSON_AddArrayToObject(json, "sizes");
	peers = cJSON_AddArrayToObject(json, "peers");
	for (size_t i = 0; i < groups.count; i++)
		add_group(groups.items[i].peer ? peers : sizes, &groups.items[i]);
	free_groups(&groups);
	return json;
}
