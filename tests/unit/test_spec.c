/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>

#include "engine/spec.h"
#include "failing_memory.h"

struct config {
	uint64_t streams;
	uint64_t buffer;
	bool zerocopy;
	unsigned congestion;
	char *interface;
	char *motto;
	struct haul_option_range ports;
};

static const char *const congestions[] = {"cubic", "bbr", "reno", NULL};

static const struct haul_option table[] = {
	{{"streams", "auto", "1..64 or auto", ""},
	 HAUL_OPTION_NUMBER,
	 offsetof(struct config, streams),
	 1,
	 64,
	 true},
	{{"buffer", "4MiB", "4KiB..1GiB", ""},
	 HAUL_OPTION_BYTES,
	 offsetof(struct config, buffer),
	 4096,
	 1 << 30},
	{{"zerocopy", "yes", "yes or no", ""},
	 HAUL_OPTION_SWITCH,
	 offsetof(struct config, zerocopy)},
	{{"congestion", "bbr", "cubic, bbr or reno", ""},
	 HAUL_OPTION_CHOICE,
	 offsetof(struct config, congestion),
	 .choices = congestions},
	{{"interface", "", "NAME", ""}, HAUL_OPTION_TEXT, offsetof(struct config, interface)},
	{{"motto", "a,b", "TEXT", ""}, HAUL_OPTION_TEXT, offsetof(struct config, motto)},
	{{"ports", "", "LOW-HIGH", ""},
	 HAUL_OPTION_RANGE,
	 offsetof(struct config, ports),
	 1024,
	 65535},
	{{NULL}},
};

static const struct haul_option other_table[] = {
	{{"peer_ms", "1000", "1..5000", ""}, HAUL_OPTION_NUMBER, 0, 1, 5000},
	{{NULL}},
};

static const struct haul_option *const tables[] = {table, other_table, NULL};

/* ---- Cutting ----------------------------------------------------------- */

static void cuts(void **state)
{
	struct spec spec;
	char why[512] = "";

	assert_int_equal(spec_parse("tcp", &spec, why, sizeof(why)), 0);
	assert_string_equal(spec.transport, "tcp");
	assert_int_equal(spec.count, 0);
	spec_free(&spec);
	assert_null(spec.transport);
	assert_int_equal(
		spec_parse("dpdk,port={net_tap0,iface=x},a=,b={},c=x=y,d={{1},{2}},e=f{g}h", &spec,
			   why, sizeof(why)),
		0);
	assert_string_equal(spec.transport, "dpdk");
	assert_int_equal(spec.count, 6);
	assert_string_equal(spec.options[0].name, "port");
	assert_string_equal(spec.options[0].value, "net_tap0,iface=x");
	assert_string_equal(spec.options[1].name, "a");
	assert_string_equal(spec.options[1].value, "");
	assert_string_equal(spec.options[2].value, "");
	assert_string_equal(spec.options[3].name, "c");
	assert_string_equal(spec.options[3].value, "x=y");
	assert_string_equal(spec.options[4].value, "{1},{2}");
	assert_string_equal(spec.options[5].value, "f{g}h");
	for (size_t i = 0; i < spec.count; i++)
		assert_false(spec.options[i].taken);
	spec_free(&spec);
	spec_free(&spec);
}

static void refuses(void **state)
{
	static const struct {
		const char *text, *value, *valid;
	} cases[] = {
		{"", "\"\"", "transport's name"},
		{",a=1", "\",a=1\"", "transport's name"},
		{"streams=8", "\"streams=8\"", "transport's name"},
		{"tcp,", "\"\"", "option=value"},
		{"tcp,a", "\"a\"", "option=value"},
		{"tcp,a=1,", "\"\"", "option=value"},
		{"tcp,,a=1", "\",a=1\"", "option=value"},
		{"tcp,a,b=1", "\"a,b=1\"", "option=value"},
		{"tcp,=1", "\"=1\"", "option=value"},
		{"tcp,a=1,b=2,a=3", "a is given twice", "once"},
		{"tcp,a={1", "a={1", "option={value}"},
		{"tcp,a={1,b=2", "a={1,b=2", "option={value}"},
		{"tcp,a={{1}", "a={{1}", "option={value}"},
		{"tcp,a={1}2", "\"2\"", "a comma or the end"},
		{"tcp,a={1}}", "\"}\"", "a comma or the end"},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct spec spec;
		char why[512] = "";

		if (spec_parse(cases[i].text, &spec, why, sizeof(why)) != -EINVAL)
			fail_msg("\"%s\" was accepted", cases[i].text);
		assert_contains(why, cases[i].value);
		assert_contains(why, cases[i].valid);
		assert_null(spec.transport);
		assert_int_equal(spec_parse(cases[i].text, &spec, NULL, 0), -EINVAL);
	}
}

