/* SPDX-License-Identifier: Apache-2.0 */
#include "trace_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Lines ------------------------------------------------------------- */

static bool is_blank(const char *text)
{
	return text[strspn(text, " \t\r\n,")] == '\0';
}

/* The event of a line, without the comma between events. NULL: it is none. */
static cJSON *event_of(char *line)
{
	const char *end;
	cJSON *event = cJSON_ParseWithOpts(line, &end, false);

	if (event && (!cJSON_IsObject(event) || !is_blank(end))) {
		cJSON_Delete(event);
		event = NULL;
	}
	return event;
}

/* Everything behind the bracket; 0, or what `room` bytes of `why` tell. */
static int read_lines(FILE *in, trace_event_function *take, void *user, bool *whole, char *why,
		      size_t room)
{
	char *line = NULL;
	size_t size = 0, number = 0;
	ssize_t length;
	const char *wrong = NULL;
	bool closed = false;
	int error = 0;

	while (!error && (length = getline(&line, &size, in)) > 0) {
		cJSON *event;

		number++;
		if (is_blank(line))
			continue;
		if (line[0] == ']') {
			closed = true;
			break;
		}
		event = event_of(line);
		/* Whoever wrote it was ended in the middle of this line. */
		if (!event && line[length - 1] != '\n' && feof(in))
			break;
		wrong = event ? take(user, event) : "it is no event of a trace";
		cJSON_Delete(event);
		if (wrong) {
			snprintf(why, room, "line %zu: %s", number, wrong);
			error = -EINVAL;
		}
	}
	if (!error && ferror(in)) {
		snprintf(why, room, "%s", strerror(errno));
		error = -EIO;
	}
	*whole = closed;
	free(line);
	return error;
}

int trace_file_events(const char *path, trace_event_function *take, void *user, bool *whole,
		      char *why, size_t room)
{
	FILE *in = fopen(path, "re");
	int first, error = 0;

	if (!in) {
		error = -errno;
		snprintf(why, room, "%s", strerror(errno));
		return error;
	}
	do
		first = getc(in);
	while (first == ' ' || first == '\n');
	if (first != '[') {
		error = ferror(in) ? -errno : -EINVAL;
		snprintf(why, room, "%s",
			 ferror(in)     ? strerror(errno)
			 : first == EOF ? "it is empty"
					: "it is no trace: that begins with \"[\"");
	}
	if (!error)
		error = read_lines(in, take, user, whole, why, room);
	fclose(in);
	return error;
}

/* ---- Values ------------------------------------------------------------ */

