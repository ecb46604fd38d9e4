/* SPDX-License-Identifier: Apache-2.0 */
/* Sides: contexts with a ledger, and operations on them. */
#include "ledger.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCH 64

/* ---- Contexts ---------------------------------------------------------- */

struct side *side_try_open(struct world *world, const char *options, int *error)
{
	struct side *side;
	unsigned place = 0, number;
	const char *spec;
	char *numbered;

	while (place < world->side_count && world->sides[place])
		place++;
	assert_true(place < SIDES_MAX);
	spec = place ? settings.peer_transport : settings.transport;
	numbered = spec_numbered(spec_with(world, spec, options), &number);
	side = calloc(1, sizeof(*side));
	assert_non_null(side);
	*error = haul_open(numbered, &side->context);
	free(numbered);
	if (*error) {
		number_give_back(number);
		free(side);
		return NULL;
	}
	side->world = world;
	side->number = number;
	side->name = (char)('a' + place);
	world->sides[place] = side;
	if (place == world->side_count)
		world->side_count++;
	return side;
}

struct side *side_open(struct world *world, const char *options)
{
	int error;
	struct side *side = side_try_open(world, options, &error);

	if (side)
		return side;
	/* A transport whose contexts take a device of their own has only so many. */
	if (world->side_count >= 2 && (error == -EBUSY || error == -ENODEV))
		skip_because("no more contexts: %s", haul_detail(NULL));
	fail_msg("haul_open(%s): %s: %s", options ? options : "", haul_strerror(error),
		 haul_detail(NULL));
	return NULL;
}

void side_free(struct side *side)
{
	haul_close(side->context);
	number_give_back(side->number);
	ledger_free(side);
	free(side);
}

void side_close(struct side *side)
{
	for (unsigned i = 0; i < side->world->side_count; i++) {
		if (side->world->sides[i] == side)
			side->world->sides[i] = NULL;
	}
	side_free(side);
}

const char *side_listen(struct side *side)
{
	char *where = world_text(side->world, "%s:0", settings.listen_host);
	int error = haul_listen(side->context, where, side, &side->listener);

	if (error)
		fail_msg("haul_listen(%s): %s: %s", where, haul_strerror(error),
			 haul_detail(side->context));
	return connect_address(side->world, haul_listener_address(side->listener));
}

const char *connect_address(struct world *world, const char *listener_address)
{
	if (!settings.connect_host)
		return world_text(world, "%s", listener_address);
	return world_text(world, "%s%s", settings.connect_host, strrchr(listener_address, ':'));
}

int side_poll(struct side *side)
{
	struct haul_completion batch[BATCH];
	int count = haul_poll(side->context, batch, BATCH, 0);

	if (count < 0)
		fail_msg("haul_poll: %s: %s", haul_strerror(count), haul_detail(side->context));
	assert_true(count <= BATCH);
	for (int i = 0; i < count; i++)
		ledger_record(side, &batch[i]);
	return count;
}

/* ---- Operations -------------------------------------------------------- */

static int start(struct entry *entry, haul_endpoint *endpoint, struct haul_key key,
		 DLTensor *tensor, haul_region *region, const struct haul_op *op)
{
	switch (entry->event) {
	case HAUL_SENT:
		return haul_send(endpoint, key, tensor, region, op);
	case HAUL_RECEIVED:
		return haul_recv(endpoint, key, tensor, region, op);
	default:
		return haul_query(endpoint, key, op);
	}
}

struct entry *try_post(struct side *side, haul_endpoint *endpoint, enum haul_event event,
		       struct haul_key key, DLTensor *tensor, const struct extra *extra, int *error)
{
	struct entry *entry = ledger_new(side, endpoint, event);
	struct haul_op op = HAUL_OP_INIT;

	op.cookie = entry;
	if (extra) {
		op.timeout_ms = extra->timeout_ms;
		entry->hook = extra->hook;
		entry->user = extra->user;
		entry->number = extra->number;
	}
	*error = start(entry, endpoint, key, tensor, extra ? extra->region : NULL, &op);
	if (!*error)
		return entry;
	ledger_withdraw(entry);
	return NULL;
}

struct entry *post_with(const struct way *way, enum haul_event event, struct haul_key key,
			DLTensor *tensor, const struct extra *extra)
{
	struct side *side = event == HAUL_SENT ? way->from : way->to;
	haul_endpoint *endpoint = event == HAUL_SENT ? way->out : way->in;
	int error;
	struct entry *entry = try_post(side, endpoint, event, key, tensor, extra, &error);

	if (!entry)
		fail_msg("side %c: event %d could not start: %s: %s", side->name, event,
			 haul_strerror(error), haul_detail(side->context));
	return entry;
}

struct entry *post_send(const struct way *way, struct haul_key key, const DLTensor *tensor)
{
	return post_with(way, HAUL_SENT, key, (DLTensor *)tensor, NULL);
}

struct entry *post_recv(const struct way *way, struct haul_key key, DLTensor *tensor)
{
	return post_with(way, HAUL_RECEIVED, key, tensor, NULL);
}