static void longest(void **state)
{
	char text[4098] = "tcp,a=";
	struct spec spec;
	char why[512];

	memset(text + 6, 'x', sizeof(text) - 7);
	assert_int_equal(strlen(text), 4097);
	assert_int_equal(spec_parse(text, &spec, why, sizeof(why)), -EINVAL);
	assert_contains(why, "4096");
	text[4096] = '\0';
	assert_int_equal(spec_parse(text, &spec, why, sizeof(why)), 0);
	assert_int_equal(strlen(spec.options[0].value), 4090);
	spec_free(&spec);
}

/* A value must not be able to write a line of its own into a log. */
static void errors_are_one_line(void **state)
{
	struct spec spec;
	char why[512];

	assert_int_equal(spec_parse("tcp,one\ntwo\x1b", &spec, why, sizeof(why)), -EINVAL);
	assert_contains(why, "one?two?");
}

/* ---- Values ------------------------------------------------------------ */

/* Parse "tcp,NAME=VALUE" into a config of defaults. */
static int apply(const char *options, struct config *config, char why[512])
{
	char text[512];
	struct spec spec;
	int error;

	snprintf(text, sizeof(text), "tcp,%s", options);
	assert_int_equal(spec_parse(text, &spec, why, 512), 0);
	memset(config, 0xff, sizeof(*config)); /* defaults don't rely on zeros */
	options_default(table, config);
	error = options_apply(table, &spec, config, why, 512);
	if (!error)
		assert_true(spec.options[0].taken);
	spec_free(&spec);
	return error;
}

static void defaults(void **state)
{
	struct config config;

	memset(&config, 0xff, sizeof(config));
	options_default(table, &config);
	assert_true(config.streams == HAUL_OPTION_AUTO);
	assert_int_equal(config.buffer, 4 << 20);
	assert_true(config.zerocopy);
	assert_int_equal(config.congestion, 1);
	assert_null(config.interface);
	assert_string_equal(config.motto, "a,b");
	assert_int_equal(config.ports.low, 0);
	assert_int_equal(config.ports.high, 0);
	options_free(table, &config);
	assert_null(config.motto);
	options_free(table, &config);
}

static void takes(void **state)
{
	struct config config;
	char why[512];

	assert_int_equal(apply("streams=64,zerocopy=no,congestion=cubic,interface=eth0,motto={x,y},"
			       "ports=1024-65535,buffer=64KiB",
			       &config, why),
			 0);
	assert_int_equal(config.streams, 64);
	assert_int_equal(config.buffer, 65536);
	assert_false(config.zerocopy);
	assert_int_equal(config.congestion, 0);
	assert_string_equal(config.interface, "eth0");
	assert_string_equal(config.motto, "x,y");
	assert_int_equal(config.ports.low, 1024);
	assert_int_equal(config.ports.high, 65535);
	options_free(table, &config);
	assert_int_equal(apply("buffer=1GiB,motto=,ports=", &config, why), 0);
	assert_int_equal(config.buffer, 1 << 30);
	assert_null(config.motto);
	options_free(table, &config);
	assert_int_equal(apply("buffer=0004096,ports=2000-2000", &config, why), 0);
	assert_int_equal(config.buffer, 4096);
	options_free(table, &config);
}

static void bad_values(void **state)
{
	static const char *const number[] = {"0",
					     "65",
					     "-1",
					     "+1",
					     " 1",
					     "1 ",
					     "1.5",
					     "0x10",
					     "",
					     "x",
					     "AUTO",
					     "1KiB",
					     "18446744073709551615",
					     "18446744073709551616",
					     "99999999999999999999999"};
	static const char *const size[] = {"4095",
					   "4KB",
					   "4k",
					   "4kib",
					   "4 KiB",
					   "KiB",
					   "2GiB",
					   "auto",
					   "1073741825",
					   "17179869184GiB",
					   "99999999999999999999",
					   ""};
	static const char *const on[] = {"YES", "true", "1", "", "yes "};
	static const char *const choice[] = {"", "Cubic", "cub", "cubicc", "vegas"};
	static const char *const range[] = {
		"5000",      "5000-",          "-5000",       "1023-5000", "5000-65536",
		"5001-5000", "5000-6000-7000", "5000 - 6000", "a-b",       "0-0"};
	static const struct {
		const char *name;
		const char *const *values;
		size_t count;
		const char *valid;
	} cases[] = {
		{"streams", number, COUNT(number), "1 to 64, or auto"},
		{"buffer", size, COUNT(size), "4KiB to 1GiB (bytes, or with KiB, MiB, GiB)"},
		{"zerocopy", on, COUNT(on), "yes or no"},
		{"congestion", choice, COUNT(choice), "cubic, bbr, reno"},
		{"ports", range, COUNT(range), "LOW-HIGH within 1024-65535"},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		for (size_t j = 0; j < cases[i].count; j++) {
			struct config config;
			char option[128], why[512] = "";

			if (i == 4 && !cases[i].values[j][0])
				continue;
			snprintf(option, sizeof(option), "%s=%s", cases[i].name,
				 cases[i].values[j]);
			if (apply(option, &config, why) != -EINVAL)
				fail_msg("%s was accepted", option);
			assert_contains(why, option);
			assert_contains(why, cases[i].valid);
			options_free(table, &config);
		}
	}
}

