/* SPDX-License-Identifier: Apache-2.0 */
/* Clients' channels: each asks its server once whether messages may go aside. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <xxhash.h>

#include "call.h"
#include "limits.h"
#include "sockets.h"

#define NS_PER_MS UINT64_C(1000000)
#define ASK_S 10           /* how long the question may take */
#define SHOW_MS 10000      /* and the answer on the side connection */
#define AGAIN_LEAST_MS 500 /* after a failure, doubled each time */
#define AGAIN_MOST_MS 30000
#define AGAIN_PLAIN_MS 600000 /* after a server has said that it doesn't know the question */

enum channel_state { CHANNEL_NEW, CHANNEL_ASKING, CHANNEL_ANSWERED };

struct channel {
	grpc_channel *core;
	struct limits limits;
	atomic_uint references;
	pthread_mutex_t lock;
	pthread_cond_t answered;
	/* Under the lock: */
	enum channel_state state;
	struct session *session; /* NULL: the server is plain, or out of reach */
	uint64_t again;          /* when to ask the next time, by haul_clock() */
	uint64_t pause_ms;       /* then */
	struct channel *next;
};

#define BUCKETS 64
static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct channel *table[BUCKETS];

static struct channel **place_of(grpc_channel *core_channel)
{
	struct channel **place = &table[((uintptr_t)core_channel >> 4) % BUCKETS];

	while (*place && (*place)->core != core_channel)
		place = &(*place)->next;
	return place;
}

static struct channel *channel_find(grpc_channel *core_channel)
{
	struct channel *channel;

	pthread_rwlock_rdlock(&table_lock);
	channel = *place_of(core_channel);
	if (channel)
		atomic_fetch_add(&channel->references, 1);
	pthread_rwlock_unlock(&table_lock);
	return channel;
}

static void channel_put(struct channel *channel)
{
	if (atomic_fetch_sub(&channel->references, 1) > 1)
		return;
	if (channel->session) {
		session_close(channel->session);
		session_put(channel->session);
	}
	pthread_cond_destroy(&channel->answered);
	pthread_mutex_destroy(&channel->lock);
	free(channel);
}

static void channel_add(grpc_channel *core_channel, const struct limits *limits)
{
	struct channel *channel = calloc(1, sizeof(*channel));
	pthread_condattr_t attributes;
	struct channel **place;

	if (!channel)
		return;
	channel->core = core_channel;
	channel->limits = *limits;
	channel->limits.service = NULL; /* belongs to the program */
	channel->pause_ms = AGAIN_LEAST_MS;
	atomic_init(&channel->references, 1);
	pthread_mutex_init(&channel->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&channel->answered, &attributes);
	pthread_condattr_destroy(&attributes);
	pthread_rwlock_wrlock(&table_lock);
	place = place_of(core_channel);
	channel->next = *place;
	*place = channel;
	pthread_rwlock_unlock(&table_lock);
}

/* Whether messages of such a channel may go aside; one that is left alone is told of. */
static bool channel_fits(const char *target, grpc_channel_credentials *credentials,
			 const struct limits *limits)
{
	static grpc_channel_credentials *insecure; /* gRPC has one for all */
	const char *why = NULL;

	if (!insecure)
		insecure = core()->grpc_insecure_credentials_create();
	if (credentials != insecure)
		why = "has credentials";
	else if (limits->compresses)
		why = "compresses";
	else if (limits_service_forbids(limits->service))
		why = "has retries or limits of methods";
	if (why)
		layer_log(LAYER_LOG_INFO, "the channel to %s %s, and is left alone", target, why);
	return !why;
}

grpc_channel *grpc_channel_create(const char *target, grpc_channel_credentials *credentials,
				  const grpc_channel_args *args)
{
	struct socket_arguments room;
	grpc_channel *core_channel;
	struct limits limits;

	if (!layer_on())
		return core()->grpc_channel_create(target, credentials, args);
	limits_read(args, &limits);
	if (!channel_fits(target, credentials, &limits))
		return core()->grpc_channel_create(target, credentials, args);
	core_channel =
		core()->grpc_channel_create(target, credentials, sockets_arguments(args, &room));
	if (core_channel)
		channel_add(core_channel, &limits);
	return core_channel;
}

