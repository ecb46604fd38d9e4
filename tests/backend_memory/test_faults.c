/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine over a transport that fails on purpose, at a moment of the test's choice: what real
 * networks and peers do rarely, and never when one looks.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"
#include "memory.h"

#define KIB ((size_t)1 << 10)

static const struct memory_control *control;

/* ---- Worlds ------------------------------------------------------------ */

static int setup(void **state)
{
	control->reset();
	return world_setup(state);
}

/* When all contexts are closed, the backend has nothing left of what the engine gave it. */
static int teardown(void **state)
{
	struct memory_counts counts;
	int result;

	control->hold(false);
	control->jam(false);
	result = world_teardown(state);
	counts = control->count();
	if (counts.contexts || counts.listeners || counts.links || counts.regions || counts.slots ||
	    counts.pushes || counts.messages) {
		print_error("left: %u contexts, %u listeners, %u links, %u regions, %u slots, %u "
			    "pushes, %u messages\n",
			    counts.contexts, counts.listeners, counts.links, counts.regions,
			    counts.slots, counts.pushes, counts.messages);
		return -1;
	}
	return result;
}

static struct block *filled(struct world *world, size_t bytes, uint64_t seed)
{
	struct block *block = block_new(world, bytes);

	block_fill(block, seed);
	return block;
}

/* Nothing but pieces can still be under way: everything else has been done. */
static void settle(struct world *world)
{
	world_run_for(world, 10);
}

/* ---- Cancelling in mid-transfer, at a known point ---------------------- */

static void test_receive_cancelled_while_pieces_are_under_way(void **state)
{
	struct world *world = *state;
	struct block *source = filled(world, 300 * KIB, 1);
	struct block *first = block_new(world, 300 * KIB), *second = block_new(world, 300 * KIB);
	struct entry *sent, *cancelled, *received;
	struct pair pair;

	pair_open(world, NULL, &pair);
	control->hold(true);
	cancelled = post_recv(&pair.up, haul_key("k"), &first->tensor);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	settle(world);
	assert_int_equal(haul_cancel(pair.a->context, cancelled), 1);
	side_poll(pair.a);
	check_result(cancelled, -ECANCELED); /* at once: this backend can take slots back */
	assert_true(cancelled->done);
	received = post_recv(&pair.up, haul_key("k"), &second->tensor);
	settle(world);
	control->hold(false);
	wait_result(received, 0);
	wait_result(sent, 0);
	block_check(second, 1);
	for (size_t i = 0; i < first->bytes; i++)
		assert_int_equal(first->data[i], 0); /* late pieces went nowhere */
}

/* With memory that can't be taken back the receive waits for the peer's answer. */
static void test_sticky_receive_waits_for_the_answer(void **state)
{
	struct world *world = *state;
	struct block *source = filled(world, 300 * KIB, 1);
	struct block *first = block_new(world, 300 * KIB), *second = block_new(world, 300 * KIB);
	struct entry *sent, *cancelled, *received;
	struct pair pair;

	pair_open(world, "sticky=yes,progress=caller", &pair);
	control->hold(true);
	cancelled = post_recv(&pair.up, haul_key("k"), &first->tensor);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	settle(world);
	pair.b->asleep = true;
	assert_int_equal(haul_cancel(pair.a->context, cancelled), 1);
	settle(world);
	assert_false(cancelled->done);
	control->hold(false); /* the pieces come in, and don't make it a success any more */
	settle(world);
	assert_false(cancelled->done);
	pair.b->asleep = false;
	wait_result(cancelled, -ECANCELED);
	assert_false(sent->done);
	received = post_recv(&pair.up, haul_key("k"), &second->tensor);
	wait_result(received, 0);
	wait_result(sent, 0);
	block_check(second, 1);
}

/* ... but not for ever: a peer that never answers is lost after peer_ms. */
static void test_sticky_receive_of_a_silent_peer(void **state)
{
	struct world *world = *state;
	struct block *block = block_new(world, 1000);
	struct entry *cancelled;
	struct pair pair;
	uint64_t started;

	pair_open(world, "sticky=yes,progress=caller,peer_ms=1000", &pair);
	cancelled = post_recv(&pair.up, haul_key("k"), &block->tensor);
	settle(world);
	pair.b->asleep = true;
	started = now_ms();
	assert_int_equal(haul_cancel(pair.a->context, cancelled), 1);
	wait_done(cancelled);
	assert_in_range(now_ms() - started, 900, 4000);
	assert_true(cancelled->result == -ECANCELED || cancelled->result == -ETIMEDOUT);
	wait_lost(pair.a, 1);
	assert_int_equal(pair.a->lost[0].result, -ETIMEDOUT);
}

