/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory, limits and choices of the host: that nothing is copied, that regions are registered and
 * given back, and what is said where something is missing. Run it as root, in a machine of its own.
 *
 *   test_verbs_host SPEC LISTEN_HOST [TEST...]
 */
#include <errno.h>
#include <glob.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#define MIB ((size_t)1 << 20)

/* ---- No copies --------------------------------------------------------- */

/* Memory that whoever touches it dies of; an adapter does not notice. */
static void forbid(const struct block *block, bool forbidden)
{
	assert_int_equal(
		mprotect(block->data, block->bytes, forbidden ? PROT_NONE : PROT_READ | PROT_WRITE),
		0);
}

static void mapped_block(struct block *block, size_t bytes)
{
	memset(block, 0, sizeof(*block));
	block->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(block->data, MAP_FAILED);
	block->bytes = bytes;
}

static void untouched(struct pair *pair, size_t bytes)
{
	size_t pages = (bytes + 4095) & ~(size_t)4095;
	struct block source, target;
	struct extra with_source = {0}, with_target = {0};
	struct entry *sent, *received;
	int64_t shape[] = {(int64_t)bytes};
	DLTensor from, to;

	mapped_block(&source, pages);
	mapped_block(&target, pages);
	pattern_fill(source.data, bytes, bytes, 0);
	from = haul_tensor(source.data, type_u8, 1, shape);
	to = haul_tensor(target.data, type_u8, 1, shape);
	assert_int_equal(haul_region_register(pair->b->context, source.data, pages, HAUL_USE_SEND,
					      &with_source.region),
			 0);
	assert_int_equal(haul_region_register(pair->a->context, target.data, pages, HAUL_USE_RECV,
					      &with_target.region),
			 0);
	forbid(&source, true);
	forbid(&target, true);
	received = post_with(&pair->up, HAUL_RECEIVED, haul_key("k"), &to, &with_target);
	sent = post_with(&pair->up, HAUL_SENT, haul_key("k"), &from, &with_source);
	wait_result(received, 0);
	wait_result(sent, 0);
	forbid(&source, false);
	forbid(&target, false);
	assert_memory_equal(source.data, target.data, bytes);
	assert_int_equal(haul_region_release(with_source.region), 0);
	assert_int_equal(haul_region_release(with_target.region), 0);
	munmap(source.data, pages);
	munmap(target.data, pages);
}

/* No byte above the limit of small tensors passes through the library, on neither side. */
static void test_nobody_touches_a_tensor(void **state)
{
	struct world *world = *state;
	struct pair pair;

	pair_open(world, "small=512", &pair);
	untouched(&pair, 513);
	untouched(&pair, 4096);
	untouched(&pair, 100001);
	untouched(&pair, 5 * MIB + 7);
}

static void test_nobody_touches_a_small_tensor_with_small_0(void **state)
{
	struct world *world = *state;
	struct pair pair;

	pair_open(world, "small=0", &pair);
	untouched(&pair, 1);
	untouched(&pair, 512);
}

/* ---- Regions ----------------------------------------------------------- */

/* F2: memory over what one registration holds is registered in several; each byte finds its place.
 */
static void test_f2_regions_in_pieces(void **state)
{
	struct world *world = *state;
	struct pair pair;
	struct entry *sent, *received;
	struct extra extra = {0};
	struct block *source = block_new(world, MIB), *target = block_new(world, MIB);
	struct block part;

	pair_open(world, "region_piece=64KiB,piece=16KiB", &pair);
	assert_int_equal(haul_region_register(pair.a->context, target->data, MIB, HAUL_USE_RECV,
					      &extra.region),
			 0);
	block_fill(source, 1);
	/* Across the edges of registrations, from a place that is on none. */
	part = *target;
	part.data += 12345;
	part.bytes = 500000;
	part.shape[0] = (int64_t)part.bytes;
	part.tensor = haul_tensor(part.data, type_u8, 1, part.shape);
	source->shape[0] = (int64_t)part.bytes;
	received = post_with(&pair.up, HAUL_RECEIVED, haul_key("k"), &part.tensor, &extra);
	sent = post_send(&pair.up, haul_key("k"), &source->tensor);
	wait_result(received, 0);
	wait_result(sent, 0);
	assert_memory_equal(source->data, part.data, part.bytes);
	/* More registrations than READY has room for. */
	assert_null(try_post(pair.a, pair.up.in, HAUL_RECEIVED, haul_key("k"), &target->tensor,
			     &extra, &(int){0}));
	assert_non_null(strstr(haul_detail(pair.a->context), "region_piece"));
	check_alive(&pair);
}

