/* SPDX-License-Identifier: Apache-2.0 */
/* What the contexts of the process share, and the tests' switches. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct house house = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.contexts = TAILQ_HEAD_INITIALIZER(house.contexts),
	.listeners = TAILQ_HEAD_INITIALIZER(house.listeners),
	.links = TAILQ_HEAD_INITIALIZER(house.links),
	.next_name = 1,
	.next_port = 40000,
};

void house_lock(void)
{
	pthread_mutex_lock(&house.lock);
}

void house_unlock(void)
{
	pthread_mutex_unlock(&house.lock);
}

/* A forked child finds the lock free: it may open contexts of its own. */
__attribute__((constructor)) static void house_prepare(void)
{
	pthread_atfork(house_lock, house_unlock, house_unlock);
}

uint64_t house_name(void)
{
	return house.next_name++;
}

bool house_take(unsigned *budget)
{
	bool taken;

	house_lock();
	taken = *budget > 0;
	if (taken)
		--*budget;
	house_unlock();
	return taken;
}

/* ---- Messages ---------------------------------------------------------- */

struct message *message_new(enum message_kind kind, size_t length)
{
	struct message *message = calloc(1, sizeof(*message) + length);

	if (!message)
		return NULL;
	message->kind = kind;
	message->length = length;
	house_lock();
	house.counts.messages++;
	house_unlock();
	return message;
}

void message_free(struct message *message)
{
	house_lock();
	house.counts.messages--;
	house_unlock();
	free(message);
}

static void wake(struct backend_context *context)
{
	uint64_t one = 1;
	ssize_t ignored = write(context->wake, &one, sizeof(one));

	(void)ignored;
}

/* With the house's lock held. */
static void deliver(struct backend_context *context, struct message *message)
{
	message->due = haul_clock() + context->config->delay_us * 1000;
	TAILQ_INSERT_TAIL(&context->inbox, message, queued);
	wake(context);
}

void house_post(struct message *message)
{
	struct backend_link *link;

	if (!message)
		return;
	house_lock();
	TAILQ_FOREACH (link, &house.links, known) {
		if (link->name == message->to)
			break;
	}
	if (link)
		deliver(link->context, message);
	house_unlock();
	if (!link)
		message_free(message);
}

/* A listener on every address is found by any. */
bool house_connect(struct message *message, const char *host, unsigned port)
{
	struct backend_listener *listener;

	house_lock();
	TAILQ_FOREACH (listener, &house.listeners, all) {
		if (listener->port == port &&
		    (!strcmp(listener->host, host) || !strcmp(listener->host, "*")))
			break;
	}
	if (listener) {
		message->listener = listener->name;
		deliver(listener->context, message);
	}
	house_unlock();
	return listener != NULL;
}

/* ---- The tests' switches ----------------------------------------------- */

static void wake_all(void)
{
	struct backend_context *context;

	TAILQ_FOREACH (context, &house.contexts, all)
		wake(context);
}

static void control_hold(bool hold)
{
	house_lock();
	house.held = hold;
	wake_all();
	house_unlock();
}

static void control_corrupt(unsigned pieces)
{
	house_lock();
	house.corrupt = pieces;
	house_unlock();
}

static void control_forge(enum memory_forgery how)
{
	house_lock();
	house.forgery = how;
	house_unlock();
}

static void control_cut_after(uint64_t bytes)
{
	house_lock();
	house.cutting = true;
	house.cut_after = bytes;
	house_unlock();
}

static void control_jam(bool jam)
{
	house_lock();
	house.jammed = jam;
	house_unlock();
}

static void control_let_fail(unsigned regions, unsigned slots, unsigned pushes)
{
	house_lock();
	house.fail_regions = regions;
	house.fail_slots = slots;
	house.fail_pushes = pushes;
	house_unlock();
}

static void control_reset(void)
{
	control_hold(false);
	control_corrupt(0);
	control_forge(FORGE_NOTHING);
	control_cut_after(UINT64_MAX);
	control_jam(false);
	control_let_fail(0, 0, 0);
}

static struct memory_counts control_count(void)
{
	struct memory_counts counts;

	house_lock();
	counts = house.counts;
	house_unlock();
	return counts;
}

extern const struct memory_control memory_control;

__attribute__((visibility("default"))) const struct memory_control memory_control = {
	.hold = control_hold,
	.corrupt = control_corrupt,
	.forge = control_forge,
	.cut_after = control_cut_after,
	.jam = control_jam,
	.let_fail = control_let_fail,
	.reset = control_reset,
	.count = control_count,
};