/* The sender gives up, or both ends do at the same moment: CANCEL and FAILED cross. */
static void cancel_send(struct world *world, const char *options, bool both)
{
	struct block *source = filled(world, 300 * KIB, 1);
	struct block *target = block_new(world, 300 * KIB);
	struct entry *sent, *received;
	struct pair pair;

	pair_open(world, options, &pair);
	control->hold(true);
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	settle(world);
	assert_int_equal(haul_cancel(pair.b->context, sent), 1);
	if (both)
		assert_int_equal(haul_cancel(pair.a->context, received), 1);
	else
		wait_result(received, -ECANCELED); /* while the pieces are still under way */
	control->hold(false);
	wait_result(sent, -ECANCELED);
	wait_result(received, -ECANCELED);
	check_alive(&pair);
	side_close(pair.a);
	side_close(pair.b);
}

static void test_send_cancelled_while_pieces_are_under_way(void **state)
{
	cancel_send(*state, NULL, false);
	cancel_send(*state, "slow_end=yes", false);
	cancel_send(*state, "sticky=yes,slow_end=yes", false);
}

static void test_both_ends_cancel_at_once(void **state)
{
	cancel_send(*state, NULL, true);
	cancel_send(*state, "slow_end=yes", true);
	cancel_send(*state, "sticky=yes,slow_end=yes", true);
}

/* All bytes are there, PLACED is under way, and the sender gives up: either is right, once. */
static void test_cancel_crosses_placed(void **state)
{
	struct world *world = *state;
	struct block *source = filled(world, 100 * KIB, 1), *target = block_new(world, 100 * KIB);
	struct entry *sent, *received;
	struct pair pair;

	pair_open(world, "progress=caller", &pair);
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	settle(world);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	side_poll(pair.b);
	pair.b->asleep = true;
	wait_result(received, 0);
	block_check(target, 1);
	assert_int_equal(haul_cancel(pair.b->context, sent), 1);
	pair.b->asleep = false;
	wait_done(sent);
	assert_true(sent->result == 0 || sent->result == -ECANCELED);
	check_alive(&pair);
}

/* ---- Checksums --------------------------------------------------------- */

static struct haul_statistics statistics_of(haul_endpoint *endpoint)
{
	struct haul_statistics statistics = {.size = sizeof(statistics)};

	assert_int_equal(haul_endpoint_statistics(endpoint, &statistics), 0);
	return statistics;
}

/* One wrong byte on the way: the tensor is sent again, and nobody notices. */
static void test_corrupted_once_is_sent_again(void **state)
{
	static const char *const options[] = {
		"checksum=crc32c", "checksum=crc32c,slow_end=yes",
		"checksum=crc32c,shuffle=yes,piece=1000,sticky=yes,slow_end=yes"};
	struct world *world = *state;

	for (int i = 0; i < 3; i++) {
		struct block *source = filled(world, 300 * KIB, 1);
		struct block *target = block_new(world, 300 * KIB);
		struct entry *sent, *received;
		struct pair pair;

		pair_open(world, options[i], &pair);
		control->corrupt(1);
		sent = post_send(&pair.up, haul_key("k"), &source->tensor);
		received = post_recv(&pair.up, haul_key("k"), &target->tensor);
		wait_result(received, 0);
		wait_result(sent, 0);
		block_check(target, 1);
		assert_int_equal(statistics_of(pair.up.out).tensors_again, 1);
		assert_int_equal(statistics_of(pair.up.out).tensors_sent, 1);
		assert_int_equal(statistics_of(pair.up.in).tensors_received, 1);
		side_close(pair.a);
		side_close(pair.b);
	}
}