/* F4: registering and releasing leaves nothing behind. */
static void test_f4_register_and_release(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, NULL);
	struct block *block = block_new(world, 64 << 10);
	haul_region *region;
	uint64_t before = 0;
	unsigned count = rounds(20000, 100000);

	for (unsigned i = 0; i < count; i++) {
		assert_int_equal(haul_region_register(side->context, block->data, block->bytes,
						      HAUL_USE_SEND | HAUL_USE_RECV, &region),
				 0);
		assert_int_equal(haul_region_release(region), 0);
		if (i == count / 10)
			before = resident_bytes(0);
	}
	if (!sanitized())
		assert_true(resident_bytes(0) < before + MIB);
}

static int register_memory(haul_context *context)
{
	static char memory[MIB];
	haul_region *region;

	return haul_region_register(context, memory, MIB, HAUL_USE_RECV, &region);
}

/* Nobody has to listen: it is this side that has no memory. */
static int connect_to_nobody(haul_context *context)
{
	haul_endpoint *endpoint;
	char where[128];

	snprintf(where, sizeof(where), "%s:1", settings.listen_host);
	return haul_connect_wait(context, where, 10000, &endpoint);
}

/* F1, in a process of its own: without the right to lock what it likes, and 64 KiB to lock. */
static int start_with_little(int (*start)(haul_context *context))
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {{0}};
	struct rlimit limit = {64 << 10, 64 << 10};
	haul_context *context;
	int error;

	/* Before it opens anything: the kernel refuses those whose rights change later. */
	if (setrlimit(RLIMIT_MEMLOCK, &limit) || syscall(SYS_capset, &header, none))
		return 2;
	if (haul_open(settings.transport, &context))
		return 3;
	error = start(context);
	fprintf(stderr, "%s: %s\n", haul_strerror(error), haul_detail(context));
	if (error != -ENOMEM)
		return 4;
	if (!strstr(haul_detail(context), "RLIMIT_MEMLOCK") ||
	    !strstr(haul_detail(context), "64 KiB") ||
	    !strstr(haul_detail(context), "/etc/security/limits.conf"))
		return 5;
	haul_close(context);
	return 0;
}

static void fails_with_little(int (*start)(haul_context *context))
{
	pid_t child = fork();
	int status;

	assert_true(child >= 0);
	if (child == 0)
		_exit(start_with_little(start));
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_f1_locked_memory(void **state)
{
	fails_with_little(register_memory);
}

static void test_f1_locked_memory_of_a_connection(void **state)
{
	fails_with_little(connect_to_nobody);
}

static void test_memory_that_is_none(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, NULL);
	void *hole = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *constant = mmap(NULL, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	haul_region *region;

	munmap(hole, MIB);
	assert_int_equal(haul_region_register(side->context, hole, MIB, HAUL_USE_SEND, &region),
			 -EFAULT);
	assert_non_null(strstr(haul_detail(side->context), "not all of it is mapped"));
	/* Memory that may only be read can be sent from. */
	assert_int_equal(haul_region_register(side->context, constant, MIB, HAUL_USE_RECV, &region),
			 -EFAULT);
	assert_int_equal(haul_region_register(side->context, constant, MIB, HAUL_USE_SEND, &region),
			 0);
	assert_int_equal(haul_region_release(region), 0);
	munmap(constant, MIB);
}

static void test_dmabufs_that_are_none(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, "small=0"), *small = side_open(world, NULL);
	struct block *block = block_new(world, MIB);
	haul_region *region;
	int pipe_ends[2], error;

	assert_int_equal(
		haul_region_dmabuf(side->context, -1, 0, block->data, MIB, HAUL_USE_RECV, &region),
		-EBADF);
	assert_int_equal(
		haul_region_dmabuf(small->context, 0, 0, block->data, MIB, HAUL_USE_SEND, &region),
		-EINVAL);
	assert_non_null(strstr(haul_detail(small->context), "small=0"));
	assert_int_equal(pipe(pipe_ends), 0);
	/* Either the device can't, or the descriptor is none. */
	error = haul_region_dmabuf(side->context, pipe_ends[0], 0, block->data, MIB, HAUL_USE_RECV,
				   &region);
	assert_true(error == -EOPNOTSUPP || error == -EINVAL || error == -EBADF);
	assert_non_null(strstr(haul_detail(side->context), "device"));
	close(pipe_ends[0]);
	close(pipe_ends[1]);
}

