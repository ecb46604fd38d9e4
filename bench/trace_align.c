/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One clock for several traces. Each side of an endpoint has measured how far the other's clock is
 * ahead, and by how much it may be wrong. The truth lies within all of these bounds. When there is
 * nothing within all of them the clocks drifted apart during the run, and a line is laid through
 * what the measurements of its first half and of its second half say.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace_file.h"

static bool has_link(const struct trace_file *file, uint64_t link)
{
	for (size_t i = 0; i < file->link_count; i++)
		if (file->links[i] == link)
			return true;
	return false;
}

static bool share_a_link(const struct trace_file *one, const struct trace_file *other)
{
	for (size_t i = 0; i < one->link_count; i++)
		if (has_link(other, one->links[i]))
			return true;
	return false;
}

/* What has to be added to `file`'s time at `at` to get `known`'s. */
struct correction {
	double at, offset, uncertainty;
};

/* All that both sides measured, by `file`'s clock; NULL when there is nothing, or no memory. */
static struct correction *collect(const struct trace_file *known, const struct trace_file *file,
				  size_t *count)
{
	size_t room = known->clock_count + file->clock_count;
	struct correction *list = calloc(room ? room : 1, sizeof(*list));

	*count = 0;
	for (size_t i = 0; list && i < file->clock_count; i++) {
		const struct clock_sample *sample = &file->clocks[i];

		if (has_link(known, sample->link))
			list[(*count)++] = (struct correction){sample->at, sample->offset,
							       sample->uncertainty};
	}
	for (size_t i = 0; list && i < known->clock_count; i++) {
		const struct clock_sample *sample = &known->clocks[i];

		if (has_link(file, sample->link))
			list[(*count)++] = (struct correction){
				sample->at + sample->offset, -sample->offset, sample->uncertainty};
	}
	if (*count)
		return list;
	free(list);
	return NULL;
}

/*
 * What all of [from, to) say together. False when they contradict each other, or there are none:
 * then it is the best one.
 */
static bool agree(const struct correction *list, size_t count, double from, double to,
		  struct correction *all)
{
	struct correction best = {.uncertainty = INFINITY};
	double low = -INFINITY, high = INFINITY;

	for (size_t i = 0; i < count; i++) {
		if (list[i].at < from || list[i].at > to)
			continue;
		low = fmax(low, list[i].offset - list[i].uncertainty);
		high = fmin(high, list[i].offset + list[i].uncertainty);
		if (list[i].uncertainty < best.uncertainty)
			best = list[i];
	}
	*all = best;
	if (isinf(best.uncertainty) || low > high)
		return false;
	*all = (struct correction){best.at, (low + high) / 2, (high - low) / 2};
	return true;
}

/* Clocks that drifted apart: a line through both halves of the time that was measured. */
static void use_line(const struct correction *list, size_t count, struct alignment *alignment)
{
	struct correction early, late;
	double from = INFINITY, to = -INFINITY;

	for (size_t i = 0; i < count; i++) {
		from = fmin(from, list[i].at);
		to = fmax(to, list[i].at);
	}
	agree(list, count, from, (from + to) / 2, &early);
	agree(list, count, (from + to) / 2, to, &late);
	if (late.at <= early.at)
		return;
	alignment->drift = (late.offset - early.offset) / (late.at - early.at);
	alignment->offset = early.offset;
	alignment->from = early.at;
	alignment->uncertainty = fmax(early.uncertainty, late.uncertainty);
}

static bool align(const struct trace_file *known, struct trace_file *file)
{
	struct alignment *alignment = &file->alignment;
	struct correction all;
	size_t count;
	struct correction *list = collect(known, file, &count);
	double there;
	bool agreed;

	if (!list)
		return false;
	agreed = agree(list, count, -INFINITY, INFINITY, &all);
	*alignment = (struct alignment){.known = true,
					.from = all.at,
					.offset = all.offset,
					.uncertainty = all.uncertainty};
	if (!agreed)
		use_line(list, count, alignment);
	/* Then onto the clock that the known one is on. */
	there = all.at + all.offset;
	alignment->offset += trace_file_time(known, there) - there;
	alignment->drift += known->alignment.drift;
	alignment->uncertainty += known->alignment.uncertainty;
	free(list);
	return true;
}

/* The next file that has a neighbour with a known clock. */
static bool align_one(struct trace_file *files, size_t count)
{
	for (size_t i = 0; i < count; i++)
		for (size_t known = 0; !files[i].alignment.known && known < count; known++)
			if (files[known].alignment.known && align(&files[known], &files[i]))
				return true;
	return false;
}

bool trace_align(struct trace_file *files, size_t count, char *why, size_t room)
{
	size_t left = 0;

	files[0].alignment.known = true;
	while (align_one(files, count))
		;
	while (left < count && files[left].alignment.known)
		left++;
	if (left == count)
		return true;
	for (size_t i = 0; i < count; i++) {
		if (i == left || !share_a_link(&files[i], &files[left]))
			continue;
		snprintf(why, room,
			 "%s and %s share an endpoint, but neither measured the other's clock: "
			 "the run was over too soon",
			 files[i].path, files[left].path);
		return false;
	}
	snprintf(
		why, room,
		"%s shares no endpoint with the others: traces of both sides of one run are needed",
		files[left].path);
	return false;
}
