/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every conformance test stands on.
 *
 *   world   everything that one test made: sides, peers, memory; taken down and checked
 *           for leaks of descriptors and threads after the test
 *   side    one context, its ledger of operations, and what it was told about endpoints
 *   entry   one operation in a side's ledger: its cookie, and its one completion
 *   way     one direction between two sides: an endpoint to send on, one to receive on
 *   peer    another process that runs peer_main.c, for tests that kill or stop it
 *
 * One thread drives all sides: world_step() polls each without waiting, then sleeps on
 * their event descriptors.
 */
#ifndef CONFORMANCE_HARNESS_H
#define CONFORMANCE_HARNESS_H

#include <stdarg.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "tensorhaul/haul.h"

/* ---- Settings ---------------------------------------------------------- */

struct settings {
	const char *transport;      /* the first side's spec */
	const char *peer_transport; /* the others' */
	const char *listen_host;    /* "127.0.0.1", "[::1]" */
	const char *connect_host;   /* NULL: what the listener says */
	bool full;                  /* --scale=full */
	bool quarter;               /* --scale=quarter */
	bool in_process;            /* no peer processes */
	bool dies_silently;         /* no kernel or adapter answers for a process */
	unsigned numbers;           /* %n in the specs is one of 1..numbers; 0: it stays %n */
};

extern struct settings settings;

/* The number of rounds at the scale that was asked for; a sanitizer's build does a fifth of the
 * small one, and --scale=quarter, for slow machines, what it says. */
unsigned rounds(unsigned small, unsigned full);

/* Address or thread sanitizer: memory and speed say nothing. */
bool sanitized(void);
bool thread_sanitized(void);

/* Leave the test as skipped, with a printed reason. */
void skip_because(const char *reason, ...) __attribute__((format(printf, 1, 2), noreturn));
void skip_without_peers(void);

/* What an endpoint is lost with when its peer's process was killed. */
int death(void);

/* ---- Time -------------------------------------------------------------- */

/* How long anything may take before the test fails, in ms. */
#define PATIENCE_MS 20000

uint64_t now_ms(void);
uint64_t now_us(void);

/* ---- Worlds and sides -------------------------------------------------- */

#define SIDES_MAX 16
#define ENDPOINTS_MAX 512
#define NUMBERS_MAX 254

struct lost {
	haul_endpoint *endpoint;
	void *cookie;
	int result;
};

struct entry;
struct ledger_block;
struct peer;
struct world;

struct side {
	struct world *world;
	haul_context *context;
	unsigned number; /* of its spec; 0: none */
	char name;       /* 'a' is the first */
	bool asleep;     /* not polled by world_step() */
	haul_listener *listener;
	haul_endpoint *accepted[ENDPOINTS_MAX];
	unsigned accepted_count;
	struct lost lost[ENDPOINTS_MAX];
	unsigned lost_count;
	struct ledger_block *ledger;
	struct entry *free_entries;
	unsigned long started, finished;
};

struct world {
	void *parameter; /* the test's initial state in the table */
	struct side *sides[SIDES_MAX];
	unsigned side_count;
	struct peer *peers;
	struct allocation *memory;
	char folder[64];               /* of temporary files, "" until it is asked for */
	int descriptors, threads;      /* before the test */
	unsigned long late_wakeups;    /* completions that no event descriptor told of */
	bool numbers[NUMBERS_MAX + 1]; /* of spec_held() */
};

/* For the tables of tests. */
int world_setup(void **state);
int world_teardown(void **state);
struct world *world_new(void *parameter);
int world_free(struct world *world);

/* Memory that lives until the sides are closed. Zeroed; pages are only taken when touched. */
void *world_memory(struct world *world, size_t bytes);
char *world_text(struct world *world, const char *format, ...)
	__attribute__((format(printf, 2, 3), nonnull(2)));
/* A new file in the world's own folder; gives its path. */
char *world_file(struct world *world, const char *name, const void *bytes, size_t length,
		 unsigned mode);

