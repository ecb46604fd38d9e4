/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/backends.h"
#include "engine/options.h"

/* In the place of the real ones: only the table and the loader are tested here. */
extern const struct haul_backend haul_backend_tcp;

static const struct haul_option tcp_options[] = {
	{{"streams", "auto", "1..64 or auto", "sockets"}, HAUL_OPTION_NUMBER, 0, 1, 64, true},
	{{NULL}},
};
static const struct haul_context_ops tcp_context;
const struct haul_backend haul_backend_tcp = {.version = HAUL_BACKEND_VERSION,
					      .name = "tcp",
					      .options = tcp_options,
					      .context = &tcp_context};

const struct haul_option engine_options[] = {
	{{"progress", "caller", "caller or thread", "who moves bytes"}, HAUL_OPTION_TEXT, 0},
	{{"auth", "", "psk:FILE", "a shared key"}, HAUL_OPTION_TEXT, 8},
	{{NULL}},
};

static int set_folder(void **state)
{
	return setenv("HAUL_MODULE_PATH", UNIT_MODULE_FOLDER, 1);
}

static int unset_folder(void **state)
{
	return unsetenv("HAUL_MODULE_PATH");
}

static void assert_missing(const char *name, int expected, const char *first, const char *second)
{
	char why[512] = "";
	int error = 0;

	assert_null(backends_find(name, &error, why, sizeof(why)));
	assert_int_equal(error, expected);
	assert_contains(why, first);
	assert_contains(why, second);
	assert_null(backends_find(name, &error, NULL, 0));
	assert_int_equal(error, expected);
	assert_int_equal(haul_transport_probe(name, why, sizeof(why)), expected);
	assert_contains(why, first);
	assert_null(haul_transport_option(name, 0));
}

static void built_in(void **state)
{
	int error = 1;

	assert_ptr_equal(backends_find("tcp", &error, NULL, 0), &haul_backend_tcp);
	assert_int_equal(error, 0);
	assert_ptr_equal(backends_find("auto", &error, NULL, 0), &haul_backend_tcp);
	assert_int_equal(error, 0);
}

static void names(void **state)
{
	assert_string_equal(haul_transport_name(0), "tcp");
	assert_string_equal(haul_transport_name(1), "grpc");
	assert_string_equal(haul_transport_name(2), "verbs");
	assert_string_equal(haul_transport_name(3), "dpdk");
	assert_null(haul_transport_name(4));
	assert_null(haul_transport_name(UINT32_MAX));
}

static void known_but_not_installed(void **state)
{
	assert_missing("verbs", -ENOSYS, "libtensorhaul-verbs.so", "librdmacm-dev");
	assert_missing("dpdk", -ENOSYS, "libtensorhaul-dpdk.so", "libdpdk-dev");
	assert_missing("grpc", -ENOSYS, "/nowhere/tensorhaul", "HAUL_MODULE_PATH");
}

static void unknown_names(void **state)
{
	static const char *const wrong[] = {
		"TCP",     "tcp ", "../good", "a/b",
		"good.so", "udp",  "x\n",     "abcdefghijklmnopqrstuvwxyz0123456789"};

	for (size_t i = 0; i < COUNT(wrong); i++)
		assert_missing(wrong[i], -EINVAL, "there is no transport",
			       "tcp, grpc, verbs, dpdk");
	assert_missing("udp", -EINVAL, "\"udp\"", "auto");
	assert_missing(NULL, -EINVAL, "\"\"", "tcp, grpc, verbs, dpdk");
	assert_int_equal(haul_transport_probe("", NULL, 0), -EINVAL);
}

/* The name is a part of a path, but can't lead out of the folder. */
static void names_that_are_paths(void **state)
{
	const char *stepping_stone = UNIT_MODULE_FOLDER "/libtensorhaul-x";

	assert_true(!mkdir(stepping_stone, 0700) || errno == EEXIST);
	assert_missing("x/../libtensorhaul-version", -EINVAL, "there is no transport", "tcp, grpc");
	rmdir(stepping_stone);
}

