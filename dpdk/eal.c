/* SPDX-License-Identifier: Apache-2.0 */
#include "eal.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>

#include "options.h"

#define ARGUMENTS_MAX 64
#define MIB (UINT64_C(1) << 20)
/* DPDK's own needs beside packets: device structs, rings, names. */
#define OWN_MEMORY (64 * MIB)
/* Without hugepages there is never more than at the start: for tensors that a driver has to show to
 * somebody. It takes room when it is used. */
#define SHARED_MEMORY (1024 * MIB)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct eal_pipes locked_pipes; /* with the lock held */

static bool pipe_pending(void)
{
	sigset_t pending;

	return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
}

void eal_pipes_ignore(struct eal_pipes *pipes)
{
	sigset_t pipe;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pipes->pending = pipe_pending();
	pthread_sigmask(SIG_BLOCK, &pipe, &pipes->before);
}

void eal_pipes_restore(const struct eal_pipes *pipes)
{
	const struct timespec now = {0};
	sigset_t pipe;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	/* Ours, that no handler may see. */
	while (!pipes->pending && pipe_pending() && sigtimedwait(&pipe, NULL, &now) < 0)
		;
	pthread_sigmask(SIG_SETMASK, &pipes->before, NULL);
}

void eal_lock(void)
{
	pthread_mutex_lock(&lock);
	eal_pipes_ignore(&locked_pipes);
}

void eal_unlock(void)
{
	const struct eal_pipes pipes = locked_pipes;

	pthread_mutex_unlock(&lock);
	eal_pipes_restore(&pipes);
}

/* ---- DPDK's log -------------------------------------------------------- */

static _Thread_local struct eal_words *hearing;
static _Thread_local bool hushed;

void eal_hear(struct eal_words *words)
{
	words->text[0] = 0;
	hearing = words;
}

void eal_heard(void)
{
	hearing = NULL;
}

void eal_hush(bool hush)
{
	hushed = hush;
}

/* DPDK's levels count from 1, "the system can't be used", to 8, debug. */
static enum haul_log_level haul_level(int level)
{
	if (level <= (int)RTE_LOG_ERR)
		return HAUL_LOG_WARNING; /* whoever asked DPDK for something reports the error */
	return level <= (int)RTE_LOG_NOTICE ? HAUL_LOG_INFO : HAUL_LOG_DEBUG;
}

static void keep_words(const char *line, int level)
{
	char *text = hearing->text;
	size_t used = strlen(text), room = sizeof(hearing->text) - used;

	if (level <= (int)RTE_LOG_WARNING && room > 3)
		snprintf(text + used, room, "%s%.*s", used ? "; " : "", (int)room - 3, line);
}

static ssize_t take_log(void *user, const char *text, size_t length)
{
	char line[400];
	size_t size = length < sizeof(line) - 1 ? length : sizeof(line) - 1;
	int level = rte_log_cur_msg_loglevel();

	memcpy(line, text, size);
	while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == ' '))
		size--;
	line[size] = 0;
	if (!size)
		return (ssize_t)length;
	if (hearing)
		keep_words(line, level);
	haul_log(hushed ? HAUL_LOG_DEBUG : haul_level(level), "dpdk: %s", line);
	return (ssize_t)length;
}

/* Before EAL starts: it would open the system's log and write to standard output. */
static int open_log(void)
{
	static FILE *stream;

	if (stream)
		return 0;
	stream = fopencookie(NULL, "w", (cookie_io_functions_t){.write = take_log});
	if (!stream)
		return -ENOMEM;
	return rte_openlog_stream(stream) ? -EIO : 0;
}

/* ---- Hugepages --------------------------------------------------------- */

static uint64_t read_number(const char *folder, const char *name)
{
	char path[512];
	unsigned long long number = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (fscanf(file, "%llu", &number) != 1)
		number = 0;
	fclose(file);
	return number;
}

void eal_hugepages(struct eal_hugepages *pages)
{
	static const char all[] = "/sys/kernel/mm/hugepages";
	DIR *folder = opendir(all);
	struct dirent *entry;
	char path[400];
	uint64_t free_bytes = 0;
	unsigned long long kib;

	*pages = (struct eal_hugepages){.size = 2 * MIB};
	while (folder && (entry = readdir(folder))) {
		struct eal_hugepages found;

		if (sscanf(entry->d_name, "hugepages-%llukB", &kib) != 1)
			continue;
		snprintf(path, sizeof(path), "%s/%s", all, entry->d_name);
		found.size = kib * 1024;
		found.reserved = read_number(path, "nr_hugepages");
		found.free = read_number(path, "free_hugepages");
		if (found.free * found.size > free_bytes || (!pages->reserved && found.reserved)) {
			free_bytes = found.free * found.size;
			*pages = found;
		}
	}
	if (folder)
		closedir(folder);
}

static bool enough_hugepages(uint64_t needed)
{
	struct eal_hugepages pages;

	eal_hugepages(&pages);
	return pages.free * pages.size >= needed;
}