/* `spec` with "option=value,..." added or changed. */
char *spec_with(struct world *world, const char *spec, const char *options);
/* `spec`, to be freed, with a number in place of each %n, the same for all, that nobody else gets
 * before number_give_back(). Where there is nothing to number, *number is 0. The test is skipped
 * when all are in use. */
char *spec_numbered(const char *spec, unsigned *number);
void number_give_back(unsigned number);
/* The same for a context that the test itself opens: the number is the world's until its end. */
const char *spec_held(struct world *world, const char *spec);
/* One that was given back will be the next that is given out. */
void number_again(unsigned number);
void numbers_give_back(struct world *world);

/* Open a context; the first takes the transport, the others the peer transport. */
struct side *side_open(struct world *world, const char *options);
/* The same, but tells the error instead of failing; NULL then. */
struct side *side_try_open(struct world *world, const char *options, int *error);
/* Close the context and forget it; what its ledger still holds open is given up. */
void side_close(struct side *side);
/* Listen on the listen host, port 0; the side itself is the cookie. Gives the address to connect
 * to. */
const char *side_listen(struct side *side);
/* The address to connect to for what the library says about a listener. */
const char *connect_address(struct world *world, const char *listener_address);

/* Poll once, without waiting; gives how many completions came. */
int side_poll(struct side *side);

/* Poll all sides once, and sleep when nothing came; fails the test when `until` (ms) is over. */
void world_step(struct world *world, uint64_t until, const char *what);
/* The same for a time that is expected to pass. */
void world_run_for(struct world *world, unsigned ms);
/* Sleep until a side or a peer's answer has something to do, at most until then. */
void world_sleep(struct world *world, uint64_t until);

/* ---- Operations -------------------------------------------------------- */

struct entry {
	struct side *side;
	enum haul_event event; /* that it ends with */
	haul_endpoint *endpoint;
	bool done;
	bool given_up; /* its context was closed first */
	int result;
	struct haul_tensor_info tensor;
	char detail[256];
	unsigned long order;               /* among the side's completions, from 1 */
	void (*hook)(struct entry *entry); /* runs at the completion */
	void *user;
	uint64_t number; /* the test's */
	struct entry *next_free;
};

struct way {
	struct side *from, *to;
	haul_endpoint *out; /* at `from` */
	haul_endpoint *in;  /* at `to` */
};

struct extra {
	haul_region *region;
	uint64_t timeout_ms;
	void (*hook)(struct entry *entry);
	void *user;
	uint64_t number;
};

/* Start an operation that must start. */
struct entry *post_connect(struct side *side, const char *address);
struct entry *try_connect(struct side *side, const char *address, int *error);
struct entry *post_send(const struct way *way, struct haul_key key, const DLTensor *tensor);
struct entry *post_recv(const struct way *way, struct haul_key key, DLTensor *tensor);
struct entry *post_query(const struct way *way, struct haul_key key);
struct entry *post_with(const struct way *way, enum haul_event event, struct haul_key key,
			DLTensor *tensor, const struct extra *extra);
/* Start one that may not; NULL when it was refused, with the error. */
struct entry *try_post(struct side *side, haul_endpoint *endpoint, enum haul_event event,
		       struct haul_key key, DLTensor *tensor, const struct extra *extra,
		       int *error);
/* Give an entry back that is done, for tests that start more than memory should hold. */
void entry_recycle(struct entry *entry);

/* Run the world until the entry is done, all of the sides' operations are, or the time is over. */
void wait_done(struct entry *entry);
void wait_result(struct entry *entry, int result);
void wait_all(struct world *world);
void wait_lost(struct side *side, unsigned count);
/* The side's loss number `which` is that of this endpoint, with this error; `lie` is what the peer
 * did, for the case that it is not caught. */
void wait_caught(struct side *side, unsigned which, haul_endpoint *endpoint, int error,
		 const char *lie);
void wait_accepted(struct side *side, unsigned count);
/* `what` is told when the time is over. */
void wait_until(struct world *world, bool (*ready)(void *user), void *user, const char *what);