void grpc_channel_destroy(grpc_channel *core_channel)
{
	struct channel **place, *channel = NULL;

	if (layer_used()) {
		pthread_rwlock_wrlock(&table_lock);
		place = place_of(core_channel);
		channel = *place;
		if (channel)
			*place = channel->next;
		pthread_rwlock_unlock(&table_lock);
	}
	core()->grpc_channel_destroy(core_channel);
	if (channel)
		channel_put(channel);
}

/* ---- Asking -------------------------------------------------------------- */

/* One question, in a thread of its own: nobody waits for a server that is slow. */
struct asking {
	struct channel *channel;
	grpc_call *call;
	grpc_completion_queue *queue;
	grpc_byte_buffer *question;
	grpc_metadata_array initial, trailing;
	grpc_byte_buffer *answer;
	grpc_status_code status;
	grpc_slice details;
};

static grpc_byte_buffer *make_question(const struct channel *channel)
{
	struct wire_question question = {.process = *side_process(),
					 .receive_limit = channel->limits.receive};
	uint8_t bytes[WIRE_QUESTION_BYTES];
	grpc_byte_buffer *buffer;
	grpc_slice slice;

	side_transport(question.transport);
	wire_put_question(&question, bytes);
	slice = core()->grpc_slice_from_copied_buffer((const char *)bytes, sizeof(bytes));
	buffer = core()->grpc_raw_byte_buffer_create(&slice, 1);
	core()->grpc_slice_unref(slice);
	return buffer;
}