/* Wrong twice: both ends are told, and the endpoint goes on. */
static void test_corrupted_twice_is_lost(void **state)
{
	struct world *world = *state;
	struct block *source = filled(world, 10 * KIB, 1), *target = block_new(world, 10 * KIB);
	struct entry *sent, *received;
	struct pair pair;

	pair_open(world, "checksum=crc32c", &pair);
	control->corrupt(2);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	wait_result(received, -EBADMSG);
	wait_result(sent, -EBADMSG);
	assert_true(received->detail[0] && sent->detail[0]);
	check_alive(&pair);
	assert_int_equal(pair.a->lost_count + pair.b->lost_count, 0);
}

/* Given up while it is sent for the second time. */
static void test_cancelled_while_it_is_sent_again(void **state)
{
	struct world *world = *state;

	for (int which = 0; which < 2; which++) {
		struct block *source = filled(world, 200 * KIB, 1);
		struct block *target = block_new(world, 200 * KIB);
		struct entry *sent, *received;
		struct pair pair;
		uint64_t until = now_ms() + PATIENCE_MS;

		pair_open(world, "checksum=crc32c,window=64KiB", &pair);
		control->corrupt(1);
		sent = post_send(&pair.up, haul_key("k"), &source->tensor);
		received = post_recv(&pair.up, haul_key("k"), &target->tensor);
		while (statistics_of(pair.up.out).tensors_again == 0)
			world_step(world, until, "the second try");
		control->hold(true);
		settle(world);
		assert_int_equal(which ? haul_cancel(pair.a->context, received)
				       : haul_cancel(pair.b->context, sent),
				 1);
		control->hold(false);
		wait_result(received, -ECANCELED);
		if (which) {
			received = post_recv(&pair.up, haul_key("k"), &target->tensor);
			wait_result(received, 0);
			wait_result(sent, 0);
			block_check(target, 1);
		}
		wait_all(world);
		check_alive(&pair);
		side_close(pair.a);
		side_close(pair.b);
	}
}

/* Without checksums a wrong byte goes unnoticed: it is the option that finds it. */
static void test_corrupted_without_checksum(void **state)
{
	struct world *world = *state;
	struct block *source = filled(world, 10 * KIB, 1), *target = block_new(world, 10 * KIB);
	struct entry *received;
	struct pair pair;

	pair_open(world, "checksum=none", &pair);
	control->corrupt(1);
	post_send(&pair.up, haul_key("k"), &source->tensor);
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	wait_all(world);
	check_result(received, 0);
	assert_false(block_holds(target, 1));
}

/* ---- Links that break, peers that lie ---------------------------------- */

/* Cut after every number of bytes: each operation ends once, and what arrived is known. */
static void test_f12_links_cut_at_every_point(void **state)
{
	enum { COUNT = 6, BYTES = 5000 };
	struct world *world = *state;
	struct side *a = side_open(world, "piece=1000,shuffle=yes");
	struct side *b = side_open(world, "piece=1000,shuffle=yes,slow_end=yes");
	unsigned lost = 0;

	for (size_t cut = 0; cut <= COUNT * BYTES; cut += 500) {
		struct entry *sent[COUNT], *received[COUNT];
		struct block *targets[COUNT];
		struct way up, down;

		connect_sides(b, a, &up, &down);
		for (unsigned i = 0; i < COUNT; i++) {
			struct block *source = filled(world, BYTES, i);

			targets[i] = block_new(world, BYTES);
			received[i] = post_recv(&up, haul_key("k"), &targets[i]->tensor);
			sent[i] = post_send(&up, haul_key("k"), &source->tensor);
		}
		control->cut_after(cut);
		wait_all(world);
		for (unsigned i = 0; i < COUNT; i++) {
			if (received[i]->result == 0)
				block_check(targets[i], i);
			else
				check_result(received[i], -ECONNRESET);
			if (sent[i]->result == 0)
				check_result(received[i], 0);
			else
				check_result(sent[i], -ECONNRESET);
		}
		control->cut_after(UINT64_MAX);
		if (received[COUNT - 1]->result)
			wait_lost(a, ++lost);
		haul_disconnect(up.in);
		haul_disconnect(up.out);
		settle(world);
		a->lost_count = b->lost_count = lost = 0;
	}
}

