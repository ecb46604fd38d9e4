/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that speaks the layer's protocol by hand, and wrongly: forged, replayed and lying
 * descriptors, bytes that never come, notes and sessions of others. For echo_server with the layer
 * at threshold=1000. Ends with 1, and says what was wrong, unless each call ends as it should.
 *
 *   hostile_client TARGET
 */
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forged.h"

#define PATIENCE_MS 20000
#define GOES_ON_MS 200 /* for calls that can only end by their deadline */

#define NEVER_CALLS 100
#define NEVER_BYTES (UINT64_C(1) << 30)
#define UNSHOWN_SESSIONS 5000
#define STRANGERS 200

static grpc_channel *channel;
static haul_context *context;
static haul_endpoint *side;
static char side_address[2 * WIRE_ADDRESS_ROOM];
static struct wire_answer session;
static struct steps_queue queue;
static uint64_t next_call, next_number = FORGED_FIRST_NUMBER;
static unsigned wrong;

static void expect(bool good, const char *what, int status)
{
	if (good)
		return;
	wrong++;
	fprintf(stderr, "%s: ended with status %d\n", what, status);
}

/* ---- Calls --------------------------------------------------------------- */

/* One unary call and what has come back. */
struct calling {
	grpc_call *call;
	grpc_metadata mark;
	grpc_byte_buffer *message, *answer;
	grpc_metadata_array initial, trailing;
	grpc_status_code status;
	grpc_slice details;
	struct steps_batch batch;
};

