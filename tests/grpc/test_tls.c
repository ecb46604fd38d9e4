/* SPDX-License-Identifier: Apache-2.0 */
/* TLS: who is let in, who is not, and what is said about files that are none. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <grpc/grpc.h>

#include "harness.h"
#include "tests/tcp/rawpeer.h"

static const char *certificates;

/* "%s" in a list of options becomes the folder. */
static const char *options(struct world *world, const char *list)
{
	size_t room = strlen(list) + 8 * strlen(certificates) + 64;
	char *text = world_memory(world, room), *out = text;

	out += sprintf(out, "progress=thread,connect_ms=8000");
	if (*list)
		*out++ = ',';
	for (; *list; list++) {
		if (*list == '@')
			out += sprintf(out, "%s", certificates);
		else
			*out++ = *list;
	}
	*out = 0;
	return text;
}

#define HOST "tls_cert=@/host.pem,tls_key=@/host.key"
#define OTHER "tls_cert=@/other.pem,tls_key=@/other.key"

static const struct {
	const char *what, *server, *client;
	const char *says; /* NULL: it is let in */
} cases[] = {
	{"the client checks the server", HOST, "tls_ca=@/ca.pem", NULL},
	{"both check each other", "tls_ca=@/ca.pem," HOST, "tls_ca=@/ca.pem," HOST, NULL},
	{"another name", HOST, "tls_ca=@/ca.pem,tls_name=tensorhaul.test", NULL},
	{"a name that is not in it", HOST, "tls_ca=@/ca.pem,tls_name=elsewhere.test",
	 "not for this address: tls_name="},
	{"a server of another authority", OTHER, "tls_ca=@/ca.pem", "not signed by tls_ca="},
	{"a client of another authority", "tls_ca=@/ca.pem," HOST, "tls_ca=@/ca.pem," OTHER,
	 "did not sign this side's tls_cert="},
	{"a client without a certificate", "tls_ca=@/ca.pem," HOST, "tls_ca=@/ca.pem",
	 "wants a certificate of this side (tls_cert=, tls_key=)"},
	{"a client that knows no authority", HOST, HOST, "tls_ca= names who has signed it"},
	{"a client without TLS", HOST, "", "wants TLS (tls_ca=)"},
	{"a server without TLS", "", "tls_ca=@/ca.pem", "does not speak TLS"},
};

static void check_says(const struct entry *connect, const char *words)
{
	if (!strstr(connect->detail, words))
		fail_msg("not \"%s\": %s", words, connect->detail);
}

static void test_who_is_let_in(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct world *world = world_new(NULL);
		struct side *a = side_open(world, options(world, cases[i].server));
		struct side *b = side_open(world, options(world, cases[i].client));
		const char *address = side_listen(a);
		struct entry *connect = post_connect(b, address);
		struct way up, down;

		wait_done(connect);
		if ((connect->result == 0) != !cases[i].says)
			fail_msg("%s: %d %s", cases[i].what, connect->result, connect->detail);
		if (cases[i].says) {
			check_says(connect, cases[i].says);
			assert_int_equal(a->accepted_count, 0);
		} else {
			wait_accepted(a, 1);
			connect_sides(b, a, &up, &down);
			check_way_alive(&up);
			check_way_alive(&down);
		}
		assert_int_equal(world_free(world), 0);
	}
}

/* A good peer is served while strangers knock without TLS. */
static void test_plain_clients_of_a_tls_server(void **state)
{
	struct world *world = *state;
	const char *words[] = {"GET / HTTP/1.0\r\n\r\n", "\x16\x03\x01\x02\x00\x01", ""};
	struct side *a, *b;
	struct way up, down;
	const char *address;
	int fds[3];

	a = side_open(world, options(world, "handshake_ms=500," HOST));
	b = side_open(world, options(world, "tls_ca=@/ca.pem"));
	address = side_listen(a);
	for (int i = 0; i < 3; i++) {
		fds[i] = raw_connect(address);
		raw_send(fds[i], words[i], strlen(words[i]));
	}
	connect_sides(b, a, &up, &down);
	check_way_alive(&up);
	for (int i = 0; i < 3; i++) {
		assert_true(raw_closed_within(fds[i], 8000));
		close(fds[i]);
	}
	check_way_alive(&down);
}

static void test_files_that_are_none(void **state)
{
	struct world *world = *state;
	const char *empty = world_file(world, "empty", "", 0, 0600);
	const char *noise = world_file(world, "noise", "\0\1\2 no PEM", 10, 0600);
	const struct {
		const char *list;
		int error;
		const char *words[4];
	} wrong[] = {
		{"tls_ca=/nowhere/ca.pem", -ENOENT, {"tls_ca", "/nowhere/ca.pem"}},
		{"tls_ca=/", -EISDIR, {"tls_ca=/"}},
		{world_text(world, "tls_ca=%s", empty), -EINVAL, {"tls_ca", "BEGIN CERTIFICATE"}},
		{world_text(world, "tls_ca=%s", noise), -EINVAL, {"tls_ca", "PEM"}},
		{"tls_cert=@/host.pem", -EINVAL, {"tls_key", "missing"}},
		{"tls_key=@/host.key", -EINVAL, {"tls_cert", "missing"}},
		{"tls_cert=@/host.key,tls_key=@/host.key", -EINVAL, {"tls_cert", "CERTIFICATE"}},
		{"tls_cert=@/host.pem,tls_key=@/host.pem", -EINVAL, {"tls_key", "PRIVATE KEY"}},
		{"tls_cert=@/host.pem,tls_key=@/other.key", -EINVAL, {"tls_key", "tls_cert"}},
		{"tls_name=x", -EINVAL, {"tls_name", "tls_ca"}},
		{"interface=lo,tls_ca=@/ca.pem", -EINVAL, {"interface", "TLS"}},
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		int error = 0;
		struct side *side = side_try_open(world, options(world, wrong[i].list), &error);

		if (side)
			fail_msg("%s was taken", wrong[i].list);
		check_error(NULL, error, wrong[i].error, wrong[i].words);
	}
	/* Certificates of clients only: to listen, one of its own is needed. */
	{
		struct side *side = side_open(world, options(world, "tls_ca=@/ca.pem"));
		haul_listener *listener;

		assert_int_equal(haul_listen(side->context, "127.0.0.1:0", NULL, &listener),
				 -EINVAL);
		check_words(haul_detail(side->context),
			    (const char *const[]){"tls_cert", "tls_key", NULL});
	}
}

static const struct CMUnitTest tests[] = {
	WORLD_TEST(test_who_is_let_in),
	WORLD_TEST(test_plain_clients_of_a_tls_server),
	WORLD_TEST(test_files_that_are_none),
};

int main(int count, char **arguments)
{
	certificates = getenv("GRPC_CERTIFICATES");
	if (!certificates) {
		fprintf(stderr, "test_tls: GRPC_CERTIFICATES must name the folder of "
				"make_certificates\n");
		return 2;
	}
	return suite_main("grpc", tests, sizeof(tests) / sizeof(tests[0]), count, arguments);
}
