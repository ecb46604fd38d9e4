/* SPDX-License-Identifier: Apache-2.0 */
/*
 * haul_connect() to a port where something else listens, or a peer that does everything wrong: it
 * ends once, with the documented result and a reason, and other endpoints notice nothing.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load.h"
#include "rawpeer.h"

/* connect_ms where it is meant to run out. */
#define SHORT_MS 300

static const uint8_t session[SESSION_SIZE] = "a session of it";

/* ---- The server -------------------------------------------------------- */

struct fake {
	struct world *world;
	struct pair pair;  /* good peers; b connects to the fake server too */
	struct side *side; /* pair.b */
	int listener;
	char address[32];
	struct raw_peer peer; /* the control socket, for raw_message() and so on */
	int pulse, stream;    /* -1: not there yet */
	uint32_t stream_name;
};

static int fake_accept(struct fake *fake)
{
	struct timeval patience = {.tv_sec = RAW_PATIENCE_MS / 1000};
	int fd;

	setsockopt(fake->listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	fd = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		fail_msg("no connection came: %s", haul_strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	return fd;
}

static void fake_open(struct world *world, struct fake *fake, const char *options)
{
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(own);

	memset(fake, 0, sizeof(*fake));
	fake->world = world;
	pair_open(world, world_text(world, "progress=thread,streams=1,%s", options), &fake->pair);
	fake->side = fake->pair.b;
	fake->peer.control = fake->peer.pulse = fake->peer.stream = fake->pulse = fake->stream = -1;
	fake->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fake->listener >= 0);
	assert_int_equal(bind(fake->listener, (struct sockaddr *)&own, size), 0);
	assert_int_equal(listen(fake->listener, 128), 0);
	assert_int_equal(getsockname(fake->listener, (struct sockaddr *)&own, &size), 0);
	snprintf(fake->address, sizeof(fake->address), "127.0.0.1:%u", ntohs(own.sin_port));
}

static void hang_up(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void fake_close(struct fake *fake)
{
	hang_up(&fake->peer.control);
	hang_up(&fake->pulse);
	hang_up(&fake->stream);
	hang_up(&fake->listener);
}

/* Read a preamble of this kind. */
static struct preamble read_preamble(int fd, enum preamble_kind kind)
{
	uint8_t bytes[PREAMBLE_SIZE];
	struct preamble preamble;

	assert_true(raw_recv(fd, bytes, sizeof(bytes)));
	assert_int_equal(preamble_decode(bytes, &preamble), 0);
	assert_int_equal(preamble.version, TCP_VERSION);
	assert_int_equal(preamble.kind, kind);
	return preamble;
}

static void answer(int fd, enum preamble_kind kind, unsigned version, unsigned status,
		   uint64_t taken)
{
	struct preamble preamble = {.version = (uint8_t)version,
				    .kind = kind,
				    .status = (uint16_t)status,
				    .taken = taken};
	uint8_t bytes[PREAMBLE_SIZE];

	memcpy(preamble.session, session, SESSION_SIZE);
	preamble_encode(bytes, &preamble);
	raw_send(fd, bytes, sizeof(bytes));
}

static void welcome(struct fake *fake)
{
	read_preamble(fake->peer.control, PREAMBLE_OPEN);
	answer(fake->peer.control, PREAMBLE_OPEN, TCP_VERSION, PREAMBLE_WELCOME, 0);
}

static size_t acceptors_hello(uint8_t *out, unsigned version, uint64_t features)
{
	size_t length = raw_hello(out, version, features, 65536);

	out[1] = WIRE_ACCEPTOR;
	return length;
}

/* Take the pulse and the stream, which come in any order. */
static void take_others(struct fake *fake)
{
	while (fake->pulse < 0 || fake->stream < 0) {
		int fd = fake_accept(fake);
		uint8_t bytes[PREAMBLE_SIZE];
		struct preamble preamble;

		assert_true(raw_recv(fd, bytes, sizeof(bytes)));
		assert_int_equal(preamble_decode(bytes, &preamble), 0);
		assert_memory_equal(preamble.session, session, SESSION_SIZE);
		answer(fd, preamble.kind, TCP_VERSION, PREAMBLE_WELCOME, 0);
		if (preamble.kind == PREAMBLE_PULSE) {
			fake->pulse = fd;
		} else {
			assert_int_equal(preamble.kind, PREAMBLE_STREAM);
			fake->stream = fd;
			fake->stream_name = preamble.stream;
		}
	}
}

/* ---- Lies while it connects -------------------------------------------- */

static void say_http(struct fake *fake)
{
	static const char text[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";

	raw_send(fake->peer.control, text, sizeof(text));
}

static void say_garbage(struct fake *fake)
{
	uint8_t bytes[65536];
	uint64_t random = random_seed();

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)random_next(&random);
	bytes[0] = 'X';
	raw_send(fake->peer.control, bytes, sizeof(bytes));
}

static void close_at_once(struct fake *fake)
{
	hang_up(&fake->peer.control);
}

static void close_after_preamble(struct fake *fake)
{
	read_preamble(fake->peer.control, PREAMBLE_OPEN);
	hang_up(&fake->peer.control);
}

static void close_in_the_answer(struct fake *fake)
{
	uint8_t bytes[8] = {0};

	read_preamble(fake->peer.control, PREAMBLE_OPEN);
	put32(bytes, TCP_MAGIC);
	bytes[4] = TCP_VERSION;
	raw_send(fake->peer.control, bytes, sizeof(bytes));
	hang_up(&fake->peer.control);
}

static void close_after_welcome(struct fake *fake)
{
	welcome(fake);
	shutdown(fake->peer.control, SHUT_RDWR);
	/* The others never get an answer. */
	hang_up(&fake->listener);
}

static void say_other_version(struct fake *fake)
{
	read_preamble(fake->peer.control, PREAMBLE_OPEN);
	answer(fake->peer.control, PREAMBLE_OPEN, 77, PREAMBLE_VERSION, 0);
}

static void say_version(struct fake *fake)
{
	read_preamble(fake->peer.control, PREAMBLE_OPEN);
	answer(fake->peer.control, PREAMBLE_OPEN, TCP_VERSION, PREAMBLE_VERSION, 0);
}

static void say_unknown(struct fake *fake)
{
	read_preamble(fake->peer.control, PREAMBLE_OPEN);
	answer(fake->peer.control, PREAMBLE_OPEN, TCP_VERSION, PREAMBLE_UNKNOWN, 0);
}

static void say_refused(struct fake *fake)
{
	read_preamble(fake->peer.control, PREAMBLE_OPEN);
	answer(fake->peer.control, PREAMBLE_OPEN, TCP_VERSION, PREAMBLE_REFUSED, 0);
}

static void say_strange_status(struct fake *fake)
{
	read_preamble(fake->peer.control, PREAMBLE_OPEN);
	answer(fake->peer.control, PREAMBLE_OPEN, TCP_VERSION, 0xffff, 0);
}

static void say_nothing(struct fake *fake)
{
}

static void say_no_hello(struct fake *fake)
{
	welcome(fake);
}

static void say_half_an_answer(struct fake *fake)
{
	uint8_t bytes[PREAMBLE_SIZE / 2] = {0};

	put32(bytes, TCP_MAGIC);
	bytes[4] = TCP_VERSION;
	raw_send(fake->peer.control, bytes, sizeof(bytes));
}

/* ---- Lies in the engine's handshake ------------------------------------ */

static void say_hello_of_version_2(struct fake *fake)
{
	uint8_t message[HAUL_CONTROL_MAX];

	welcome(fake);
	raw_message(&fake->peer, message, acceptors_hello(message, WIRE_VERSION + 1, 0));
	raw_expect(&fake->peer, WIRE_REJECT, message, NULL);
	assert_int_equal(get16(message + 2), WIRE_REASON_VERSION);
}

static void say_its_own_hello(struct fake *fake)
{
	uint8_t message[HAUL_CONTROL_MAX];

	welcome(fake);
	raw_expect(&fake->peer, WIRE_HELLO, message, NULL);
	assert_int_equal(message[1], WIRE_CONNECTOR);
	raw_message(&fake->peer, message, WIRE_HELLO_SIZE);
}

static void say_hello_without_slots(struct fake *fake)
{
	uint8_t message[HAUL_CONTROL_MAX];
	size_t length;

	welcome(fake);
	length = acceptors_hello(message, WIRE_VERSION, 0);
	put32(message + 24, 0);
	raw_message(&fake->peer, message, length);
}

static void ask_for_a_key(struct fake *fake)
{
	uint8_t message[HAUL_CONTROL_MAX];

	welcome(fake);
	raw_message(&fake->peer, message,
		    acceptors_hello(message, WIRE_VERSION, WIRE_FEATURE_AUTH));
	raw_expect(&fake->peer, WIRE_REJECT, message, NULL);
	assert_int_equal(get16(message + 2), WIRE_REASON_AUTH_NEEDED);
}

static void ask_for_checksums(struct fake *fake)
{
	uint8_t message[HAUL_CONTROL_MAX];

	welcome(fake);
	raw_message(&fake->peer, message,
		    acceptors_hello(message, WIRE_VERSION, WIRE_FEATURE_CHECKSUM));
	raw_expect(&fake->peer, WIRE_REJECT, message, NULL);
	assert_int_equal(get16(message + 2), WIRE_REASON_FEATURES);
}

static void reject_with(struct fake *fake, unsigned reason)
{
	uint8_t message[8] = {WIRE_REJECT};

	welcome(fake);
	put16(message + 2, (uint16_t)reason);
	raw_message(&fake->peer, message, sizeof(message));
}

static void reject_auth(struct fake *fake)
{
	reject_with(fake, WIRE_REASON_AUTH);
}

static void reject_version(struct fake *fake)
{
	reject_with(fake, WIRE_REASON_VERSION);
}

static void reject_strangely(struct fake *fake)
{
	reject_with(fake, 999);
}

static void say_bye_first(struct fake *fake)
{
	uint8_t message[HAUL_CONTROL_MAX];

	welcome(fake);
	raw_message(&fake->peer, message, raw_slot(message, WIRE_BYE, 0) / 2);
}

static void say_bad_record(struct fake *fake)
{
	uint8_t bytes[RECORD_SIZE];

	welcome(fake);
	memset(bytes, 0xff, sizeof(bytes));
	raw_send(fake->peer.control, bytes, sizeof(bytes));
}

struct lie {
	const char *name;
	void (*serve)(struct fake *fake);
	int result;
	const char *word; /* in the detail */
	bool short_time;  /* connect_ms runs out */
};

static struct lie lies[] = {
	{"test_http_answers", say_http, -EPROTO, "no tensorhaul", false},
	{"test_garbage_answers", say_garbage, -EPROTO, "no tensorhaul", false},
	{"test_server_closes_at_once", close_at_once, -ECONNRESET, "another transport", false},
	{"test_server_closes_after_preamble", close_after_preamble, -ECONNRESET,
	 "another transport", false},
	{"test_server_closes_in_the_answer", close_in_the_answer, -ECONNRESET, "another transport",
	 false},
	{"test_server_closes_after_welcome", close_after_welcome, -ECONNRESET, "", false},
	{"test_server_of_another_version", say_other_version, -EPROTO, "version 77", false},
	{"test_server_says_version", say_version, -EPROTO, "version", false},
	{"test_server_does_not_know_open", say_unknown, -ECONNRESET, "", false},
	{"test_server_refuses_open", say_refused, -ECONNREFUSED, "no room", false},
	{"test_server_of_a_strange_status", say_strange_status, -ECONNRESET, "", false},
	{"test_server_never_answers", say_nothing, -ETIMEDOUT, "connect_ms", true},
	{"test_server_answers_half", say_half_an_answer, -ETIMEDOUT, "connect_ms", true},
	{"test_server_says_no_hello", say_no_hello, -ETIMEDOUT, "connect_ms", true},
	{"test_hello_of_version_2", say_hello_of_version_2, -EPROTO, "version 2", false},
	{"test_reflected_hello", say_its_own_hello, -EPROTO, "", false},
	{"test_hello_without_slots", say_hello_without_slots, -EPROTO, "", false},
	{"test_server_asks_for_a_key", ask_for_a_key, -EACCES, "auth=psk", false},
	{"test_server_asks_for_checksums", ask_for_checksums, -EPROTO, "checksum", false},
	{"test_server_rejects_the_key", reject_auth, -EACCES, "key", false},
	{"test_server_rejects_the_version", reject_version, -EPROTO, "version", false},
	{"test_server_rejects_strangely", reject_strangely, -EPROTO, "", false},
	{"test_bye_before_hello", say_bye_first, -EPROTO, "", false},
	{"test_bad_record_before_hello", say_bad_record, -EPROTO, "", false},
};

static void test_lie(void **state)
{
	struct world *world = *state;
	const struct lie *lie = world->parameter;
	const char *options = lie->short_time ? "connect_ms=300" : "connect_ms=20000";
	struct entry *connected;
	struct fake fake;
	uint64_t started;

	fake_open(world, &fake, options);
	started = now_ms();
	connected = post_connect(fake.side, fake.address);
	fake.peer.control = fake_accept(&fake);
	lie->serve(&fake);
	wait_result(connected, lie->result);
	assert_null(connected->endpoint);
	if (!connected->detail[0] || !strstr(connected->detail, lie->word))
		fail_msg("the detail \"%s\" does not say \"%s\"", connected->detail, lie->word);
	if (lie->short_time)
		assert_in_range(now_ms() - started, SHORT_MS - 10, SHORT_MS + 5000);
	if (fake.peer.control >= 0)
		assert_true(raw_closed_within(fake.peer.control, 5000));
	assert_int_equal(fake.side->lost_count, 0);
	check_alive(&fake.pair);
	fake_close(&fake);
}

/* ---- Lies after it ----------------------------------------------------- */

/* The library has read the answer too: from now on the stream keeps the endpoint alive. */
static void wait_stream(struct fake *fake, haul_endpoint *endpoint)
{
	struct haul_statistics statistics = {.size = sizeof(statistics)};
	uint64_t until = now_ms() + PATIENCE_MS;

	while (statistics.streams == 0) {
		assert_true(now_ms() < until);
		world_run_for(fake->world, 1);
		assert_int_equal(haul_endpoint_statistics(endpoint, &statistics), 0);
	}
}

/* A server that does everything right until then; the endpoint of the library's side. */
static haul_endpoint *fake_handshake(struct fake *fake)
{
	struct entry *connected = post_connect(fake->side, fake->address);
	uint8_t message[HAUL_CONTROL_MAX];

	fake->peer.control = fake_accept(fake);
	welcome(fake);
	raw_message(&fake->peer, message, acceptors_hello(message, WIRE_VERSION, 0));
	take_others(fake);
	wait_result(connected, 0);
	fake->peer.stream = fake->stream;
	wait_stream(fake, connected->endpoint);
	return connected->endpoint;
}

static void expect_lost(struct fake *fake, haul_endpoint *endpoint, int result)
{
	wait_lost(fake->side, 1);
	assert_ptr_equal(fake->side->lost[0].endpoint, endpoint);
	if (fake->side->lost[0].result != result)
		fail_msg("lost with %s instead of %s", haul_strerror(fake->side->lost[0].result),
			 haul_strerror(result));
	check_alive(&fake->pair);
	haul_disconnect(endpoint);
	fake_close(fake);
}

/* The control socket breaks; the library asks to go on, and gets this answer. */
static void resume(struct world *world, unsigned status, uint64_t taken, int result)
{
	struct fake fake;
	haul_endpoint *endpoint;

	fake_open(world, &fake, "peer_ms=5000");
	endpoint = fake_handshake(&fake);
	hang_up(&fake.peer.control);
	fake.peer.control = fake_accept(&fake);
	read_preamble(fake.peer.control, PREAMBLE_CONTROL);
	answer(fake.peer.control, PREAMBLE_CONTROL, TCP_VERSION, status, taken);
	expect_lost(&fake, endpoint, result);
}

static void test_resume_at_an_impossible_position(void **state)
{
	resume(*state, PREAMBLE_WELCOME, UINT64_MAX, -EPROTO);
}

static void test_resume_one_byte_too_far(void **state)
{
	resume(*state, PREAMBLE_WELCOME, RECORD_SIZE + WIRE_HELLO_SIZE + 4096, -EPROTO);
}

static void test_resume_at_another_process(void **state)
{
	resume(*state, PREAMBLE_UNKNOWN, 0, -ECONNRESET);
}

/* The server would like very many streams: it gets 64 at most. */
static void test_server_wants_streams_without_end(void **state)
{
	uint8_t body[4], message[HAUL_CONTROL_MAX];
	struct block *source = block_new(*state, 100);
	struct fake fake;
	haul_endpoint *endpoint;
	struct way way;
	int fds[200], count = 0;
	struct entry *sent;

	fake_open(*state, &fake, "peer_ms=5000");
	endpoint = fake_handshake(&fake);
	put32(body, UINT32_MAX);
	for (int i = 0; i < 3; i++)
		raw_record(&fake.peer, RECORD_STREAMS, 0, body, sizeof(body));
	/* It has read them when it answers to what came behind them. */
	way = (struct way){.from = fake.side, .out = endpoint};
	sent = post_send(&way, haul_key("k"), &source->tensor);
	raw_message(&fake.peer, message, raw_ready(message, 0, 0, 100, "k"));
	raw_expect(&fake.peer, WIRE_PUSH, message, NULL);
	while (count < 200) {
		int fd = accept4(fake.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0)
			break;
		fds[count++] = fd;
		if (count == 62)
			world_run_for(*state, 100); /* would there be more? */
		if (count < 63)
			fcntl(fake.listener, F_SETFL, 0);
		else
			fcntl(fake.listener, F_SETFL, O_NONBLOCK);
	}
	assert_int_equal(count, 63);
	raw_message(&fake.peer, message, raw_slot(message, WIRE_PLACED, 0));
	wait_result(sent, 0);
	for (int i = 0; i < count; i++)
		close(fds[i]);
	fake_close(&fake);
	wait_lost(fake.side, 1);
	haul_disconnect(endpoint);
}

/* A pulse that is refused, and one that says something. */
static void test_pulse_that_talks(void **state)
{
	struct fake fake;
	haul_endpoint *endpoint;

	fake_open(*state, &fake, "peer_ms=5000");
	endpoint = fake_handshake(&fake);
	raw_send(fake.pulse, "x", 1);
	/* It is replaced, and that one's session is said to be unknown. */
	hang_up(&fake.pulse);
	fake.pulse = fake_accept(&fake);
	read_preamble(fake.pulse, PREAMBLE_PULSE);
	answer(fake.pulse, PREAMBLE_PULSE, TCP_VERSION, PREAMBLE_UNKNOWN, 0);
	expect_lost(&fake, endpoint, -ECONNRESET);
}

static void test_chunks_from_a_server_that_lies(void **state)
{
	struct fake fake;
	haul_endpoint *endpoint;

	fake_open(*state, &fake, "peer_ms=5000");
	endpoint = fake_handshake(&fake);
	raw_chunk(&fake.peer, 5, 0, NULL, 100);
	expect_lost(&fake, endpoint, -EPROTO);
}

/* ---- The table --------------------------------------------------------- */

enum { LIES = sizeof(lies) / sizeof(lies[0]) };

static const struct CMUnitTest others[] = {
	WORLD_TEST(test_resume_at_an_impossible_position),
	WORLD_TEST(test_resume_one_byte_too_far),
	WORLD_TEST(test_resume_at_another_process),
	WORLD_TEST(test_server_wants_streams_without_end),
	WORLD_TEST(test_pulse_that_talks),
	WORLD_TEST(test_chunks_from_a_server_that_lies),
};

enum { OTHERS = sizeof(others) / sizeof(others[0]) };

int main(int count, char **arguments)
{
	struct CMUnitTest tests[LIES + OTHERS];

	for (int i = 0; i < LIES; i++)
		tests[i] = (struct CMUnitTest)WORLD_TEST_WITH(lies[i].name, test_lie, &lies[i]);
	memcpy(tests + LIES, others, sizeof(others));
	return suite_main("tcp", tests, LIES + OTHERS, count, arguments);
}
