/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_common.h"

static void sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{"0", 0},
		{"64", 64},
		{"64B", 64},
		{"64 B", 64},
		{"100MiB", 104857600},
		{"100 MiB", 104857600},
		{"1KB", 1000},
		{"1kB", 1000},
		{"3GB", UINT64_C(3000000000)},
		{"2TiB", UINT64_C(2) << 40},
		{"18446744073709551615", UINT64_MAX},
	};
	static const char *const bad[] = {
		"",
		"B",
		"-1",
		"+1",
		" 1",
		"1 ",
		"1mib",
		"1MIB",
		"1M",
		"1.5MiB",
		"1MiB ",
		"1MiBx",
		"0x10",
		"MiB",
		"1  MiB",
		"18446744073709551616",
		"16777216TiB",
	};
	uint64_t bytes;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(good); i++) {
		assert_int_equal(bench_parse_size(good[i].text, &bytes), 0);
		assert_int_equal(bytes, good[i].bytes);
	}
	bytes = 42;
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		assert_int_equal(bench_parse_size(bad[i], &bytes), -EINVAL);
	assert_int_equal(bytes, 42);
}

static void size_texts_are_read_back(void **state)
{
	static const uint64_t sizes_of[] = {
		0, 1, 1000, 1024, 1025, 104857600, 1 << 30, UINT64_C(3) << 40, UINT64_MAX};
	char text[BENCH_SIZE_TEXT];
	uint64_t bytes;

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(sizes_of); i++) {
		assert_int_equal(bench_parse_size(bench_size_text(text, sizes_of[i]), &bytes), 0);
		assert_int_equal(bytes, sizes_of[i]);
	}
	assert_string_equal(bench_size_text(text, 104857600), "100 MiB");
	assert_string_equal(bench_size_text(text, 1000), "1000 B");
}

static void numbers(void **state)
{
	uint64_t value = 7;

	(void)state;
	assert_int_equal(bench_parse_number("12", 1, 12, &value), 0);
	assert_int_equal(value, 12);
	assert_int_equal(bench_parse_number("13", 1, 12, &value), -EINVAL);
	assert_int_equal(bench_parse_number("0", 1, 12, &value), -EINVAL);
	assert_int_equal(bench_parse_number("", 0, 12, &value), -EINVAL);
	assert_int_equal(bench_parse_number("3x", 0, 12, &value), -EINVAL);
	assert_int_equal(bench_parse_number("-3", 0, 12, &value), -EINVAL);
	assert_int_equal(bench_parse_number("99999999999999999999", 0, UINT64_MAX, &value),
			 -EINVAL);
	assert_int_equal(value, 12);
}

static void seconds(void **state)
{
	double value = 0;

	(void)state;
	assert_int_equal(bench_parse_seconds("0.5", 0, 10, &value), 0);
	assert_true(value == 0.5);
	assert_int_equal(bench_parse_seconds("10s", 0, 10, &value), 0);
	assert_int_equal(bench_parse_seconds("11", 0, 10, &value), -EINVAL);
	assert_int_equal(bench_parse_seconds("nan", 0, 10, &value), -EINVAL);
	assert_int_equal(bench_parse_seconds("inf", 0, INFINITY, &value), -EINVAL);
	assert_int_equal(bench_parse_seconds("-1", -10, 10, &value), -EINVAL);
	assert_int_equal(bench_parse_seconds("1m", 0, 10, &value), -EINVAL);
	assert_int_equal(bench_parse_seconds(".", 0, 10, &value), -EINVAL);
	assert_true(value == 10);
}

static void choices(void **state)
{
	static const char *const names[] = {"block", "poll", NULL};

	(void)state;
	assert_int_equal(bench_parse_choice("poll", names), 1);
	assert_int_equal(bench_parse_choice("pol", names), -EINVAL);
	assert_int_equal(bench_parse_choice("", names), -EINVAL);
}

static void addresses(void **state)
{
	static const struct {
		const char *text, *host;
		uint16_t port;
	} good[] = {
		{"10.0.0.1:80", "10.0.0.1", 80},
		{"*:0", "*", 0},
		{"[::1]:65535", "::1", 65535},
		{"[fe80::1%eth0]:7000", "fe80::1%eth0", 7000},
		{"localhost:7411", "localhost", 7411},
	};
	static const char *const bad[] = {"",        "host",   ":80",  "host:",   "host:x",
					  "h:65536", "::1:80", "[]:1", "host:-1", "[::1]"};
	uint16_t port;
	char host[64];

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(good); i++) {
		assert_int_equal(bench_split_address(good[i].text, host, sizeof(host), &port), 0);
		assert_string_equal(host, good[i].host);
		assert_int_equal(port, good[i].port);
	}
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		assert_int_equal(bench_split_address(bad[i], host, sizeof(host), &port), -EINVAL);
	/* The host needs its end too. */
	assert_int_equal(bench_split_address("abcd:1", host, 4, &port), -EINVAL);
	assert_int_equal(bench_split_address("abc:1", host, 4, &port), 0);
}