struct entry *post_query(const struct way *way, struct haul_key key)
{
	return post_with(way, HAUL_QUERIED, key, NULL, NULL);
}

struct entry *try_connect(struct side *side, const char *address, int *error)
{
	struct entry *entry = ledger_new(side, NULL, HAUL_CONNECTED);

	*error = haul_connect(side->context, address, entry);
	if (!*error)
		return entry;
	ledger_withdraw(entry);
	return NULL;
}

struct entry *post_connect(struct side *side, const char *address)
{
	int error;
	struct entry *entry = try_connect(side, address, &error);

	if (!entry)
		fail_msg("haul_connect(%s): %s: %s", address, haul_strerror(error),
			 haul_detail(side->context));
	return entry;
}

/* ---- Waiting ----------------------------------------------------------- */

void wait_done(struct entry *entry)
{
	uint64_t until = now_ms() + PATIENCE_MS;

	while (!entry->done)
		world_step(entry->side->world, until, "an operation to end");
}

void wait_result(struct entry *entry, int result)
{
	wait_done(entry);
	check_result(entry, result);
}

static bool all_done(void *user)
{
	struct world *world = user;

	for (unsigned i = 0; i < world->side_count; i++) {
		struct side *side = world->sides[i];

		if (side && side->finished < side->started)
			return false;
	}
	return true;
}

void wait_all(struct world *world)
{
	wait_until(world, all_done, world, "all operations to end");
}

void wait_lost(struct side *side, unsigned count)
{
	uint64_t until = now_ms() + PATIENCE_MS;

	while (side->lost_count < count)
		world_step(side->world, until, "HAUL_LOST");
}

void wait_caught(struct side *side, unsigned which, haul_endpoint *endpoint, int error,
		 const char *lie)
{
	uint64_t until = now_ms() + PATIENCE_MS;
	const struct lost *lost = &side->lost[which];

	while (side->lost_count <= which) {
		if (now_ms() >= until)
			fail_msg("not caught: %s", lie);
		world_step(side->world, until, lie);
	}
	if (lost->result != error)
		fail_msg("%s: lost with %d, not with %d", lie, lost->result, error);
	assert_ptr_equal(lost->endpoint, endpoint);
}

void wait_accepted(struct side *side, unsigned count)
{
	uint64_t until = now_ms() + PATIENCE_MS;

	while (side->accepted_count < count)
		world_step(side->world, until, "HAUL_ACCEPTED");
}

void check_result(const struct entry *entry, int result)
{
	if (entry->result != result)
		fail_msg("side %c: event %d ended with %d (%s%s%s), not with %d (%s)",
			 entry->side->name, entry->event, entry->result,
			 haul_strerror(entry->result), entry->detail[0] ? ": " : "", entry->detail,
			 result, haul_strerror(result));
}

void check_words(const char *text, const char *const words[])
{
	for (size_t i = 0; words && words[i]; i++) {
		if (!strstr(text, words[i]))
			fail_msg("\"%s\" does not name \"%s\"", text, words[i]);
	}
}

void check_error(haul_context *context, int error, int expected, const char *const words[])
{
	const char *detail = haul_detail(context);

	if (error != expected)
		fail_msg("%d (%s: %s) instead of %d (%s)", error, haul_strerror(error), detail,
			 expected, haul_strerror(expected));
	if (!detail[0])
		fail_msg("%s without a detail", haul_strerror(error));
	if (strchr(detail, '\n'))
		fail_msg("a detail of more than one line: %s", detail);
	check_words(detail, words);
}

/* ---- Pairs ------------------------------------------------------------- */

void connect_sides(struct side *from, struct side *to, struct way *up, struct way *down)
{
	const char *address =
		to->listener ? connect_address(to->world, haul_listener_address(to->listener))
			     : side_listen(to);
	unsigned before = to->accepted_count;
	struct entry *connected = post_connect(from, address);

	wait_result(connected, 0);
	assert_non_null(connected->endpoint);
	wait_accepted(to, before + 1);
	up->from = down->to = from;
	up->to = down->from = to;
	up->out = down->in = connected->endpoint;
	up->in = down->out = to->accepted[before];
}

void pair_open(struct world *world, const char *options, struct pair *pair)
{
	pair->a = side_open(world, options);
	pair->b = side_open(world, options);
	connect_sides(pair->b, pair->a, &pair->up, &pair->down);
}

void check_way_alive(const struct way *way)
{
	struct block *source = block_new(way->from->world, 100);
	struct block *target = block_new(way->from->world, 100);
	struct entry *sent, *received;

	block_fill(source, 77);
	received = post_recv(way, haul_key("alive?"), &target->tensor);
	sent = post_send(way, haul_key("alive?"), &source->tensor);
	wait_result(received, 0);
	wait_result(sent, 0);
	block_check(target, 77);
}

void check_alive(const struct pair *pair)
{
	check_way_alive(&pair->up);
	check_way_alive(&pair->down);
}