static void module_is_loaded_once(void **state)
{
	char why[512] = "", reason[128];
	int error;
	const struct haul_backend *backend = backends_find("good", &error, why, sizeof(why));

	if (!backend)
		fail_msg("%s", why);
	assert_int_equal(error, 0);
	assert_string_equal(backend->name, "good");
	/* Kept: the folder is not needed any more. */
	unsetenv("HAUL_MODULE_PATH");
	assert_ptr_equal(backends_find("good", &error, why, sizeof(why)), backend);
	assert_int_equal(haul_transport_probe("good", reason, sizeof(reason)), -ENODEV);
	assert_string_equal(reason, "no device of this kind");
}

static void name_with_a_hyphen(void **state)
{
	char why[512] = "";
	int error;

	if (!backends_find("two-words", &error, why, sizeof(why)))
		fail_msg("%s", why);
}

static void modules_that_are_wrong(void **state)
{
	assert_missing("version", -ENOSYS, "version 2", "has 1");
	assert_missing("name", -ENOSYS, "libtensorhaul-name.so", "no complete backend");
	assert_missing("hollow", -ENOSYS, "libtensorhaul-hollow.so", "no complete backend");
	assert_missing("symbol", -ENOSYS, "haul_backend_symbol", "no tensorhaul module");
}

static void file_that_is_no_library(void **state)
{
	char folder[] = "/tmp/tensorhaul-backends-XXXXXX", path[128];
	int fd;

	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/libtensorhaul-verbs.so", folder);
	fd = open(path, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(fd, "text", 4), 4);
	close(fd);
	setenv("HAUL_MODULE_PATH", folder, 1);
	assert_missing("verbs", -ENOSYS, path, "can't be loaded");
	unlink(path);
	rmdir(folder);
}

static void several_folders(void **state)
{
	char folders[5000], why[512];
	int error;

	snprintf(folders, sizeof(folders), ":/nowhere::%s:/nowhere/else:", UNIT_MODULE_FOLDER);
	setenv("HAUL_MODULE_PATH", folders, 1);
	assert_missing("version", -ENOSYS, "version 2", "has 1"); /* found, in the second */
	memset(folders, 'f', sizeof(folders) - 1);
	folders[sizeof(folders) - 1] = '\0';
	setenv("HAUL_MODULE_PATH", folders, 1);
	assert_null(backends_find("udp", &error, why, sizeof(why)));
	assert_int_equal(error, -EINVAL);
	assert_missing("dpdk", -ENOSYS, "libtensorhaul-dpdk.so", "libdpdk-dev");
}

static void options(void **state)
{
	assert_string_equal(haul_transport_option("", 0)->name, "progress");
	assert_string_equal(haul_transport_option("", 1)->value, "");
	assert_null(haul_transport_option("", 2));
	assert_null(haul_transport_option("", UINT32_MAX));
	assert_string_equal(haul_transport_option("tcp", 0)->range, "1..64 or auto");
	assert_null(haul_transport_option("tcp", 1));
	assert_string_equal(haul_transport_option("good", 1)->name, "second");
	assert_null(haul_transport_option("good", 2));
	assert_null(haul_transport_option("udp", 0));
	assert_null(haul_transport_option(NULL, 0));
}

static void probe_without_an_op(void **state)
{
	char reason[8] = "#######";

	assert_int_equal(haul_transport_probe("tcp", reason, sizeof(reason)), 0);
	assert_string_equal(reason, "");
	assert_int_equal(haul_transport_probe("tcp", NULL, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(built_in, set_folder),
		cmocka_unit_test_setup(names, set_folder),
		cmocka_unit_test_setup(known_but_not_installed, unset_folder),
		cmocka_unit_test_setup(known_but_not_installed, set_folder),
		cmocka_unit_test_setup(unknown_names, set_folder),
		cmocka_unit_test_setup(names_that_are_paths, set_folder),
		cmocka_unit_test_setup(module_is_loaded_once, set_folder),
		cmocka_unit_test_setup(name_with_a_hyphen, set_folder),
		cmocka_unit_test_setup(modules_that_are_wrong, set_folder),
		cmocka_unit_test_setup(file_that_is_no_library, set_folder),
		cmocka_unit_test_setup(several_folders, set_folder),
		cmocka_unit_test_setup(options, set_folder),
		cmocka_unit_test_setup(probe_without_an_op, set_folder),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