/* ---- The arguments ----------------------------------------------------- */

/*
 * What eal= may hold. Anything else would make EAL print to the standard streams, or end the
 * process, or is decided here.
 */
static const struct {
	const char *name;
	bool value;
} known_arguments[] = {
	{"-a", true},
	{"--allow", true},
	{"-b", true},
	{"--block", true},
	{"-d", true},
	{"-n", true},
	{"-r", true},
	{"--base-virtaddr", true},
	{"--force-max-simd-bitwidth", true},
	{"--huge-dir", true},
	{"--legacy-mem", false},
	{"--log-level", true},
	{"--match-allocations", false},
	{"--mbuf-pool-ops-name", true},
	{"--single-file-segments", false},
	{"--socket-limit", true},
	{"--socket-mem", true},
	{"--vfio-intr", true},
	{"--vfio-vf-token", true},
};

#define KNOWN (sizeof(known_arguments) / sizeof(known_arguments[0]))

struct arguments {
	char *list[ARGUMENTS_MAX + 1];
	int count;
	char *extra; /* the words of eal= */
	char lcores[32], memory[32], prefix[64];
};

static int add_argument(struct arguments *arguments, char *text)
{
	if (arguments->count == ARGUMENTS_MAX)
		return -E2BIG;
	arguments->list[arguments->count++] = text;
	arguments->list[arguments->count] = NULL;
	return 0;
}

/* Whether eal= may hold this word; *value: the next one is its value. */
static bool is_known(const char *word, bool *value)
{
	size_t length = strcspn(word, "=");

	for (size_t i = 0; i < KNOWN; i++) {
		if (strlen(known_arguments[i].name) != length ||
		    strncmp(known_arguments[i].name, word, length))
			continue;
		*value = known_arguments[i].value && !word[length];
		return !word[length] || (known_arguments[i].value && word[1] == '-');
	}
	return false;
}

static int wrong_argument(struct haul_context *engine, const char *word)
{
	char valid[512];
	size_t used = 0;

	for (size_t i = 0; i < KNOWN; i++)
		used += (size_t)snprintf(valid + used, sizeof(valid) - used, " %s",
					 known_arguments[i].name);
	return haul_fail(engine, -EINVAL,
			 "eal=: \"%.80s\" is not taken; valid are these arguments of DPDK, with "
			 "a value where they have one:%s",
			 word, valid);
}

static int add_extra(struct haul_context *engine, struct arguments *arguments, const char *text)
{
	char *rest, *word;
	bool value = false; /* the next word is one */

	arguments->extra = strdup(text);
	if (!arguments->extra)
		return haul_fail(engine, -ENOMEM, "no memory for DPDK's arguments");
	for (word = strtok_r(arguments->extra, " ", &rest); word;
	     word = strtok_r(NULL, " ", &rest)) {
		if (value)
			value = false;
		else if (!is_known(word, &value))
			return wrong_argument(engine, word);
		if (add_argument(arguments, word))
			return haul_fail(engine, -E2BIG, "eal=: more than %d arguments",
					 ARGUMENTS_MAX);
	}
	return value ? haul_fail(engine, -EINVAL, "eal=: the last argument needs a value") : 0;
}

/* EAL's first thread is bound to it; that thread ends at once. */
static int any_processor(void)
{
	cpu_set_t set;
	int i = 0;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 0;
	while (i < CPU_SETSIZE - 1 && !CPU_ISSET(i, &set))
		i++;
	return i;
}

/*
 * No device is looked for at the start: a port asks for its own. PCI's bus would not look at all
 * later when it is switched off now, so it gets a list of allowed devices, with one that is none.
 */
static int make_arguments(struct haul_context *engine, struct arguments *arguments,
			  const struct dpdk_config *config, bool hugepages, uint64_t shared)
{
	static char *always[] = {"--no-telemetry", "--iova-mode=va", "--allow=ffff:ff:1f.7"};
	uint64_t number = 0;
	int error;

	haul_random(&number, sizeof(number));
	snprintf(arguments->lcores, sizeof(arguments->lcores), "--lcores=0@%d", any_processor());
	snprintf(arguments->prefix, sizeof(arguments->prefix), "--file-prefix=haul-%d-%llx",
		 (int)getpid(), (unsigned long long)number);
	snprintf(arguments->memory, sizeof(arguments->memory), "%llu",
		 (unsigned long long)((shared + OWN_MEMORY + (shared ? SHARED_MEMORY : 0)) / MIB));
	error = add_argument(arguments, program_invocation_short_name);
	for (size_t i = 0; !error && i < sizeof(always) / sizeof(always[0]); i++)
		error = add_argument(arguments, always[i]);
	error = error ?: add_argument(arguments, arguments->lcores);
	error = error ?: add_argument(arguments, arguments->prefix);
	if (hugepages) {
		error = error ?: add_argument(arguments, "--in-memory");
		/* One file for a vhost to map, and not hundreds. */
		error = error ?: add_argument(arguments, "--single-file-segments");
	} else {
		/* What --in-memory would say about files, too, but it does not go with --no-huge.
		 */
		error = error ?: add_argument(arguments, "--no-huge");
		error = error ?: add_argument(arguments, "--no-shconf");
		error = error ?: add_argument(arguments, "-m");
		error = error ?: add_argument(arguments, arguments->memory);
	}
	if (!error && config->eal)
		error = add_extra(engine, arguments, config->eal);
	return error;
}

