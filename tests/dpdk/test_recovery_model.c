/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loss detection over a network that loses, doubles and delays packets and acknowledgements as it
 * likes: each packet is told once, and nothing is told that is not true.
 */
#include "recovery.h"

#include "unit.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

/* What a network may do to packets and acknowledgements, in parts of a thousand. */
struct faults {
	unsigned loss, twice, late, ack_loss, ack_late;
	uint64_t late_most;
};

#define MODEL_PACKETS 30000
#define PENDING_MOST 65536

struct event {
	uint64_t at, order;
	uint64_t number; /* 0: an acknowledgement */
	struct packet_ack *ack;
};

static struct {
	uint8_t told[MODEL_PACKETS + 1]; /* enum sent_state; SENT_NOTHING: not yet */
	bool late[MODEL_PACKETS + 1];
	uint16_t size[MODEL_PACKETS + 1];
	uint64_t under_way;
	struct received received;
	struct recovery recovery;
	struct event pending[PENDING_MOST];
	unsigned count;
	uint64_t now, seed, ack_at, events;
} model;

static void model_arrived(void *user, const struct sent *sent)
{
	assert_int_equal(model.told[sent->number], SENT_NOTHING);
	assert_true(received_has(&model.received, sent->number));
	model.told[sent->number] = SENT_ARRIVED;
	model.under_way -= sent->size;
	assert_int_equal(sent->offset, sent->number * 3);
}

static void model_lost(void *user, const struct sent *sent)
{
	assert_int_equal(model.told[sent->number], SENT_NOTHING);
	model.told[sent->number] = SENT_LOST;
	model.under_way -= sent->size;
}

static void model_late(void *user, const struct sent *sent)
{
	assert_int_equal(model.told[sent->number], SENT_LOST);
	assert_false(model.late[sent->number]);
	assert_true(received_has(&model.received, sent->number));
	model.late[sent->number] = true;
}

static const struct recovery_ops model_ops = {
	.arrived = model_arrived,
	.lost = model_lost,
	.late = model_late,
};

static bool happens(unsigned thousandths)
{
	return unit_random(&model.seed) % 1000 < thousandths;
}

static bool is_before(const struct event *one, const struct event *other)
{
	return one->at < other->at || (one->at == other->at && one->order < other->order);
}

/* A heap by time: children of i are 2i+1 and 2i+2. */
static void event_add(struct event event)
{
	unsigned i = model.count++;

	assert_true(model.count < PENDING_MOST);
	event.order = model.events++;
	for (; i && is_before(&event, &model.pending[(i - 1) / 2]); i = (i - 1) / 2)
		model.pending[i] = model.pending[(i - 1) / 2];
	model.pending[i] = event;
}

static struct event event_take(void)
{
	struct event first = model.pending[0], last = model.pending[--model.count];
	unsigned i = 0, child;

	for (; (child = 2 * i + 1) < model.count; i = child) {
		if (child + 1 < model.count &&
		    is_before(&model.pending[child + 1], &model.pending[child]))
			child++;
		if (!is_before(&model.pending[child], &last))
			break;
		model.pending[i] = model.pending[child];
	}
	model.pending[i] = last;
	return first;
}

static void pass(struct event event, unsigned late, const struct faults *faults)
{
	event.at = model.now + 50 * US;
	if (happens(late))
		event.at += unit_random(&model.seed) % faults->late_most;
	event_add(event);
}

static void model_send(const struct faults *faults)
{
	struct sent sent = {
		.at = model.now,
		.size = 64 + unit_random(&model.seed) % 9000,
		.offset = model.recovery.next * 3,
	};
	struct event event = {.number = model.recovery.next};

	model.size[event.number] = sent.size;
	model.under_way += sent.size;
	recovery_sent(&model.recovery, &sent);
	if (!happens(faults->loss))
		pass(event, faults->late, faults);
	if (happens(faults->twice))
		pass(event, faults->late, faults);
}