/* A peer that names memory that isn't its own loses its endpoint, and only that. */
static void test_f31_forged_places(void **state)
{
	struct world *world = *state;
	struct side *a = side_open(world, NULL), *b = side_open(world, NULL);
	struct way good_up, good_down;

	connect_sides(b, a, &good_up, &good_down);
	for (enum memory_forgery how = FORGE_SLOT; how <= FORGE_WRAP; how++) {
		struct block *source = filled(world, 100 * KIB, 1),
			     *target = block_new(world, 102 * KIB);
		struct entry *sent, *received;
		struct way up, down;
		DLTensor room;
		int64_t shape = 100 * KIB;

		connect_sides(b, a, &up, &down);
		room = haul_tensor(target->data + KIB, type_u8, 1, &shape);
		received = post_recv(&up, haul_key("k"), &room);
		settle(world);
		control->forge(how);
		sent = post_send(&up, haul_key("k"), &source->tensor);
		wait_result(received, -ECONNRESET);
		wait_result(sent, -ECONNRESET);
		wait_lost(a, how);
		assert_int_equal(a->lost[how - 1].result, -EPROTO);
		for (size_t i = 0; i < KIB; i++) {
			assert_int_equal(target->data[i], 0);
			assert_int_equal(target->data[target->bytes - 1 - i], 0);
		}
		check_way_alive(&good_up);
		haul_disconnect(up.in);
		haul_disconnect(up.out);
	}
}

/* A peer that takes no more messages is lost; others go on. */
static void test_jammed_control_messages(void **state)
{
	struct world *world = *state;
	struct block *block = block_new(world, 100);
	struct way good_up, good_down;
	struct entry *received;
	struct pair pair;

	pair_open(world, NULL, &pair);
	connect_sides(pair.b, pair.a, &good_up, &good_down);
	control->jam(true);
	received = post_recv(&pair.up, haul_key("k"), &block->tensor);
	control->jam(false);
	wait_result(received, -ECONNRESET);
	wait_lost(pair.a, 1);
	check_way_alive(&good_up);
	check_way_alive(&good_down);
	assert_int_equal(pair.a->lost_count, 1);
}

/* ---- Calls of the backend that fail ------------------------------------ */

static void check_refused(struct pair *pair, enum haul_event kind, struct block *block,
			  const char *failed)
{
	int error;

	assert_null(
		try_post(pair->a, pair->up.in, kind, haul_key("k"), &block->tensor, NULL, &error));
	check_error(pair->a->context, error, -ENOMEM, (const char *const[]){failed, NULL});
}

static void test_memory_that_cannot_be_registered(void **state)
{
	static const enum haul_event kinds[] = {HAUL_SENT, HAUL_RECEIVED};
	struct world *world = *state;
	struct block *block = block_new(world, 100);
	haul_region *region;
	struct pair pair;

	pair_open(world, NULL, &pair);
	for (int i = 0; i < 2; i++) {
		control->let_fail(1, 0, 0);
		check_refused(&pair, kinds[i], block, "region_add");
	}
	control->let_fail(1, 0, 0);
	check_error(pair.a->context,
		    haul_region_register(pair.a->context, block->data, 100, HAUL_USE_SEND, &region),
		    -ENOMEM, (const char *const[]){"region_add", NULL});
	assert_null(region);
	control->let_fail(1, 0, 0);
	check_error(pair.a->context,
		    haul_region_allocate(pair.a->context, 100, HAUL_USE_SEND, &region), -ENOMEM,
		    (const char *const[]){"region_add", NULL});
	assert_null(region);
	assert_int_equal(control->count().regions, 0);
	check_alive(&pair);
}

static void test_slots_that_cannot_be_opened(void **state)
{
	struct world *world = *state;
	struct block *block = block_new(world, 100);
	struct pair pair;

	pair_open(world, NULL, &pair);
	control->let_fail(0, 1, 0);
	check_refused(&pair, HAUL_RECEIVED, block, "slot_open");
	assert_int_equal(control->count().slots, 0);
	assert_int_equal(control->count().regions, 0);
	check_alive(&pair);
}

/* The same for a receive that waited for room at the peer: then its completion tells. */
static void test_waiting_slots_that_cannot_be_opened(void **state)
{
	struct world *world = *state;
	struct block *first = block_new(world, 100), *second = block_new(world, 100);
	struct entry *one, *two;
	struct pair pair;

	pair_open(world, "slots=1", &pair);
	one = post_recv(&pair.up, haul_key("k"), &first->tensor);
	two = post_recv(&pair.up, haul_key("k"), &second->tensor);
	settle(world);
	control->let_fail(0, 1, 0);
	post_send(&pair.up, haul_key("k"), &first->tensor);
	wait_result(one, 0);
	wait_result(two, -ENOMEM);
	check_alive(&pair);
}

