/* SPDX-License-Identifier: Apache-2.0 */
/* Settings, time, the process's own figures, and tensors with a pattern. */
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif
#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZED 1
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif
#ifndef THREAD_SANITIZED
#define THREAD_SANITIZED 0
#endif

struct settings settings = {.transport = "tcp", .listen_host = "127.0.0.1"};

const DLDataType type_u8 = {.code = kDLUInt, .bits = 8, .lanes = 1};

bool sanitized(void)
{
	return SANITIZED;
}

bool thread_sanitized(void)
{
	return THREAD_SANITIZED;
}

unsigned rounds(unsigned small, unsigned full)
{
	unsigned count = settings.full ? full : small;

	if (count < 10)
		return count;
	if (sanitized())
		return count / 5;
	return settings.quarter ? count / 4 : count;
}

void skip_because(const char *reason, ...)
{
	va_list arguments;

	va_start(arguments, reason);
	printf("SKIP: ");
	vprintf(reason, arguments);
	printf("\n");
	va_end(arguments);
	skip();
	abort(); /* not reached */
}

void skip_without_peers(void)
{
	if (settings.in_process)
		skip_because("this transport stays within one process (--in-process)");
}

int death(void)
{
	return settings.dies_silently ? -ETIMEDOUT : -ECONNRESET;
}

uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

uint64_t now_ms(void)
{
	return now_us() / 1000;
}

/* ---- What the process holds -------------------------------------------- */

static int count_names(const char *folder)
{
	DIR *directory = opendir(folder);
	int count = 0;

	if (!directory)
		return -1;
	while (readdir(directory))
		count++;
	closedir(directory);
	return count - 2;
}

int descriptors_open(void)
{
	return count_names("/proc/self/fd") - 1; /* without the one that counts */
}

/* gRPC's timers have threads for the whole process, and gRPC takes one more when it likes to. */
static bool is_of_process(const char *id)
{
	char path[64], name[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%.16s/comm", id);
	file = fopen(path, "re");
	if (file && !fgets(name, sizeof(name), file))
		name[0] = 0;
	if (file)
		fclose(file);
	return !strncmp(name, "grpc_global_tim", strlen("grpc_global_tim"));
}

int threads_running(void)
{
	DIR *directory = opendir("/proc/self/task");
	struct dirent *entry;
	int count = 0;

	if (!directory)
		return -1;
	while ((entry = readdir(directory)))
		count += entry->d_name[0] != '.' && !is_of_process(entry->d_name);
	closedir(directory);
	return count;
}

static void print_thread(const char *id)
{
	static const char *const files[] = {"comm", "wchan", "stack", "stat"};
	char path[64], line[128];

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%.16s/%s", id, files[i]);
		file = fopen(path, "re");
		while (file && fgets(line, sizeof(line), file))
			print_error("%s %s: %s%s", id, files[i], line,
				    strchr(line, '\n') ? "" : "\n");
		if (file)
			fclose(file);
	}
}

int threads_over(int allowed)
{
	/* The kernel still has to end a thread that was joined, which an emulated
	 * processor with other work at hand does in seconds. */
	const uint64_t until = now_ms() + 30000;
	const struct timespec pause = {.tv_nsec = 200000};
	struct dirent *entry;
	DIR *directory;

	while (threads_running() > allowed) {
		if (now_ms() < until) {
			nanosleep(&pause, NULL);
			continue;
		}
		directory = opendir("/proc/self/task");
		while (directory && (entry = readdir(directory)))
			if (entry->d_name[0] != '.')
				print_thread(entry->d_name);
		if (directory)
			closedir(directory);
		return threads_running() - allowed;
	}
	return 0;
}

uint64_t resident_bytes(pid_t pid)
{
	char path[64];
	unsigned long long size, resident = 0;
	FILE *file;

	if (pid)
		snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
	else
		snprintf(path, sizeof(path), "/proc/self/statm");
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fscanf(file, "%llu %llu", &size, &resident) != 2)
		resident = 0;
	fclose(file);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t cpu_us(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

uint64_t memory_available(void)
{
	char line[128];
	unsigned long long kib = 0;
	FILE *file = fopen("/proc/meminfo", "re");

	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	}
	fclose(file);
	return (uint64_t)kib * 1024;
}

/* ---- Randomness -------------------------------------------------------- */