/* ---- Choices ----------------------------------------------------------- */

static void fails(const char *spec, int error, const char *word)
{
	haul_context *context;
	int found = haul_open(spec, &context);

	if (found != error || !strstr(haul_detail(NULL), word))
		fail_msg("%s: %d (%s), expected %d and \"%s\"", spec, found, haul_detail(NULL),
			 error, word);
}

static void test_choices_that_are_none(void **state)
{
	fails("verbs,device=mlx9_9", -ENODEV, "the devices here are");
	fails("verbs,bind=203.0.113.7", -EADDRNOTAVAIL, "no RDMA device of this host has");
	fails("verbs,bind=elsewhere", -EINVAL, "numeric address");
	fails("verbs,gid=200", -EADDRNOTAVAIL, "the GIDs of device");
	fails("verbs,windows=on,qps=2", -EINVAL, "windows=on and qps=2");
	fails("verbs,mtu=1000", -EINVAL, "1024");
	fails("verbs,small=961", -EINVAL, "960");
	fails("verbs,qps=17", -EINVAL, "16");
}

/* True when a context of the spec can listen; else it says that the device has not that address. */
static bool listens(const char *spec)
{
	haul_context *context;
	haul_listener *listener;
	char where[128];
	int error;

	assert_int_equal(haul_open(spec, &context), 0);
	snprintf(where, sizeof(where), "%s:0", settings.listen_host);
	error = haul_listen(context, where, NULL, &listener);
	if (error) {
		assert_int_equal(error, -EADDRNOTAVAIL);
		assert_non_null(strstr(haul_detail(context), "does not have that address"));
	} else {
		haul_listener_close(listener);
	}
	haul_close(context);
	return error == 0;
}

/* rdma_cm would listen on all addresses instead, for everyone on the network. */
static void test_loopback_is_no_address(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, NULL);
	haul_listener *listener;
	haul_endpoint *endpoint;

	assert_int_equal(haul_listen(side->context, "127.0.0.1:0", NULL, &listener),
			 -EADDRNOTAVAIL);
	assert_non_null(strstr(haul_detail(side->context), "no RDMA device of this host has"));
	assert_int_equal(haul_listen(side->context, "[::1]:0", NULL, &listener), -EADDRNOTAVAIL);
	assert_int_equal(haul_connect_wait(side->context, "127.0.0.1:1", 10000, &endpoint),
			 -EADDRNOTAVAIL);
	assert_non_null(strstr(haul_detail(side->context), "loopback"));
}

/* The port of "*" is taken for each address, and the other way round. */
static void test_ports_that_are_taken(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, NULL);
	haul_listener *every, *other;
	char where[128];
	const char *port;

	assert_int_equal(haul_listen(side->context, "*:0", NULL, &every), 0);
	port = strrchr(haul_listener_address(every), ':');
	snprintf(where, sizeof(where), "*%s", port);
	assert_int_equal(haul_listen(side->context, where, NULL, &other), -EADDRINUSE);
	snprintf(where, sizeof(where), "%s%s", settings.listen_host, port);
	assert_int_equal(haul_listen(side->context, where, NULL, &other), -EADDRINUSE);
	haul_listener_close(every);
	assert_int_equal(haul_listen(side->context, where, NULL, &other), 0);
	haul_listener_close(other);
}