void check_result(const struct entry *entry, int result);
void check_error(haul_context *context, int error, int expected, const char *const words[]);
void check_words(const char *text, const char *const words[]);

/* ---- Pairs ------------------------------------------------------------- */

struct pair {
	struct side *a, *b; /* a listens, b connects */
	struct way up;      /* from b to a */
	struct way down;    /* from a to b */
};

/* Two contexts with these options each, connected. */
void pair_open(struct world *world, const char *options, struct pair *pair);
/* One more connection between two sides; `to` listens. */
void connect_sides(struct side *from, struct side *to, struct way *up, struct way *down);

/* ---- Tensors ----------------------------------------------------------- */

/* Bytes as a tensor of rank 1. */
struct block {
	uint8_t *data;
	size_t bytes;
	int64_t shape[HAUL_RANK_MAX];
	DLTensor tensor;
};

extern const DLDataType type_u8;

struct block *block_new(struct world *world, size_t bytes);
void block_fill(struct block *block, uint64_t seed);
void block_check(const struct block *block, uint64_t seed);

/* Memory of one tensor, between two guards that nobody may write. */
#define GUARD_BYTES ((size_t)4096)

struct guarded {
	struct block *memory; /* with the guards */
	struct block target;
};

void guarded_new(struct world *world, struct guarded *guarded, size_t bytes);
void guarded_check(const struct guarded *guarded);
bool block_holds(const struct block *block, uint64_t seed);

/* A pattern that tells position and seed of each byte; `first` is the position of *data. */
void pattern_fill(void *data, size_t bytes, uint64_t seed, uint64_t first);
bool pattern_holds(const void *data, size_t bytes, uint64_t seed, uint64_t first, size_t *where);
uint64_t hash_of(const void *data, size_t bytes);

uint64_t random_next(uint64_t *state);
unsigned random_below(uint64_t *state, unsigned limit);
uint64_t random_seed(void); /* printed, so that a run can be repeated with $CONFORMANCE_SEED */
void shuffle(unsigned *values, unsigned count, uint64_t *state);

/* Send and receive one small tensor each way: both ends are alive. */
void check_alive(const struct pair *pair);
void check_way_alive(const struct way *way);

/* ---- What the process holds -------------------------------------------- */

int descriptors_open(void);
int threads_running(void);

/* How many threads beyond the allowed ones stay, whose state is printed then; it waits for
 * those that are ending. */
int threads_over(int allowed);
uint64_t resident_bytes(pid_t pid); /* 0: this process */
uint64_t cpu_us(void);
uint64_t memory_available(void);

/* ---- Programs ---------------------------------------------------------- */

/*
 * The end of main() of a program with a table of its own, over one transport: runs the tests
 * (those of the names in the arguments) and gives the exit status.
 */
int suite_main(const char *transport, const struct CMUnitTest *tests, size_t count, int arguments,
	       char **argument);

/*
 * Ready the process for a suite: a transport that isn't there gives 77, one that can't be there 2.
 * What is opened once and stays open, of modules and of OpenSSL, is open after this.
 */
int suite_prepare(void);

/* ---- Tables ------------------------------------------------------------ */

struct test_table {
	const struct CMUnitTest *tests;
	size_t count;
};

#define WORLD_TEST(function)                                                                       \
	{                                                                                          \
#function, function, world_setup, world_teardown, NULL                             \
	}
#define WORLD_TEST_WITH(name, function, parameter)                                                 \
	{                                                                                          \
		name, function, world_setup, world_teardown, parameter                             \
	}
#define TABLE_OF(array)                                                                            \
	{                                                                                          \
		array, sizeof(array) / sizeof((array)[0])                                          \
	}

extern const struct test_table sizes_tests, types_tests, keys_tests, depth_tests, cancel_tests,
	expire_tests, storm_tests, refuse_tests, ends_tests, kill_tests, stop_tests, poll_tests,
	completion_tests, thread_tests, fork_tests, auth_tests, memory_tests, resource_tests,
	bad_address_tests, bad_spec_tests, bad_tensor_tests, statistics_tests;

#endif