static void run_call(struct asking *asking)
{
	grpc_op ops[6] = {
		{.op = GRPC_OP_SEND_INITIAL_METADATA},
		{.op = GRPC_OP_SEND_MESSAGE, .data.send_message = {asking->question}},
		{.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
		{.op = GRPC_OP_RECV_INITIAL_METADATA,
		 .data.recv_initial_metadata = {&asking->initial}},
		{.op = GRPC_OP_RECV_MESSAGE, .data.recv_message = {&asking->answer}},
		{.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
		 .data.recv_status_on_client = {.trailing_metadata = &asking->trailing,
						.status = &asking->status,
						.status_details = &asking->details}},
	};

	asking->status = GRPC_STATUS_UNKNOWN;
	if (!core()->grpc_call_start_batch(asking->call, ops, 6, asking, NULL))
		core()->grpc_completion_queue_pluck(
			asking->queue, asking, (gpr_timespec){INT64_MAX, 0, GPR_CLOCK_REALTIME},
			NULL);
}

/* Copy a byte buffer's bytes; -1 when there are more than `room`. */
static ssize_t copy_message(const grpc_byte_buffer *message, uint8_t *bytes, size_t room)
{
	const grpc_slice_buffer *slices = &message->data.raw.slice_buffer;
	size_t length = 0;

	if (slices->length > room)
		return -1;
	for (size_t i = 0; i < slices->count; i++) {
		memcpy(bytes + length, GRPC_SLICE_START_PTR(slices->slices[i]),
		       GRPC_SLICE_LENGTH(slices->slices[i]));
		length += GRPC_SLICE_LENGTH(slices->slices[i]);
	}
	return (ssize_t)length;
}

static int hexadecimal(char digit)
{
	if (digit >= '0' && digit <= '9')
		return digit - '0';
	digit |= 0x20;
	return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* "ipv6:%5B::1%5D:50051" becomes "[::1]:7000", with the port of `address`. */
static void join_address(const char *peer, const char *address, char *joined, size_t room)
{
	const char *next = strchr(peer, ':');
	size_t length = 0;
	char *port;

	if (*address != ':' || !next || strncmp(peer, "ip", 2)) {
		snprintf(joined, room, "%s%s", *address == ':' ? "127.0.0.1" : "", address);
		return;
	}
	for (next++; *next && length < room - 1; next++) {
		if (*next == '%' && hexadecimal(next[1]) >= 0 && hexadecimal(next[2]) >= 0) {
			joined[length++] = (char)(hexadecimal(next[1]) << 4 | hexadecimal(next[2]));
			next += 2;
		} else {
			joined[length++] = *next;
		}
	}
	joined[length] = 0;
	port = strrchr(joined, ':');
	length = port ? (size_t)(port - joined) : length;
	snprintf(joined + length, room - length, "%s", address);
}

/* The session that the answer offers, shown on its side connection; NULL when that fails. */
static struct session *open_session(struct asking *asking, const struct wire_answer *answer)
{
	char address[SIDE_TARGET_ROOM] = "";
	char *peer = core()->grpc_call_get_peer(asking->call);
	struct session_terms terms = {.secret = answer->secret,
				      .peer_limit = answer->receive_limit,
				      .own_limit = asking->channel->limits.receive,
				      .send_limit = asking->channel->limits.send};
	struct session *session;
	struct side_link *link;
	int error;

	join_address(peer, answer->address, address, sizeof(address));
	core()->gpr_free(peer);
	error = side_connect(&answer->process, address, &link);
	if (error) {
		layer_log(LAYER_LOG_WARNING, "no side connection to %s: %s; messages stay inline",
			  address, haul_strerror(error));
		return NULL;
	}
	session = session_new(&answer->session, false, &terms, link);
	if (!session) {
		side_link_put(link);
		return NULL;
	}
	if (session_show(session, SHOW_MS)) {
		layer_log(LAYER_LOG_INFO, "large messages to %s go aside", address);
		return session;
	}
	layer_log(LAYER_LOG_WARNING, "%s did not take the side connection; messages stay inline",
		  address);
	session_close(session);
	session_put(session);
	return NULL;
}

static bool channel_may(struct channel *channel)
{
	char *service = NULL;
	grpc_channel_info info = {.service_config_json = &service};
	bool may;

	core()->grpc_channel_get_info(channel->core, &info);
	may = !limits_service_forbids(service);
	core()->gpr_free(service);
	return may;
}

static void answered(struct channel *channel, struct session *session, uint64_t pause_ms)
{
	struct session *old;

	pthread_mutex_lock(&channel->lock);
	old = channel->session;
	channel->session = session;
	channel->state = CHANNEL_ANSWERED;
	if (session)
		channel->pause_ms = AGAIN_LEAST_MS;
	else if (channel->pause_ms < AGAIN_MOST_MS)
		channel->pause_ms *= 2;
	channel->again = haul_clock() + pause_ms * NS_PER_MS;
	pthread_cond_broadcast(&channel->answered);
	pthread_mutex_unlock(&channel->lock);
	if (old) {
		session_close(old);
		session_put(old);
	}
}

static void asking_free(struct asking *asking)
{
	core()->grpc_call_unref(asking->call);
	core()->grpc_completion_queue_shutdown(asking->queue);
	core()->grpc_completion_queue_destroy(asking->queue);
	core()->grpc_byte_buffer_destroy(asking->question);
	if (asking->answer)
		core()->grpc_byte_buffer_destroy(asking->answer);
	core()->grpc_metadata_array_destroy(&asking->initial);
	core()->grpc_metadata_array_destroy(&asking->trailing);
	core()->grpc_slice_unref(asking->details);
	channel_put(asking->channel);
	free(asking);
}

static void *ask(void *argument)
{
	struct asking *asking = argument;
	struct channel *channel = asking->channel;
	uint8_t bytes[WIRE_ANSWER_BYTES];
	struct wire_answer answer;
	struct session *session = NULL;
	uint64_t pause_ms = channel->pause_ms;
	ssize_t length;

	run_call(asking);
	length = asking->answer ? copy_message(asking->answer, bytes, sizeof(bytes)) : -1;
	if (asking->status == GRPC_STATUS_OK && length >= 0 &&
	    wire_get_answer(bytes, (size_t)length, &answer)) {
		session = open_session(asking, &answer);
	} else if (asking->status == GRPC_STATUS_OK ||
		   asking->status == GRPC_STATUS_UNIMPLEMENTED) {
		pause_ms = AGAIN_PLAIN_MS;
		layer_log(LAYER_LOG_INFO, "a server without the layer: messages to it stay inline");
	} else {
		layer_log(LAYER_LOG_DEBUG, "the question ended with status %d", asking->status);
	}
	answered(channel, session, pause_ms);
	asking_free(asking);
	return NULL;
}

/* The channel's lock is held; the program is within a call on it, so that it lives. */
static void start_asking(struct channel *channel)
{
	struct asking *asking = calloc(1, sizeof(*asking));
	grpc_slice method = core()->grpc_slice_from_static_string(WIRE_METHOD);
	gpr_timespec deadline = core()->gpr_now(GPR_CLOCK_MONOTONIC);
	char why[512];
	pthread_t thread;

	if (!asking)
		return;
	if (side_open(why, sizeof(why))) {
		layer_fail("no side path: %s", why);
		free(asking);
		return;
	}
	if (!channel_may(channel)) {
		channel->state = CHANNEL_ANSWERED;
		channel->again = haul_clock() + AGAIN_PLAIN_MS * NS_PER_MS;
		free(asking);
		return;
	}
	deadline.tv_sec += ASK_S;
	asking->channel = channel;
	atomic_fetch_add(&channel->references, 1);
	core()->grpc_metadata_array_init(&asking->initial);
	core()->grpc_metadata_array_init(&asking->trailing);
	asking->details = core()->grpc_slice_from_static_string("");
	asking->question = make_question(channel);
	asking->queue = core()->grpc_completion_queue_create_for_pluck(NULL);
	asking->call =
		core()->grpc_channel_create_call(channel->core, NULL, GRPC_PROPAGATE_DEFAULTS,
						 asking->queue, method, NULL, deadline, NULL);
	channel->state = CHANNEL_ASKING;
	if (pthread_create(&thread, NULL, ask, asking)) {
		channel->state = CHANNEL_ANSWERED;
		channel->again = haul_clock() + AGAIN_MOST_MS * NS_PER_MS;
		core()->grpc_call_cancel(asking->call, NULL);
		asking_free(asking);
		return;
	}
	pthread_detach(thread);
}

static void wait_for_answer(struct channel *channel)
{
	uint64_t until = haul_clock() + layer_settings()->wait_ms * NS_PER_MS;
	struct timespec time = {.tv_sec = (time_t)(until / 1000000000),
				.tv_nsec = (long)(until % 1000000000)};

	while (channel->state == CHANNEL_ASKING &&
	       !pthread_cond_timedwait(&channel->answered, &channel->lock, &time))
		;
}

/* The channel's session, with a reference; NULL while there is none. Asks when it is time to. */
static struct session *channel_session(struct channel *channel)
{
	struct session *session = NULL;

	pthread_mutex_lock(&channel->lock);
	if (channel->state == CHANNEL_NEW) {
		start_asking(channel);
		wait_for_answer(channel);
	} else if (channel->state == CHANNEL_ANSWERED &&
		   (!channel->session || !session_alive(channel->session)) &&
		   channel->again <= haul_clock()) {
		start_asking(channel);
	}
	if (channel->session && session_alive(channel->session)) {
		session = channel->session;
		session_get(session);
	}
	pthread_mutex_unlock(&channel->lock);
	return session;
}

/* ---- Calls --------------------------------------------------------------- */

static struct session *session_of(grpc_channel *core_channel)
{
	struct channel *channel = layer_on() ? channel_find(core_channel) : NULL;
	struct session *session;

	if (!channel)
		return NULL;
	session = channel_session(channel);
	channel_put(channel);
	return session;
}

static grpc_call *created(grpc_call *core_call, struct session *session,
			  grpc_completion_queue *core_queue, gpr_timespec deadline, uint64_t method)
{
	struct queue *queue = session ? queue_find(core_queue) : NULL;
	struct call *call = queue && core_call
				    ? call_new(core_call, session, queue, deadline, NULL, method)
				    : NULL;

	if (call)
		call_put(call);
	else if (session)
		session_put(session);
	return core_call;
}

static uint64_t number_of(grpc_slice method)
{
	return XXH3_64bits(GRPC_SLICE_START_PTR(method), GRPC_SLICE_LENGTH(method));
}

grpc_call *grpc_channel_create_call(grpc_channel *channel, grpc_call *parent, uint32_t mask,
				    grpc_completion_queue *queue, grpc_slice method,
				    const grpc_slice *host, gpr_timespec deadline, void *reserved)
{
	struct session *session = session_of(channel);
	uint64_t number = session ? number_of(method) : 0; /* gRPC takes the slice */

	return created(core()->grpc_channel_create_call(channel, parent, mask, queue, method, host,
							deadline, reserved),
		       session, queue, deadline, number);
}

grpc_call *grpc_channel_create_registered_call(grpc_channel *channel, grpc_call *parent,
					       uint32_t mask, grpc_completion_queue *queue,
					       void *method, gpr_timespec deadline, void *reserved)
{
	struct session *session = session_of(channel);

	return created(core()->grpc_channel_create_registered_call(channel, parent, mask, queue,
								   method, deadline, reserved),
		       session, queue, deadline, XXH3_64bits(&method, sizeof(method)));
}