/* `mark` may be NULL; `message` is taken over. */
static void start(struct calling *calling, const char *method, const struct wire_mark *mark,
		  grpc_byte_buffer *message, int patience_ms)
{
	grpc_slice name = grpc_slice_from_copied_string(method);
	uint8_t bytes[WIRE_MARK_BYTES];
	grpc_op ops[6] = {
		{.op = GRPC_OP_SEND_INITIAL_METADATA},
		{.op = GRPC_OP_SEND_MESSAGE, .data.send_message = {message}},
		{.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
		{.op = GRPC_OP_RECV_INITIAL_METADATA,
		 .data.recv_initial_metadata = {&calling->initial}},
		{.op = GRPC_OP_RECV_MESSAGE, .data.recv_message = {&calling->answer}},
		{.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
		 .data.recv_status_on_client = {.trailing_metadata = &calling->trailing,
						.status = &calling->status,
						.status_details = &calling->details}},
	};

	memset(calling, 0, sizeof(*calling));
	calling->message = message;
	calling->details = grpc_empty_slice();
	grpc_metadata_array_init(&calling->initial);
	grpc_metadata_array_init(&calling->trailing);
	if (mark) {
		wire_put_mark(mark, bytes);
		calling->mark.key = grpc_slice_from_static_string(WIRE_MARK_KEY);
		calling->mark.value =
			grpc_slice_from_copied_buffer((const char *)bytes, sizeof(bytes));
		ops[0].data.send_initial_metadata.count = 1;
		ops[0].data.send_initial_metadata.metadata = &calling->mark;
	}
	calling->call = grpc_channel_create_call(
		channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue.queue, name, NULL,
		gpr_time_add(gpr_now(GPR_CLOCK_REALTIME),
			     gpr_time_from_millis(patience_ms, GPR_TIMESPAN)),
		NULL);
	grpc_slice_unref(name);
	steps_start(&calling->batch, &queue, calling->call, ops, 6);
}

static int finish(struct calling *calling)
{
	int status;

	steps_wait(&calling->batch);
	status = (int)calling->status;
	grpc_byte_buffer_destroy(calling->message);
	if (calling->answer)
		grpc_byte_buffer_destroy(calling->answer);
	if (calling->mark.value.refcount)
		grpc_slice_unref(calling->mark.value);
	grpc_slice_unref(calling->details);
	grpc_metadata_array_destroy(&calling->initial);
	grpc_metadata_array_destroy(&calling->trailing);
	grpc_call_unref(calling->call);
	return status;
}

static struct wire_mark own_mark(void)
{
	return (struct wire_mark){.session = session.session, .call = next_call++};
}

/* ---- The session --------------------------------------------------------- */

static void ask(struct wire_answer *answer)
{
	struct wire_question question = {.receive_limit = UINT64_MAX, .transport = "tcp"};
	uint8_t bytes[WIRE_ANSWER_BYTES];
	struct calling calling;
	size_t length;

	wire_put_question(&question, bytes);
	start(&calling, WIRE_METHOD, NULL, forged_message(bytes, WIRE_QUESTION_BYTES), PATIENCE_MS);
	steps_wait(&calling.batch);
	length = forged_copy(calling.answer, bytes, sizeof(bytes));
	if (!wire_get_answer(bytes, length, answer)) {
		fprintf(stderr, "the question had no answer\n");
		exit(3);
	}
	finish(&calling);
}

static haul_endpoint *connect_side(void)
{
	haul_endpoint *endpoint;
	int error = haul_connect_wait(context, side_address, PATIENCE_MS, &endpoint);

	if (error)
		forged_die(side_address, error);
	return endpoint;
}

static bool show(haul_endpoint *endpoint, const struct wire_answer *answer)
{
	struct wire_note note = {
		.kind = WIRE_NOTE_SHOW, .session = answer->session, .secret = answer->secret};

	forged_note(endpoint, &note);
	do {
		if (!forged_note_wait(endpoint, &note))
			return false;
	} while (note.kind == WIRE_NOTE_OVER); /* of calls before */
	return note.kind == WIRE_NOTE_GOOD && layer_id_equal(&note.session, &answer->session);
}

bool layer_id_equal(const struct layer_id *one, const struct layer_id *other)
{
	return !memcmp(one, other, sizeof(*one));
}

static void open_session(void)
{
	ask(&session);
	snprintf(side_address, sizeof(side_address), "127.0.0.1%s", session.address);
	side = connect_side();
	if (!show(side, &session)) {
		fprintf(stderr, "the session was not taken\n");
		exit(3);
	}
}

/* ---- Descriptors --------------------------------------------------------- */

/* A descriptor that is right, whose bytes have not been sent. */
static struct forgery next_forgery(void)
{
	struct forgery forgery = {.mark = own_mark()};

	forged_descriptor(&forgery.mark, next_number++, FORGED_BYTES, &forgery.descriptor);
	return forgery;
}

static int call_with(struct forgery *forgery)
{
	uint8_t bytes[WIRE_DESCRIPTOR_MAX];
	size_t length = wire_put_descriptor(&forgery->descriptor, bytes);
	struct calling calling;

	if (forgery->aside)
		forged_send(side, forgery->descriptor.number, NULL, forgery->aside);
	start(&calling, "/test/Count", &forgery->mark,
	      forged_message(bytes, forgery->length ? forgery->length : length),
	      forgery->waits ? GOES_ON_MS : PATIENCE_MS);
	return finish(&calling);
}

static void send_forgeries(void)
{
	for (size_t i = 0; forgeries[i].name; i++) {
		struct forgery forgery = next_forgery();
		int status;

		forgeries[i].forge(&forgery);
		status = call_with(&forgery);
		expect(status == (int)forgeries[i].status, forgeries[i].name, status);
	}
}

/* Whether an honest call still has its honest end: the side connection lives. */
static void expect_honest(const char *after)
{
	struct forgery forgery = next_forgery();
	int status;

	forgery.aside = FORGED_BYTES;
	status = call_with(&forgery);
	expect(status == GRPC_STATUS_OK, after, status);
}

/* Many large messages at once whose bytes never come, until their calls are cancelled. */
static void never_send(void)
{
	static struct calling callings[NEVER_CALLS];

	for (int i = 0; i < NEVER_CALLS; i++) {
		struct wire_mark mark = own_mark();
		struct wire_descriptor descriptor;
		uint8_t bytes[WIRE_DESCRIPTOR_MAX];

		forged_descriptor(&mark, next_number++, NEVER_BYTES, &descriptor);
		start(&callings[i], "/test/Count", &mark,
		      forged_message(bytes, wire_put_descriptor(&descriptor, bytes)), PATIENCE_MS);
	}
	expect_honest("honest beside calls that wait for bytes");
	for (int i = 0; i < NEVER_CALLS; i++) {
		int status;

		grpc_call_cancel(callings[i].call, NULL);
		status = finish(&callings[i]);
		expect(status == GRPC_STATUS_CANCELLED, "cancelled", status);
	}
}

/* ---- The side connection ------------------------------------------------- */

static void send_odd_notes(void)
{
	struct wire_note note = {.kind = WIRE_NOTE_OVER};

	forged_note(side, &note); /* of no session */
	note.kind = WIRE_NOTE_CLOSE;
	forged_note(side, &note);
	note = (struct wire_note){.kind = WIRE_NOTE_SHOW, .session = session.session};
	forged_note(side, &note); /* with a wrong secret */
	for (uint64_t number = 0; number < 500; number++)
		forged_send(side, number, NULL, 1000); /* that nobody will ask for */
	expect_honest("honest after odd notes");
}

/* Sessions that nobody comes for, and connections that show none. */
static void be_strangers(void)
{
	static haul_endpoint *strangers[STRANGERS];
	struct wire_answer answer;

	for (int i = 0; i < UNSHOWN_SESSIONS; i++)
		ask(&answer);
	for (int i = 0; i < STRANGERS; i++)
		strangers[i] = connect_side();
	ask(&answer);
	expect(show(side, &answer), "a session after many strangers", -1);
	expect_honest("honest after many strangers");
	for (int i = 0; i < STRANGERS; i++)
		haul_disconnect(strangers[i]);
}

/* A session belongs to the connection that has shown it. */
static void steal_session(void)
{
	haul_endpoint *other = connect_side();
	struct wire_answer answer;
	struct wire_note note = {.kind = WIRE_NOTE_CLOSE, .session = session.session};

	ask(&answer);
	expect(show(other, &answer), "a session on another connection", -1);
	forged_note(other, &note);
	expect_honest("honest after another connection's note");
	haul_disconnect(other);
}

static void break_connection(void)
{
	struct wire_note note = {.kind = WIRE_NOTE_GOOD}; /* which only servers send */
	struct forgery forgery = next_forgery();
	int status;

	forged_note(side, &note);
	/* The connection is dropped before this call or while it waits for its bytes. */
	status = call_with(&forgery);
	expect(status == GRPC_STATUS_UNAVAILABLE, "on a connection that was dropped", status);
}

int main(int count, char **words)
{
	grpc_channel_credentials *credentials;

	if (count != 2)
		return 2;
	grpc_init();
	credentials = grpc_insecure_credentials_create();
	channel = grpc_channel_create(words[1], credentials, NULL);
	grpc_channel_credentials_release(credentials);
	steps_queue_open(&queue, GRPC_CQ_NEXT);
	context = forged_open();
	open_session();
	send_forgeries();
	never_send();
	send_odd_notes();
	steal_session();
	be_strangers();
	break_connection();
	steps_queue_close(&queue);
	grpc_channel_destroy(channel);
	haul_disconnect(side);
	haul_close(context);
	grpc_shutdown();
	return wrong ? 1 : 0;
}