static void test_pushes_that_fail(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 100), *target = block_new(world, 100);
	struct entry *sent, *received;
	struct pair pair;

	pair_open(world, NULL, &pair);
	received = post_recv(&pair.up, haul_key("k"), &target->tensor);
	settle(world);
	control->let_fail(0, 0, 1);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	wait_result(sent, -ECONNRESET);
	wait_result(received, -ECONNRESET);
	wait_lost(pair.a, 1);
	wait_lost(pair.b, 1);
	assert_int_equal(pair.b->lost[0].result, -ENOMEM);
}

/* ---- What the engine hands over ---------------------------------------- */

/* Temporary registrations end with their operations, however these end. */
static void test_temporary_regions_and_slots_are_given_back(void **state)
{
	struct world *world = *state;
	struct block *source = filled(world, 1000, 1), *target = block_new(world, 1000);
	struct block *small = block_new(world, 10);
	struct entry *receive, *send;
	struct pair pair;

	pair_open(world, NULL, &pair);
	receive = post_recv(&pair.up, haul_key("never"), &target->tensor);
	send = post_send(&pair.up, haul_key("other"), &source->tensor);
	settle(world);
	assert_int_equal(control->count().regions, 2);
	assert_int_equal(control->count().slots, 1);
	haul_cancel(pair.a->context, receive);
	haul_cancel(pair.b->context, send);
	wait_all(world);
	settle(world);
	assert_int_equal(control->count().regions, 0);
	assert_int_equal(control->count().slots, 0);
	send = post_send(&pair.up, haul_key("k"), &source->tensor);
	wait_result(post_recv(&pair.up, haul_key("k"), &small->tensor), -EMSGSIZE);
	wait_result(post_recv(&pair.up, haul_key("k"), &target->tensor), 0);
	wait_result(send, 0);
	settle(world);
	assert_int_equal(control->count().regions, 0);
	assert_int_equal(control->count().slots, 0);
	assert_int_equal(control->count().pushes, 0);
}

#define FAULT_TEST(function)                                                                       \
	{                                                                                          \
#function, function, setup, teardown, NULL                                         \
	}

static const struct CMUnitTest tests[] = {
	FAULT_TEST(test_receive_cancelled_while_pieces_are_under_way),
	FAULT_TEST(test_sticky_receive_waits_for_the_answer),
	FAULT_TEST(test_sticky_receive_of_a_silent_peer),
	FAULT_TEST(test_send_cancelled_while_pieces_are_under_way),
	FAULT_TEST(test_both_ends_cancel_at_once),
	FAULT_TEST(test_cancel_crosses_placed),
	FAULT_TEST(test_corrupted_once_is_sent_again),
	FAULT_TEST(test_corrupted_twice_is_lost),
	FAULT_TEST(test_cancelled_while_it_is_sent_again),
	FAULT_TEST(test_corrupted_without_checksum),
	FAULT_TEST(test_f12_links_cut_at_every_point),
	FAULT_TEST(test_f31_forged_places),
	FAULT_TEST(test_jammed_control_messages),
	FAULT_TEST(test_memory_that_cannot_be_registered),
	FAULT_TEST(test_slots_that_cannot_be_opened),
	FAULT_TEST(test_waiting_slots_that_cannot_be_opened),
	FAULT_TEST(test_pushes_that_fail),
	FAULT_TEST(test_temporary_regions_and_slots_are_given_back),
};

/* The module is loaded by the library; the same file gives us its switches. */
static void *load_module(void)
{
	const char *folder = getenv("HAUL_MODULE_PATH");
	char path[4096];
	void *module;

	snprintf(path, sizeof(path), "%s/libtensorhaul-memory.so", folder ? folder : ".");
	module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!module) {
		fprintf(stderr, "test_faults: %s (is HAUL_MODULE_PATH set?)\n", dlerror());
		return NULL;
	}
	control = dlsym(module, MEMORY_CONTROL);
	return control ? module : NULL;
}

int main(int count, char **arguments)
{
	void *module = load_module();
	int status;

	if (!module)
		return 1;
	settings.in_process = true;
	status = suite_main("memory", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
	dlclose(module);
	return status;
}
