/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"

#include <stdlib.h>

#include "transfer.h"

#define BUCKETS 1024
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S INT64_C(1000000000)
/* gRPC counts ms on clocks of its own, and the peer's may be ahead of this side's. */
#define EXPIRY_SLACK_NS (5 * NS_PER_MS)
#define DEADLINE_MAX_S (INT64_C(10) * 365 * 24 * 3600) /* later is never */

static struct bucket {
	pthread_mutex_t lock;
	struct call *first;
} table[BUCKETS] = {[0 ... BUCKETS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static struct bucket *bucket_of(grpc_call *core_call)
{
	uintptr_t number = (uintptr_t)core_call;

	/* Calls start an arena each, so that their addresses are far apart. */
	return &table[(number >> 4 ^ number >> 14) % BUCKETS];
}

void call_get(struct call *call)
{
	atomic_fetch_add(&call->references, 1);
}

void call_put(struct call *call)
{
	if (atomic_fetch_sub(&call->references, 1) > 1)
		return;
	if (call->session)
		session_put(call->session);
	pthread_mutex_destroy(&call->lock);
	free(call);
	layer_count(&layer_counters.calls, (uint64_t)-1);
}

static uint64_t deadline_of(gpr_timespec deadline)
{
	gpr_timespec now = {0, 0, GPR_TIMESPAN};
	int64_t seconds;
	uint64_t clock = haul_clock();

	if (deadline.tv_sec == INT64_MAX)
		return UINT64_MAX;
	if (deadline.clock_type != GPR_TIMESPAN)
		now = core()->gpr_now(deadline.clock_type);
	if (deadline.tv_sec < now.tv_sec)
		return clock;
	seconds = deadline.tv_sec - now.tv_sec;
	if (seconds > DEADLINE_MAX_S)
		return UINT64_MAX;
	seconds = seconds * NS_PER_S + deadline.tv_nsec - now.tv_nsec;
	return seconds > 0 ? clock + (uint64_t)seconds : clock;
}

uint64_t call_timeout_ms(const struct call *call)
{
	uint64_t now = haul_clock();

	if (call->deadline == UINT64_MAX)
		return 0;
	return call->deadline > now ? (call->deadline - now) / NS_PER_MS + 1 : 1;
}

bool call_expired(const struct call *call)
{
	return call->deadline <= haul_clock() + EXPIRY_SLACK_NS;
}

/* session_lock is held. */
static bool was_over(const struct session *session, uint64_t number)
{
	for (unsigned i = 0; i < SESSION_EARLY_OVER; i++) {
		if (session->early_over[i] == number + 1)
			return true;
	}
	return false;
}

struct call *call_new(grpc_call *core_call, struct session *session, struct queue *queue,
		      gpr_timespec deadline, const struct wire_mark *mark, uint64_t method)
{
	struct call *call = calloc(1, sizeof(*call));
	struct bucket *bucket = bucket_of(core_call);

	if (!call)
		return NULL;
	call->core = core_call;
	call->session = session;
	call->queue = queue;
	call->deadline = deadline_of(deadline);
	call->server = mark;
	call->program_references = 1;
	call->marked = mark;
	atomic_init(&call->references, 2);
	pthread_mutex_init(&call->lock, NULL);
	TAILQ_INIT(&call->sends);
	if (mark) {
		call->mark = *mark;
	} else {
		call->mark.session = session->id;
		call->mark.call = atomic_fetch_add(&session->next_call, 1);
		call->answers = &session->answers[method % SESSION_METHODS];
	}
	call->number = call->mark.call;
	if (session) {
		pthread_mutex_lock(&session_lock);
		call->given_up = call->told_over = mark && was_over(session, call->number);
		TAILQ_INSERT_TAIL(&session->calls, call, entry);
		pthread_mutex_unlock(&session_lock);
	}
	pthread_mutex_lock(&bucket->lock);
	call->next = bucket->first;
	bucket->first = call;
	pthread_mutex_unlock(&bucket->lock);
	layer_count(&layer_counters.calls, 1);
	return call;
}

struct call *call_find(grpc_call *core_call)
{
	struct bucket *bucket = bucket_of(core_call);
	struct call *call;

	if (!layer_used())
		return NULL;
	pthread_mutex_lock(&bucket->lock);
	for (call = bucket->first; call; call = call->next) {
		if (call->core == core_call) {
			call_get(call);
			break;
		}
	}
	pthread_mutex_unlock(&bucket->lock);
	return call;
}

/* The program has let go of it: the address may soon be another call's. */
static void forget(struct call *call)
{
	struct bucket *bucket = bucket_of(call->core);
	struct call **place;

	pthread_mutex_lock(&bucket->lock);
	for (place = &bucket->first; *place != call; place = &(*place)->next)
		;
	*place = call->next;
	pthread_mutex_unlock(&bucket->lock);
	if (call->session) {
		pthread_mutex_lock(&session_lock);
		TAILQ_REMOVE(&call->session->calls, call, entry);
		pthread_mutex_unlock(&session_lock);
	}
	call_put(call);
}

/* ---- Ends ---------------------------------------------------------------- */

void call_stop_sends(struct call *call)
{
	struct transfer *transfer;

	TAILQ_FOREACH (transfer, &call->sends, entry) {
		transfer_stop(transfer);
		call->owes_over = true; /* a receive that meets no send would wait for ever */
	}
}

void call_give_up(struct call *call)
{
	call_stop_sends(call);
	call->given_up = call->owes_over = true;
	if (call->receive)
		transfer_stop(call->receive);
	call_settle(call);
}

void call_settle(struct call *call)
{
	if (!call->owes_over || call->told_over || !call->session || !call->marked ||
	    (!call->given_up && (call->receive || call->reads)))
		return;
	call->told_over = true;
	transfer_tell_over(call);
}

void call_fail(struct call *call, grpc_status_code status, const char *text,
	       struct aftermath *aftermath)
{
	if (call->failure.status || (call->final && !call->receive))
		return;
	call->failure = (struct call_failure){status, text};
	/* A deadline or a cancellation that came while bytes were on their way is nobody's fault.
	 */
	if (status != GRPC_STATUS_CANCELLED && status != GRPC_STATUS_DEADLINE_EXCEEDED) {
		layer_count(&layer_counters.failed, 1);
		layer_log(LAYER_LOG_INFO, "a call failed with status %d: %s", status, text);
	}
	call_give_up(call);
	if (!call->program_references)
		return;
	/* The program could let go of it as soon as the lock is free. */
	core()->grpc_call_ref(call->core);
	aftermath->fail = true;
}

void call_fail_given_up(struct call *call, struct aftermath *aftermath)
{
	if (call_expired(call))
		call_fail(call, GRPC_STATUS_DEADLINE_EXCEEDED, "Deadline Exceeded", aftermath);
	else
		call_fail(call, GRPC_STATUS_CANCELLED, "Cancelled", aftermath);
}

void call_follow(struct call *call, const struct aftermath *aftermath)
{
	if (aftermath->fail) {
		core()->grpc_call_cancel_with_status(call->core, call->failure.status,
						     call->failure.text, NULL);
		core()->grpc_call_unref(call->core);
	}
	for (unsigned i = 0; i < aftermath->posts; i++)
		batch_post(aftermath->post[i]);
}

void call_over(struct call *call)
{
	pthread_mutex_lock(&call->lock);
	call->told_over = true;
	call_give_up(call);
	pthread_mutex_unlock(&call->lock);
}

/* The program has cancelled it. What gRPC has finished, and the layer not, ends with that status.
 */
static void cancelled(grpc_call *core_call, grpc_status_code status, const char *text)
{
	struct call *call = call_find(core_call);

	if (!call)
		return;
	pthread_mutex_lock(&call->lock);
	if (call->receive && !call->failure.status)
		call->failure = (struct call_failure){status, text};
	call_give_up(call);
	pthread_mutex_unlock(&call->lock);
	call_put(call);
}

grpc_call_error grpc_call_cancel(grpc_call *core_call, void *reserved)
{
	grpc_call_error error = core()->grpc_call_cancel(core_call, reserved);

	cancelled(core_call, GRPC_STATUS_CANCELLED, "Cancelled");
	return error;
}

grpc_call_error grpc_call_cancel_with_status(grpc_call *core_call, grpc_status_code status,
					     const char *description, void *reserved)
{
	grpc_call_error error =
		core()->grpc_call_cancel_with_status(core_call, status, description, reserved);

	cancelled(core_call, status, "the call was cancelled");
	return error;
}

void grpc_call_ref(grpc_call *core_call)
{
	struct call *call = call_find(core_call);

	if (call) {
		pthread_mutex_lock(&call->lock);
		call->program_references++;
		pthread_mutex_unlock(&call->lock);
		call_put(call);
	}
	core()->grpc_call_ref(core_call);
}

/* gRPC cancels a call that nobody holds before its end. The layer's references must not hide that.
 */
static bool let_go(struct call *call)
{
	bool cancel;

	pthread_mutex_lock(&call->lock);
	cancel = !call->final && call->batches;
	if (!call->final)
		call_give_up(call);
	else if (!call->sent_status)
		call_stop_sends(call);
	call_settle(call);
	pthread_mutex_unlock(&call->lock);
	return cancel;
}

void grpc_call_unref(grpc_call *core_call)
{
	struct call *call = call_find(core_call);
	bool last;

	if (call) {
		pthread_mutex_lock(&call->lock);
		last = !--call->program_references;
		pthread_mutex_unlock(&call->lock);
		if (last) {
			if (let_go(call))
				core()->grpc_call_cancel(core_call, NULL);
			forget(call);
		}
		call_put(call);
	}
	core()->grpc_call_unref(core_call);
}
