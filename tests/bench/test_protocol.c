/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "protocol.h"

static char text[PROTOCOL_TEXT_MAX], why[128];

static const struct request start = {
	.kind = REQUEST_START,
	.round = {.kind = ROUND_STREAM,
		  .direction = DIRECTION_BOTH,
		  .number = UINT32_MAX,
		  .size = (UINT64_C(2) << 30) + 1,
		  .concurrency = 4,
		  .seed = 99,
		  .verify = true},
};

static void requests_are_read_back(void **state)
{
	struct request back;
	int length;

	(void)state;
	for (int kind = REQUEST_HELLO; kind <= REQUEST_FINISH; kind++) {
		struct request request = {.kind = (enum request_kind)kind};

		if (kind == REQUEST_START)
			request = start;
		length = protocol_write_request(&request, text);
		assert_true(length > 0);
		assert_int_equal(
			protocol_read_request(text, (size_t)length, &back, why, sizeof(why)), 0);
		assert_int_equal(back.kind, kind);
	}
	length = protocol_write_request(&start, text);
	assert_int_equal(protocol_read_request(text, (size_t)length, &back, why, sizeof(why)), 0);
	assert_int_equal(back.round.size, start.round.size);
	assert_int_equal(back.round.number, start.round.number);
	assert_int_equal(back.round.direction, DIRECTION_BOTH);
	assert_true(back.round.verify);
	assert_false(back.round.poll);
}

static void answers_are_read_back(void **state)
{
	struct answer answer = {.usage = {1.25, 0.5},
				.spec = "tcp,streams=\"auto\"",
				.memory = UINT64_C(4) << 30,
				.ceiling_port = 40123,
				.mismatches = 3,
				.statistics = true};
	struct answer back;
	int length;

	(void)state;
	snprintf(answer.error, sizeof(answer.error), "no \"memory\"\n");
	length = protocol_write_answer(&answer, text);
	assert_true(length > 0);
	assert_int_equal(protocol_read_answer(text, (size_t)length, &back, why, sizeof(why)), 0);
	assert_string_equal(back.error, answer.error);
	assert_string_equal(back.spec, answer.spec);
	assert_true(back.usage.user_s == 1.25 && back.usage.system_s == 0.5);
	assert_int_equal(back.memory, answer.memory);
	assert_int_equal(back.ceiling_port, 40123);
	assert_int_equal(back.mismatches, 3);
}

/* Change one member of a good request and see that it is named. */
static void expect_refusal(const char *member, const char *value)
{
	struct request back;
	cJSON *object;

	protocol_write_request(&start, text);
	object = cJSON_Parse(text);
	cJSON_DeleteItemFromObject(object, member);
	if (value)
		cJSON_AddItemToObject(object, member, cJSON_CreateRaw(value));
	assert_true(cJSON_PrintPreallocated(object, text, sizeof(text), false));
	cJSON_Delete(object);
	why[0] = '\0';
	assert_int_equal(protocol_read_request(text, strlen(text), &back, why, sizeof(why)),
			 -EPROTO);
	assert_non_null(strstr(why, member));
}

static void bad_members_are_named(void **state)
{
	static const char *const members[] = {"version", "request",    "kind", "direction",
					      "number",  "size",       "seed", "verify",
					      "poll",    "concurrency"};
	static const char *const never[] = {NULL, "null", "[]", "{}", "-1", "1.5", "1e300"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(members); i++)
		for (size_t j = 0; j < ARRAY_LENGTH(never); j++)
			expect_refusal(members[i], never[j]);
	expect_refusal("version", "2");
	expect_refusal("request", "\"destroy\"");
	expect_refusal("concurrency", "0");
	expect_refusal("concurrency", "65537");
	expect_refusal("number", "4294967296");
	expect_refusal("size", "\"100MiB\"");
	expect_refusal("verify", "1");
}

static void garbage_is_refused(void **state)
{
	static const char *const garbage[] = {"",     "{",         "[]", "1",
					      "null", "\"hello\"", "{}", "\xff\xfe"};
	static char large[PROTOCOL_TEXT_MAX + 1];
	struct request request;
	struct answer answer;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(garbage); i++) {
		assert_int_equal(protocol_read_request(garbage[i], strlen(garbage[i]), &request,
						       why, sizeof(why)),
				 -EPROTO);
		assert_int_equal(protocol_read_answer(garbage[i], strlen(garbage[i]), &answer, why,
						      sizeof(why)),
				 -EPROTO);
	}
	memset(large, ' ', sizeof(large));
	assert_int_equal(protocol_read_request(large, sizeof(large), &request, why, sizeof(why)),
			 -EPROTO);
	memset(large, '[', PROTOCOL_TEXT_MAX);
	assert_int_equal(
		protocol_read_request(large, PROTOCOL_TEXT_MAX, &request, why, sizeof(why)),
		-EPROTO);
}

/* The text that a peer sent has no end of its own, and may be cut anywhere. */
static void every_prefix_is_refused(void **state)
{
	int length = protocol_write_request(&start, text);
	struct request back;

	(void)state;
	for (int cut = 0; cut < length; cut++) {
		char *exact = malloc((size_t)cut + 1);

		memcpy(exact, text, (size_t)cut);
		assert_int_equal(protocol_read_request(exact, (size_t)cut, &back, why, sizeof(why)),
				 -EPROTO);
		free(exact);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_are_read_back),  cmocka_unit_test(answers_are_read_back),
		cmocka_unit_test(bad_members_are_named),   cmocka_unit_test(garbage_is_refused),
		cmocka_unit_test(every_prefix_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