uint64_t random_next(uint64_t *state)
{
	uint64_t word = *state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */

	word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
	return word ^ (word >> 31);
}

unsigned random_below(uint64_t *state, unsigned limit)
{
	return (unsigned)(random_next(state) % limit);
}

uint64_t random_seed(void)
{
	const char *given = getenv("CONFORMANCE_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : now_us() ^ ((uint64_t)getpid() << 40);

	printf("CONFORMANCE_SEED=%#llx\n", (unsigned long long)seed);
	return seed;
}

void shuffle(unsigned *values, unsigned count, uint64_t *state)
{
	for (unsigned i = count; i > 1; i--) {
		unsigned other = random_below(state, i);
		unsigned value = values[i - 1];

		values[i - 1] = values[other];
		values[other] = value;
	}
}

/* ---- Patterns ---------------------------------------------------------- */

static uint64_t pattern_word(uint64_t seed, uint64_t index)
{
	return (seed + 1) * UINT64_C(0xd6e8feb86659fd93) + index * UINT64_C(0x9e3779b97f4a7c15);
}

static uint8_t pattern_byte(uint64_t seed, uint64_t position)
{
	return (uint8_t)(pattern_word(seed, position / 8) >> (position % 8 * 8));
}

void pattern_fill(void *data, size_t bytes, uint64_t seed, uint64_t first)
{
	uint8_t *out = data;
	size_t i = 0;

	for (; i < bytes && (first + i) % 8; i++)
		out[i] = pattern_byte(seed, first + i);
	for (; i + 8 <= bytes; i += 8) {
		uint64_t word = pattern_word(seed, (first + i) / 8);

		memcpy(out + i, &word, 8);
	}
	for (; i < bytes; i++)
		out[i] = pattern_byte(seed, first + i);
}

bool pattern_holds(const void *data, size_t bytes, uint64_t seed, uint64_t first, size_t *where)
{
	const uint8_t *in = data;
	size_t i = 0;

	while (i < bytes) {
		uint64_t word = pattern_word(seed, (first + i) / 8);

		if ((first + i) % 8 == 0 && i + 8 <= bytes && !memcmp(in + i, &word, 8)) {
			i += 8;
			continue;
		}
		if (in[i] != pattern_byte(seed, first + i)) {
			if (where)
				*where = i;
			return false;
		}
		i++;
	}
	return true;
}

uint64_t hash_of(const void *data, size_t bytes)
{
	return XXH3_64bits(data, bytes);
}

struct block *block_new(struct world *world, size_t bytes)
{
	struct block *block = world_memory(world, sizeof(*block));

	block->data = bytes ? world_memory(world, bytes) : NULL;
	block->bytes = bytes;
	block->shape[0] = (int64_t)bytes;
	block->tensor = haul_tensor(block->data, type_u8, 1, block->shape);
	return block;
}

void block_fill(struct block *block, uint64_t seed)
{
	pattern_fill(block->data, block->bytes, seed, 0);
}

bool block_holds(const struct block *block, uint64_t seed)
{
	return pattern_holds(block->data, block->bytes, seed, 0, NULL);
}

void block_check(const struct block *block, uint64_t seed)
{
	size_t where = 0;

	if (!pattern_holds(block->data, block->bytes, seed, 0, &where))
		fail_msg("byte %zu of %zu is not what was sent (seed %llu)", where, block->bytes,
			 (unsigned long long)seed);
}

void guarded_new(struct world *world, struct guarded *guarded, size_t bytes)
{
	struct block *target = &guarded->target;

	guarded->memory = block_new(world, bytes + 2 * GUARD_BYTES);
	memset(guarded->memory->data, 0xa5, guarded->memory->bytes);
	target->data = guarded->memory->data + GUARD_BYTES;
	target->bytes = bytes;
	target->shape[0] = (int64_t)bytes;
	target->tensor = haul_tensor(target->data, type_u8, 1, target->shape);
}

void guarded_check(const struct guarded *guarded)
{
	const struct block *memory = guarded->memory;
	const uint8_t *end = memory->data + memory->bytes - GUARD_BYTES;

	for (size_t i = 0; i < GUARD_BYTES; i++) {
		assert_int_equal(memory->data[i], 0xa5);
		assert_int_equal(end[i], 0xa5);
	}
}