static void model_ack(const struct faults *faults)
{
	struct event event = {.ack = malloc(sizeof(struct packet_ack))};

	model.ack_at = UINT64_MAX;
	assert_true(received_ack(&model.received, model.now, event.ack));
	if (happens(faults->ack_loss))
		free(event.ack);
	else
		pass(event, faults->ack_late, faults);
}

static void model_event(const struct faults *faults)
{
	struct event event = event_take();
	struct congestion_sample sample;

	if (event.ack) {
		assert_int_equal(recovery_on_ack(&model.recovery, event.ack, model.now,
						 !happens(50), &sample),
				 0);
		free(event.ack);
		return;
	}
	received_add(&model.received, event.number, model.now);
	if (model.ack_at == UINT64_MAX)
		model.ack_at = model.now + 25 * US;
	if (model.received.pending >= 16 || model.received.gap)
		model_ack(faults);
}

/* Go on to the next thing that happens. */
static void model_step(const struct faults *faults)
{
	uint64_t deadline = recovery_deadline(&model.recovery);
	uint64_t event = model.count ? model.pending[0].at : UINT64_MAX;
	struct congestion_sample sample;

	if (event <= deadline && event <= model.ack_at) {
		model.now = event;
		model_event(faults);
	} else if (model.ack_at <= deadline) {
		model.now = model.ack_at;
		model_ack(faults);
	} else {
		model.now = deadline;
		if (recovery_on_timer(&model.recovery, model.now, &sample) == RECOVERY_PROBE &&
		    model.recovery.next <= MODEL_PACKETS)
			model_send(faults);
	}
	assert_int_equal(model.recovery.in_flight, model.under_way);
}

static void model_run(const struct faults *faults, uint32_t window)
{
	const struct faults none = {.late_most = 1};

	while (model.recovery.next < MODEL_PACKETS - 20) {
		while (model.recovery.packets < window &&
		       model.recovery.next < MODEL_PACKETS - 20 && recovery_room(&model.recovery))
			model_send(faults);
		model_step(faults);
	}
	/* The last ones need a network that works, or there would be no end. */
	while (model.recovery.packets && model.recovery.next <= MODEL_PACKETS)
		model_step(&none);
}

static void check_end(const struct faults *faults, uint32_t window)
{
	unsigned late = 0, lost = 0;

	assert_int_equal(model.recovery.packets, 0);
	assert_int_equal(model.recovery.in_flight, 0);
	for (uint64_t number = 1; number < model.recovery.next; number++) {
		assert_int_not_equal(model.told[number], SENT_NOTHING);
		lost += model.told[number] == SENT_LOST;
		late += model.late[number];
	}
	assert_int_equal(model.recovery.packets_lost, lost);
	assert_int_equal(model.recovery.packets_late, late);
	if (!faults->loss && !faults->late)
		assert_int_equal(lost, 0);
	/* Patience: what is late by less than a round trip is seldom taken for lost. */
	if (!faults->loss && faults->late_most < 100 * US && window < 100)
		assert_true(lost < MODEL_PACKETS / 20);
}

static void test_anything(void **state)
{
	const struct faults faults[] = {
		{0, 0, 0, 0, 0, 1},
		{10, 0, 0, 0, 0, 1},
		{50, 50, 50, 50, 50, 300 * US},
		{0, 0, 500, 0, 0, 40 * US},
		{0, 100, 300, 300, 300, 20 * US},
		{300, 300, 300, 300, 300, 2 * MS},
		{900, 0, 0, 900, 0, 1},
	};
	const uint32_t windows[] = {1, 3, 50, 3000};

	for (size_t i = 0; i < COUNT(faults) * COUNT(windows); i++) {
		const struct faults *these = &faults[i / COUNT(windows)];

		memset(&model, 0, sizeof(model));
		model.seed = 0x2545f4914f6cdd1d + i;
		model.ack_at = UINT64_MAX;
		model.now = SECOND;
		recovery_start(&model.recovery, &model_ops, &model, 25 * US);
		received_start(&model.received);
		model_run(these, windows[i % COUNT(windows)]);
		check_end(these, windows[i % COUNT(windows)]);
		while (model.count)
			free(event_take().ack);
		recovery_stop(&model.recovery);
		received_stop(&model.received);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_anything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