/* The number that "auto" is stored as can't be given as a number. */
static void auto_is_no_number(void **state)
{
	static const struct haul_option wide[] = {
		{{"n", "auto", "", ""}, HAUL_OPTION_NUMBER, 0, 0, UINT64_MAX, true},
		{{"m", "0", "", ""}, HAUL_OPTION_NUMBER, 8, 0, UINT64_MAX},
		{{NULL}},
	};
	uint64_t config[2];
	struct spec spec;
	char why[512];

	options_default(wide, config);
	assert_int_equal(spec_parse("t,n=18446744073709551615", &spec, why, sizeof(why)), 0);
	assert_int_equal(options_apply(wide, &spec, config, why, sizeof(why)), -EINVAL);
	spec_free(&spec);
	assert_int_equal(spec_parse("t,n=auto,m=18446744073709551615", &spec, why, sizeof(why)), 0);
	assert_int_equal(options_apply(wide, &spec, config, why, sizeof(why)), 0);
	assert_true(config[0] == HAUL_OPTION_AUTO && config[1] == UINT64_MAX);
	spec_free(&spec);
}

static void reasons_are_cut_off(void **state)
{
	char why[512];
	struct config config;
	struct spec spec;

	options_default(table, &config);
	assert_int_equal(spec_parse("tcp,streams=0", &spec, why, sizeof(why)), 0);
	for (size_t room = 0; room < 100; room++) {
		memset(why, '#', sizeof(why));
		assert_int_equal(options_apply(table, &spec, &config, why, room), -EINVAL);
		assert_int_equal(why[room], '#');
		if (room)
			assert_true(strlen(why) < room);
	}
	assert_int_equal(options_apply(table, &spec, &config, NULL, 0), -EINVAL);
	spec_free(&spec);
	options_free(table, &config);
}

/* ---- Options that nobody knows ----------------------------------------- */

static void unknown(const char *text, const char *alike)
{
	struct config config;
	uint64_t other = 0;
	struct spec spec;
	char why[512] = "";

	options_default(table, &config);
	assert_int_equal(spec_parse(text, &spec, why, sizeof(why)), 0);
	assert_int_equal(options_apply(table, &spec, &config, why, sizeof(why)), 0);
	assert_int_equal(options_apply(other_table, &spec, &other, why, sizeof(why)), 0);
	assert_int_equal(options_all_taken(&spec, tables, why, sizeof(why)), -EINVAL);
	assert_int_equal(options_all_taken(&spec, tables, NULL, 0), -EINVAL);
	if (alike)
		assert_contains(why, alike);
	else
		assert_null(strstr(why, "did you mean"));
	assert_contains(why, "tcp has no option");
	assert_contains(why, "valid are streams, buffer, zerocopy, congestion, interface, motto, "
			     "ports, peer_ms");
	spec_free(&spec);
	options_free(table, &config);
}

static void unknown_options(void **state)
{
	char text[400] = "tcp,";

	unknown("tcp,stream=8", "option stream (did you mean streams?)");
	unknown("tcp,streams=8,bufer=1MiB", "option bufer (did you mean buffer?)");
	unknown("tcp,peerms=8", "did you mean peer_ms?");
	unknown("tcp,congestoin=bbr", "did you mean congestion?");
	unknown("tcp,port=1-2", "did you mean ports?");
	unknown("tcp,Streams=8", "did you mean streams?");
	unknown("tcp,xyz=1", NULL);
	unknown("tcp,s=1", NULL);
	unknown("tcp,newports=1", NULL);
	unknown("tcp,portsnew=1", NULL);
	memset(text + 4, 'n', 300);
	memcpy(text + 304, "=1", 3);
	unknown(text, NULL);
}