/* An address is one device's: with device= another one's, nobody would ever get through. */
static void test_a_device_without_the_address(void **state)
{
	glob_t found;
	unsigned listening = 0;

	assert_int_equal(glob("/sys/class/infiniband/*", 0, NULL, &found), 0);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		char spec[128], with_bind[300];

		snprintf(spec, sizeof(spec), "verbs,device=%s",
			 strrchr(found.gl_pathv[i], '/') + 1);
		if (listens(spec)) {
			listening++;
			continue;
		}
		snprintf(with_bind, sizeof(with_bind), "%s,bind=%s", spec, settings.listen_host);
		fails(with_bind, -EADDRNOTAVAIL, "give one of them");
	}
	assert_int_equal(listening, 1);
	assert_true(found.gl_pathc > 1);
	globfree(&found);
}

/* What this program is in the test below: as nobody, and with nothing open. */
static int open_as_nobody(const char *spec, const char *path)
{
	haul_context *context;
	int error;

	if (setgid(65534) || setuid(65534))
		return 2;
	error = haul_open(spec, &context);
	if (error == -EACCES && strstr(haul_detail(NULL), path))
		return 0;
	fprintf(stderr, "%s: %d (%s)\n", path, error, haul_detail(NULL));
	return 3;
}

/* The files of adapters and connections, closed to this user: the error names them. */
static void test_files_that_may_not_be_opened(void **state)
{
	static const char *const paths[] = {"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs"};

	for (int i = 0; i < 2; i++) {
		char close_them[80], open_them[80];
		int status;
		pid_t child;

		snprintf(close_them, sizeof(close_them), "chmod 600 %s*", paths[i]);
		snprintf(open_them, sizeof(open_them), "chmod 666 %s*", paths[i]);
		assert_int_equal(system(close_them), 0);
		child = fork();
		assert_true(child >= 0);
		if (child == 0) {
			execl("/proc/self/exe", "test_verbs_host", "as-nobody", settings.transport,
			      paths[i], NULL);
			_exit(127);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(system(open_them), 0);
		assert_int_equal(status, 0);
	}
}

/* F6: GID 0 of a RoCE device is made of its MAC address: no address of an IPv4 peer. */
static void test_f6_a_gid_without_an_address(void **state)
{
	struct world *world = *state;
	struct side *side = side_open(world, NULL);
	haul_context *context;
	char text[4096];
	int error;

	assert_int_equal(haul_transport_describe("verbs", NULL, text, sizeof(text)), 0);
	if (!strstr(text, "0 fe80::"))
		skip_because("GID 0 of this device is an address of its own");
	side_listen(side);
	error = haul_open("verbs,gid=0", &context);
	if (!error) {
		error = haul_connect(context, haul_listener_address(side->listener), NULL);
		snprintf(text, sizeof(text), "%s", haul_detail(context));
		haul_close(context);
	} else {
		snprintf(text, sizeof(text), "%s", haul_detail(NULL));
	}
	assert_int_equal(error, -EADDRNOTAVAIL);
	assert_non_null(strstr(text, "fe80::"));
	assert_non_null(strstr(text, "(RoCE v2)"));
}

/* What haul-info prints: each device, and the one that leads to the peer. */
static void test_description(void **state)
{
	char text[16384];

	assert_int_equal(haul_transport_describe("verbs", settings.listen_host, text, sizeof(text)),
			 0);
	assert_non_null(strstr(text, "device "));
	assert_non_null(strstr(text, "port 1: "));
	assert_non_null(strstr(text, "GIDs: "));
	assert_non_null(strstr(text, settings.listen_host));
	assert_int_equal(haul_transport_describe("verbs", "203.0.113.7", text, sizeof(text)), 0);
	assert_non_null(strstr(text, "no device leads there"));
}

/* Several queue pairs, and none of the extras. */
static void test_queue_pairs(void **state)
{
	struct world *world = *state;
	struct block *source = block_new(world, 6 * MIB), *target = block_new(world, 6 * MIB);
	struct haul_statistics statistics = {.size = sizeof(statistics)};
	struct entry *sent, *received;
	struct pair pair;

	pair_open(world, "windows=off,qps=4,piece=256KiB", &pair);
	for (unsigned i = 0; i < 5; i++) {
		block_fill(source, i);
		received = post_recv(&pair.up, haul_key("k"), &target->tensor);
		sent = post_send(&pair.up, haul_key("k"), &source->tensor);
		wait_result(received, 0);
		wait_result(sent, 0);
		block_check(target, i);
	}
	assert_int_equal(haul_endpoint_statistics(pair.up.out, &statistics), 0);
	assert_int_equal(statistics.streams, 5); /* and the control channel */
	assert_int_equal(statistics.chunks_sent, 5 * 24);
	check_alive(&pair);
}

/* ---- Receiver not ready ------------------------------------------------- */

/* How often a device here had no receive for what came, or was told so. */
static unsigned long long not_ready(void)
{
	unsigned long long sum = 0, value;
	glob_t found;

	if (glob("/sys/class/infiniband/*/ports/1/hw_counters/*_rnr_err", 0, NULL, &found))
		skip_because("the devices here don't count receivers that are not ready");
	for (size_t i = 0; i < found.gl_pathc; i++) {
		FILE *file = fopen(found.gl_pathv[i], "re");

		assert_non_null(file);
		assert_int_equal(fscanf(file, "%llu", &value), 1);
		fclose(file);
		sum += value;
	}
	globfree(&found);
	return sum;
}

/* Tensors and messages wait while the receiver is away, posts late, and has more to take than its
 * rings hold: a receive of the adapter's is there for each packet all the same. */
static void test_f10_receives_that_are_posted_late(void **state)
{
	struct world *world = *state;
	unsigned count = rounds(300, 3000);
	struct block *small = block_new(world, 64), *large = block_new(world, 100000);
	struct block *into_small = block_new(world, 64), *into = block_new(world, 100000);
	unsigned long long before;
	struct pair pair;

	pair_open(world, "progress=caller", &pair);
	check_alive(&pair);
	before = not_ready();
	block_fill(large, 1);
	pair.a->asleep = true;
	for (unsigned i = 0; i < count; i++)
		post_send(&pair.up, haul_key("small"), &small->tensor);
	for (unsigned i = 0; i < count / 10; i++)
		post_send(&pair.up, haul_key("large"), &large->tensor);
	world_run_for(world, 50);
	for (unsigned i = 0; i < count; i++)
		post_recv(&pair.up, haul_key("small"), &into_small->tensor);
	for (unsigned i = 0; i < count / 10; i++)
		post_recv(&pair.up, haul_key("large"), &into->tensor);
	world_run_for(world, 50);
	pair.a->asleep = false;
	wait_all(world);
	block_check(into, 1);
	assert_int_equal(not_ready(), before);
	check_alive(&pair);
}

int main(int count, char **words)
{
	static const struct CMUnitTest tests[] = {
		WORLD_TEST(test_nobody_touches_a_tensor),
		WORLD_TEST(test_nobody_touches_a_small_tensor_with_small_0),
		WORLD_TEST(test_f2_regions_in_pieces),
		WORLD_TEST(test_f4_register_and_release),
		WORLD_TEST(test_f1_locked_memory),
		WORLD_TEST(test_f1_locked_memory_of_a_connection),
		WORLD_TEST(test_memory_that_is_none),
		WORLD_TEST(test_dmabufs_that_are_none),
		WORLD_TEST(test_choices_that_are_none),
		WORLD_TEST(test_loopback_is_no_address),
		WORLD_TEST(test_ports_that_are_taken),
		WORLD_TEST(test_a_device_without_the_address),
		WORLD_TEST(test_files_that_may_not_be_opened),
		WORLD_TEST(test_f6_a_gid_without_an_address),
		WORLD_TEST(test_description),
		WORLD_TEST(test_queue_pairs),
		WORLD_TEST(test_f10_receives_that_are_posted_late),
	};

	if (count == 4 && !strcmp(words[1], "as-nobody"))
		return open_as_nobody(words[2], words[3]);
	if (count < 3) {
		fprintf(stderr, "usage: %s SPEC LISTEN_HOST [TEST...]\n", words[0]);
		return 2;
	}
	settings.listen_host = words[2];
	return suite_main(words[1], tests, sizeof(tests) / sizeof(tests[0]), count - 2, words + 2);
}