/* ---- Starting ---------------------------------------------------------- */

enum eal_state {
	EAL_DOWN,
	EAL_UP,
	EAL_BROKEN, /* it can't be started twice */
};

static enum eal_state state;
static bool in_hugepages;
static pid_t started_by; /* the process that has its threads */

struct start {
	struct arguments arguments;
	struct eal_words words;
	int error;
};

/*
 * In a thread of its own, because EAL binds the thread that starts it to a processor, renames it,
 * and makes it a thread of DPDK's, whose packets go through other caches than other threads'.
 */
static void *run_start(void *user)
{
	struct start *start = user;

	eal_hear(&start->words);
	if (rte_eal_init(start->arguments.count, start->arguments.list) < 0)
		start->error = rte_errno ? -rte_errno : -EIO;
	eal_heard();
	return NULL;
}

/* EAL's threads must not take the program's signals. */
static int run_thread(struct start *start)
{
	sigset_t all, before;
	pthread_t thread;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&thread, NULL, run_start, start);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		return -error;
	pthread_join(thread, NULL);
	return start->error;
}

static int not_enough(struct haul_context *engine, uint64_t needed)
{
	struct eal_hugepages pages;

	eal_hugepages(&pages);
	return haul_fail(engine, -ENOMEM,
			 "hugepages=yes needs %llu MiB in free hugepages; %llu of %llu pages of "
			 "%llu KiB are free. As root, `echo %llu > "
			 "/sys/kernel/mm/hugepages/hugepages-%llukB/nr_hugepages` reserves more; "
			 "hugepages=no does without",
			 (unsigned long long)(needed / MIB), (unsigned long long)pages.free,
			 (unsigned long long)pages.reserved, (unsigned long long)pages.size / 1024,
			 (unsigned long long)(pages.reserved - pages.free +
					      (needed + pages.size - 1) / pages.size),
			 (unsigned long long)pages.size / 1024);
}

static int start_now(struct haul_context *engine, const struct dpdk_config *config, bool hugepages,
		     uint64_t shared)
{
	struct start start = {0};
	int error = make_arguments(engine, &start.arguments, config, hugepages, shared);

	if (!error)
		error = open_log();
	if (!error) {
		error = run_thread(&start);
		state = error ? EAL_BROKEN : EAL_UP;
		started_by = getpid();
		in_hugepages = hugepages;
		if (error)
			haul_fail(engine, error, "DPDK did not start: %s",
				  start.words.text[0] ? start.words.text : haul_strerror(error));
		/* EAL opened the system's log, and made a folder that it does not use. */
		closelog();
		rmdir(rte_eal_get_runtime_dir());
	}
	free(start.arguments.extra);
	return error;
}

int eal_start(struct haul_context *engine, const struct dpdk_config *config, uint64_t shared)
{
	bool hugepages;

	if (state == EAL_BROKEN)
		return haul_fail(engine, -EIO,
				 "DPDK did not start before, and can't be started again in this "
				 "process");
	if (state == EAL_UP && started_by != getpid())
		return haul_fail(engine, -ECHILD,
				 "the parent process has DPDK open, whose threads are not in a "
				 "forked child: execute a program there instead");
	if (state == EAL_UP) {
		if (config->hugepages == DPDK_HUGEPAGES_YES && !in_hugepages)
			return haul_fail(engine, -EBUSY,
					 "hugepages=yes: an earlier context of this process "
					 "started DPDK without; give it hugepages=yes, too");
		return 0;
	}
	hugepages = config->hugepages == DPDK_HUGEPAGES_YES;
	if (config->hugepages != DPDK_HUGEPAGES_NO) {
		hugepages = enough_hugepages(shared + OWN_MEMORY);
		if (!hugepages && config->hugepages == DPDK_HUGEPAGES_YES)
			return not_enough(engine, shared + OWN_MEMORY);
	}
	return start_now(engine, config, hugepages, shared);
}

/* ---- The thread of the drivers' control events ------------------------- */

struct job {
	void (*run)(void *user);
	void *user;
	sem_t done;
};

static void run_job(void *user)
{
	struct job *job = user;

	job->run(job->user);
	sem_post(&job->done);
}

int eal_run(void (*run)(void *user), void *user)
{
	struct job job = {.run = run, .user = user};
	int error;

	sem_init(&job.done, 0, 0);
	error = rte_eal_alarm_set(1, run_job, &job);
	while (!error && sem_wait(&job.done))
		; /* a signal came */
	sem_destroy(&job.done);
	return error;
}