static void all_taken(void **state)
{
	struct spec spec;
	struct config config;
	uint64_t other;
	char why[512];

	options_default(table, &config);
	assert_int_equal(spec_parse("tcp,peer_ms=5,streams=2", &spec, why, sizeof(why)), 0);
	assert_int_equal(options_apply(table, &spec, &config, why, sizeof(why)), 0);
	assert_int_equal(options_all_taken(&spec, tables, why, sizeof(why)), -EINVAL);
	assert_int_equal(options_apply(other_table, &spec, &other, why, sizeof(why)), 0);
	assert_int_equal(other, 5);
	assert_int_equal(options_all_taken(&spec, tables, why, sizeof(why)), 0);
	spec_free(&spec);
	options_free(table, &config);
}

/* ---- Printing ---------------------------------------------------------- */

static void prints(void **state)
{
	struct config config;
	char text[512] = "tcp", why[512];

	options_default(table, &config);
	options_print(table, &config, text, sizeof(text));
	assert_string_equal(text, "tcp,streams=auto,buffer=4MiB,zerocopy=yes,congestion=bbr,"
				  "interface=,motto={a,b},ports=");
	options_free(table, &config);
	assert_int_equal(apply("streams=3,buffer=5000,ports=2000-3000,motto={{x}}", &config, why),
			 0);
	strcpy(text, "");
	options_print(table, &config, text, sizeof(text));
	assert_string_equal(text, ",streams=3,buffer=5000,zerocopy=yes,congestion=bbr,"
				  "interface=,motto={{x}},ports=2000-3000");
	options_free(table, &config);
}

/* What is printed means the same when it is read again. */
static void print_and_parse(void **state)
{
	static const char *const options[] = {
		"streams=1", "buffer=1048577", "buffer=1MiB", "buffer=1025KiB", "motto={}",
		"motto=x{y", "motto={x,{y}}",  "motto={{}}",  "interface={,}",  "ports=1024-1024"};

	for (size_t i = 0; i < COUNT(options); i++) {
		struct config config;
		char first[512] = "", second[512] = "", why[512];

		assert_int_equal(apply(options[i], &config, why), 0);
		options_print(table, &config, first, sizeof(first));
		options_free(table, &config);
		assert_int_equal(apply(first + 1, &config, why), 0);
		options_print(table, &config, second, sizeof(second));
		options_free(table, &config);
		assert_string_equal(first, second);
	}
}

static void print_in_small_rooms(void **state)
{
	struct config config;
	char text[512];

	options_default(table, &config);
	for (size_t room = 0; room < 120; room++) {
		memset(text, '#', sizeof(text));
		text[0] = '\0';
		options_print(table, &config, text, room);
		assert_int_equal(text[room ? room : 1], '#');
		assert_true(!room || strnlen(text, room) < room);
	}
	options_free(table, &config);
}

/* ---- Without memory ---------------------------------------------------- */

static void parse_without_memory(void **state)
{
	struct spec spec;
	char why[512];
	int failures = 0, error;

	do {
		memory_left = failures;
		error = spec_parse("tcp,a=1,b=2", &spec, why, sizeof(why));
		memory_left = -1;
		if (error) {
			assert_int_equal(error, -ENOMEM);
			assert_contains(why, "memory");
			assert_null(spec.transport);
			failures++;
		}
	} while (error);
	assert_int_equal(failures, 7); /* the name; name, value and row of two options */
	spec_free(&spec);
}

static void values_without_memory(void **state)
{
	struct config config;
	struct spec spec;
	char why[512];

	memory_left = 0;
	options_default(table, &config);
	memory_left = -1;
	assert_null(config.motto);
	assert_int_equal(spec_parse("tcp,motto=x", &spec, why, sizeof(why)), 0);
	memory_left = 0;
	assert_int_equal(options_apply(table, &spec, &config, why, sizeof(why)), -ENOMEM);
	memory_left = -1;
	assert_null(config.motto);
	spec_free(&spec);
	options_free(table, &config);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cuts),
		cmocka_unit_test(refuses),
		cmocka_unit_test(longest),
		cmocka_unit_test(errors_are_one_line),
		cmocka_unit_test(defaults),
		cmocka_unit_test(takes),
		cmocka_unit_test(bad_values),
		cmocka_unit_test(auto_is_no_number),
		cmocka_unit_test(reasons_are_cut_off),
		cmocka_unit_test(unknown_options),
		cmocka_unit_test(all_taken),
		cmocka_unit_test(prints),
		cmocka_unit_test(print_and_parse),
		cmocka_unit_test(print_in_small_rooms),
		cmocka_unit_test(parse_without_memory),
		cmocka_unit_test(values_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