static void medians_leave_out_the_unmeasured(void **state)
{
	const double values[] = {5, NAN, 1, 3, NAN}, even[] = {4, 1, 2, 3}, none[] = {NAN, NAN};
	double low, high;

	(void)state;
	assert_true(bench_median(values, 5) == 3);
	assert_true(bench_median(even, 4) == 2.5);
	assert_true(isnan(bench_median(none, 2)));
	assert_true(isnan(bench_median(values, 0)));
	bench_range(values, 5, &low, &high);
	assert_true(low == 1 && high == 5);
	bench_range(none, 2, &low, &high);
	assert_true(isnan(low) && isnan(high));
}

static void fairness(void **state)
{
	const double same[] = {2, 2, 2, 2}, one[] = {8, 0, 0, 0}, none[] = {0, 0};

	(void)state;
	assert_true(fabs(bench_jain(same, 4) - 1) < 1e-12);
	assert_true(fabs(bench_jain(one, 4) - 0.25) < 1e-12);
	assert_true(isnan(bench_jain(none, 2)));
	assert_true(fabs(bench_gbps(1.25e9, 1) - 10) < 1e-12);
	assert_true(isnan(bench_gbps(1, 0)));
}

static void json_has_null_for_the_unmeasured(void **state)
{
	const double values[] = {1.5, NAN};
	cJSON *object = cJSON_CreateObject();
	char text[256];

	(void)state;
	bench_json_number(object, "a", NAN);
	bench_json_number(object, "b", 0.1 + 0.2);
	bench_json_number(object, "c", INFINITY);
	bench_json_numbers(object, "d", values, 2);
	assert_true(cJSON_PrintPreallocated(object, text, sizeof(text), false));
	assert_string_equal(text, "{\"a\":null,\"b\":0.3,\"c\":null,\"d\":[1.5,null]}");
	cJSON_Delete(object);
}

static void json_files(void **state)
{
	char folder[] = "/tmp/bench_numbers_XXXXXX", path[64], inner[80], text[32] = "";
	cJSON *object = cJSON_CreateObject();
	FILE *file;

	(void)state;
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/out.json", folder);
	snprintf(inner, sizeof(inner), "%s/out.json/inner", folder);
	assert_int_equal(bench_json_check(NULL), 0);
	assert_int_equal(bench_json_check("-"), 0);
	assert_int_equal(bench_json_check(folder), -EISDIR);
	assert_int_equal(bench_json_check("/nonexistent/out.json"), -ENOENT);
	assert_int_equal(bench_json_check(path), 0);
	/* Looking leaves nothing behind. */
	assert_int_equal(access(path, F_OK), -1);
	assert_int_equal(bench_json_write(path, object), 0);
	assert_int_equal(bench_json_check(inner), -ENOTDIR);
	assert_int_equal(bench_json_write(inner, object), -ENOTDIR);
	assert_int_equal(bench_json_check(path), 0);
	file = fopen(path, "r");
	assert_non_null(file);
	assert_non_null(fgets(text, sizeof(text), file));
	fclose(file);
	assert_string_equal(text, "{\n");
	assert_int_equal(bench_json_write("/dev/full", object), -ENOSPC);
	unlink(path);
	rmdir(folder);
	cJSON_Delete(object);
}

static void tables(void **state)
{
	struct bench_table table;
	char *text = NULL;
	size_t length;
	FILE *file = open_memstream(&text, &length);

	(void)state;
	assert_int_equal(bench_table_init(&table, 4), 0);
	bench_table_row(&table);
	for (size_t i = 0; i < 4; i++)
		bench_table_cell(&table, i, "h%zu", i);
	bench_table_row(&table);
	bench_table_cell(&table, 0, "wide name");
	bench_table_cell(&table, 3, "%d", 12345);
	bench_table_cell(&table, 9, "not there");
	bench_table_row(&table);
	bench_table_cell(&table, 1, "x");
	bench_table_print(&table, file);
	bench_table_print_left(&table, file);
	fclose(file);
	assert_string_equal(text, "h0         h1     h3\n"
				  "wide name      12345\n"
				  "            x       \n"
				  "h0         h1  h3\n"
				  "wide name      12345\n"
				  "           x   \n");
	free(text);
	bench_table_free(&table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes),
		cmocka_unit_test(size_texts_are_read_back),
		cmocka_unit_test(numbers),
		cmocka_unit_test(seconds),
		cmocka_unit_test(choices),
		cmocka_unit_test(addresses),
		cmocka_unit_test(medians_leave_out_the_unmeasured),
		cmocka_unit_test(fairness),
		cmocka_unit_test(json_has_null_for_the_unmeasured),
		cmocka_unit_test(json_files),
		cmocka_unit_test(tables),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