static double number_of(const cJSON *object, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

	return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static const char *text_of(const cJSON *object, const char *name)
{
	const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

	return text ? text : "";
}

static uint64_t name_of(const cJSON *object, const char *name)
{
	return strtoull(text_of(object, name), NULL, 16);
}

static struct tensor_name tensor_name_of(const cJSON *values)
{
	return (struct tensor_name){
		.link = name_of(values, "link"),
		.slot = name_of(values, "slot"),
		.to_acceptor = strcmp(text_of(values, "to"), "acceptor") == 0,
	};
}

int tensor_name_compare(const struct tensor_name *left, const struct tensor_name *right)
{
	if (left->link != right->link)
		return left->link < right->link ? -1 : 1;
	if (left->slot != right->slot)
		return left->slot < right->slot ? -1 : 1;
	return (int)left->to_acceptor - (int)right->to_acceptor;
}

/* Room for one more; NULL: no memory. */
static void *one_more(void *array, size_t *count, size_t *room, size_t size)
{
	char **items = array;

	if (*count == *room) {
		size_t more = *room ? 2 * *room : 64;
		char *grown = reallocarray(*items, more, size);

		if (!grown)
			return NULL;
		*items = grown;
		*room = more;
	}
	return *items + size * (*count)++;
}

#define MORE(file, items, count, room)                                                             \
	one_more(&(file)->items, &(file)->count, &(file)->room, sizeof(*(file)->items))

static void stretch(struct trace_file *file, double begin, double end)
{
	file->first = fmin(file->first, begin);
	file->last = fmax(file->last, end);
}

/* ---- Events ------------------------------------------------------------ */

static const char no_memory[] = "no memory";

static const char *take_metadata(struct trace_file *file, const cJSON *event)
{
	const cJSON *values = cJSON_GetObjectItemCaseSensitive(event, "args");
	const char *name = text_of(event, "name");
	uint64_t *link;

	if (strcmp(name, "tensorhaul_trace") == 0) {
		if (number_of(values, "version") != 1)
			return "it is a trace of another version of tensorhaul";
		if (file->processes++)
			return NULL;
		file->program = strdup(text_of(values, "program"));
		file->host = strdup(text_of(values, "host"));
		file->spec = strdup(text_of(values, "spec"));
		return file->program && file->host && file->spec ? NULL : no_memory;
	}
	if (strcmp(name, "tensorhaul_end") == 0) {
		file->written += number_of(values, "written");
		file->lost += number_of(values, "lost");
	} else if (strcmp(name, "tensorhaul_link") == 0) {
		link = MORE(file, links, link_count, link_room);
		if (!link)
			return no_memory;
		*link = name_of(values, "link");
	}
	return NULL;
}

static const char *take_tensor(struct trace_file *file, const cJSON *event)
{
	const cJSON *values = cJSON_GetObjectItemCaseSensitive(event, "args");
	struct tensor *tensor;

	/* Its steps and its end: what they say is in the begin. */
	if (!values)
		return NULL;
	tensor = MORE(file, tensors, tensor_count, tensor_room);
	if (!tensor)
		return no_memory;
	*tensor = (struct tensor){
		.send = strcmp(text_of(event, "name"), "send") == 0,
		.result = (int)number_of(values, "result"),
		.name = tensor_name_of(values),
		.bytes = number_of(values, "bytes"),
		.begin = number_of(event, "ts"),
		.wait = number_of(values, "wait_us"),
		.checksum = number_of(values, "checksum_us"),
		.move = number_of(values, "move_us"),
		.copy = number_of(values, "copy_us"),
		.kernel = number_of(values, "kernel_us"),
		.complete = number_of(values, "complete_us"),
	};
	tensor->end =
		tensor->begin + tensor->wait + tensor->checksum + tensor->move + tensor->complete;
	snprintf(tensor->peer, sizeof(tensor->peer), "%s", text_of(values, "peer"));
	if (isnan(tensor->end + tensor->bytes + tensor->copy + tensor->kernel))
		return "a tensor without its times";
	stretch(file, tensor->begin, tensor->end);
	return NULL;
}

static const char *take_share(struct trace_file *file, const cJSON *event)
{
	const cJSON *values = cJSON_GetObjectItemCaseSensitive(event, "args");
	struct share *share = MORE(file, shares, share_count, share_room);

	if (!share)
		return no_memory;
	*share = (struct share){
		.out = strcmp(text_of(event, "name"), "out") == 0,
		.name = tensor_name_of(values),
		.begin = number_of(event, "ts"),
		.thread = number_of(event, "tid"),
	};
	return isnan(share->begin + share->thread) ? "a share without its time" : NULL;
}

static const char *take_clock(struct trace_file *file, const cJSON *event)
{
	const cJSON *values = cJSON_GetObjectItemCaseSensitive(event, "args");
	struct clock_sample *clock = MORE(file, clocks, clock_count, clock_room);

	if (!clock)
		return no_memory;
	*clock = (struct clock_sample){
		.link = name_of(values, "link"),
		.at = number_of(event, "ts"),
		.offset = (double)strtoll(text_of(values, "offset_ns"), NULL, 10) * 1e-3,
		.uncertainty = number_of(values, "uncertainty_ns") * 1e-3,
	};
	return isnan(clock->at + clock->uncertainty) ? "a clock offset without its time" : NULL;
}

static const char *take_span(struct trace_file *file, const cJSON *event)
{
	const char *name = text_of(event, "name");
	double begin = number_of(event, "ts"), length = number_of(event, "dur");
	struct span_sum *sum = NULL;

	if (isnan(begin + length))
		return "a span without its times";
	for (size_t i = 0; i < file->span_count && !sum; i++)
		if (strcmp(file->spans[i].name, name) == 0)
			sum = &file->spans[i];
	if (!sum) {
		sum = MORE(file, spans, span_count, span_room);
		if (!sum)
			return no_memory;
		*sum = (struct span_sum){.name = strdup(name)};
		if (!sum->name) {
			file->span_count--;
			return no_memory;
		}
	}
	sum->count++;
	sum->total += length;
	sum->bytes += number_of(cJSON_GetObjectItemCaseSensitive(event, "args"), "bytes");
	stretch(file, begin, begin + length);
	return NULL;
}

static const char *take_event(void *user, cJSON *event)
{
	struct trace_file *file = user;
	const char *category = text_of(event, "cat");

	if (strcmp(text_of(event, "ph"), "M") == 0)
		return take_metadata(file, event);
	if (strcmp(category, "tensor") == 0)
		return take_tensor(file, event);
	if (strcmp(category, "share") == 0)
		return take_share(file, event);
	if (strcmp(category, "clock") == 0)
		return take_clock(file, event);
	if (strcmp(category, "program") == 0)
		return take_span(file, event);
	return NULL;
}

int trace_file_read(struct trace_file *file, const char *path, char *why, size_t room)
{
	int error;

	*file = (struct trace_file){.path = path, .first = INFINITY, .last = -INFINITY};
	error = trace_file_events(path, take_event, file, &file->whole, why, room);
	if (!error && !file->processes) {
		snprintf(why, room,
			 "it is no trace of tensorhaul: it has no event "
			 "\"tensorhaul_trace\"");
		error = -EINVAL;
	}
	return error;
}

void trace_file_free(struct trace_file *file)
{
	for (size_t i = 0; i < file->span_count; i++)
		free(file->spans[i].name);
	free(file->program);
	free(file->host);
	free(file->spec);
	free(file->links);
	free(file->tensors);
	free(file->shares);
	free(file->clocks);
	free(file->spans);
}

double trace_file_time(const struct trace_file *file, double time)
{
	const struct alignment *alignment = &file->alignment;

	return time + alignment->offset + alignment->drift * (time - alignment->from);
}
