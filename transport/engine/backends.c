/* SPDX-License-Identifier: Apache-2.0 */
#include "backends.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "options.h"

#define NAME_MAX_LENGTH 32
#define NAME_LETTERS "abcdefghijklmnopqrstuvwxyz0123456789_-"

extern const struct haul_backend haul_backend_tcp;

static const struct haul_backend *const built_in[] = {&haul_backend_tcp};

/* The modules that belong to the project, and what to do when one is missing. */
static const struct {
	const char *name;
	const char *remedy;
} modules[] = {
	{"grpc", "it is built where libgrpc-dev is installed"},
	{"verbs", "it is built where libibverbs-dev and librdmacm-dev are installed"},
	{"dpdk", "it is built where libdpdk-dev is installed"},
};

#define BUILT_IN (sizeof(built_in) / sizeof(built_in[0]))
#define MODULES (sizeof(modules) / sizeof(modules[0]))

/*
 * Modules stay loaded until the process ends: their threads and what they registered with other
 * libraries would not survive being unloaded.
 */
struct loaded {
	struct loaded *next;
	char name[NAME_MAX_LENGTH + 1];
	const struct haul_backend *backend;
};

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static struct loaded *all_loaded;

/* One search: what is looked for, and where its error goes. */
struct search {
	const char *name;
	char *why;
	size_t room;
};

/* ---- Opening a module -------------------------------------------------- */

static int check_backend(const struct search *search, const char *path,
			 const struct haul_backend *backend)
{
	if (backend->version != HAUL_BACKEND_VERSION)
		return explain(search->why, search->room, -ENOSYS,
			       "the module %s is for version %u of the backend interface, and this "
			       "library has %u; install the module of the same release",
			       path, backend->version, HAUL_BACKEND_VERSION);
	if (!backend->name || strcmp(backend->name, search->name) || !backend->options ||
	    !backend->context || !backend->link || !backend->data)
		return explain(search->why, search->room, -ENOSYS,
			       "the module %s holds no complete backend of the name %s", path,
			       search->name);
	return 0;
}

static int remember(const struct search *search, const struct haul_backend *backend)
{
	struct loaded *entry = calloc(1, sizeof(*entry));

	if (!entry)
		return explain(search->why, search->room, -ENOMEM, "no memory for the module");
	snprintf(entry->name, sizeof(entry->name), "%s", search->name);
	entry->backend = backend;
	entry->next = all_loaded;
	all_loaded = entry;
	return 0;
}

static int open_module(const struct search *search, const char *path,
		       const struct haul_backend **backend)
{
	char symbol[sizeof("haul_backend_") + NAME_MAX_LENGTH];
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	int error;

	if (!handle)
		return explain(search->why, search->room, -ENOSYS,
			       "the module %s can't be loaded: %s", path, dlerror());
	snprintf(symbol, sizeof(symbol), "haul_backend_%s", search->name);
	for (char *letter = symbol; *letter; letter++) {
		if (*letter == '-')
			*letter = '_'; /* not in a C name */
	}
	*backend = dlsym(handle, symbol);
	if (*backend)
		error = check_backend(search, path, *backend);
	else
		error = explain(search->why, search->room, -ENOSYS,
				"the module %s has no symbol %s: it is no tensorhaul module", path,
				symbol);
	if (!error)
		error = remember(search, *backend);
	if (error)
		dlclose(handle);
	return error;
}

/* ---- Looking for a module ---------------------------------------------- */

/* -ENOENT when the folder has no such file. */
static int try_folder(const struct search *search, const char *folder, size_t length,
		      const struct haul_backend **backend)
{
	char path[PATH_MAX];
	int written = snprintf(path, sizeof(path), "%.*s/libtensorhaul-%s.so", (int)length, folder,
			       search->name);

	if (written < 0 || (size_t)written >= sizeof(path) || access(path, F_OK))
		return -ENOENT;
	return open_module(search, path, backend);
}

static int try_path(const struct search *search, const char *folders,
		    const struct haul_backend **backend)
{
	int error = -ENOENT;

	while (error == -ENOENT && *folders) {
		size_t length = strcspn(folders, ":");

		if (length && length < PATH_MAX)
			error = try_folder(search, folders, length, backend);
		folders += length;
		folders += *folders == ':';
	}
	return error;
}

static void list_transports(char *text, size_t room)
{
	size_t length = 0;

	text[0] = '\0';
	for (unsigned i = 0; haul_transport_name(i) && length < room; i++)
		length += (size_t)snprintf(text + length, room - length, "%s, ",
					   haul_transport_name(i));
}

static int explain_unknown(const struct search *search)
{
	char list[128];

	list_transports(list, sizeof(list));
	return explain(search->why, search->room, -EINVAL,
		       "there is no transport \"%.40s\"; valid are %sauto, and the modules in the "
		       "folders of $HAUL_MODULE_PATH",
		       search->name, list);
}

static int explain_missing(const struct search *search, const char *folders)
{
	for (size_t i = 0; i < MODULES; i++) {
		if (strcmp(modules[i].name, search->name))
			continue;
		return explain(
			search->why, search->room, -ENOSYS,
			"the transport %s is a module that is not installed: "
			"libtensorhaul-%s.so is not in %.200s%s%s; %s; a module from elsewhere is "
			"found through HAUL_MODULE_PATH",
			search->name, search->name, folders ? folders : "", folders ? ":" : "",
			HAUL_MODULE_FOLDER, modules[i].remedy);
	}
	return explain_unknown(search);
}

/* With the lock. */
static int find_module(const struct search *search, const struct haul_backend **backend)
{
	const char *folders = secure_getenv("HAUL_MODULE_PATH");
	int error = -ENOENT;

	for (struct loaded *entry = all_loaded; entry; entry = entry->next) {
		if (!strcmp(entry->name, search->name)) {
			*backend = entry->backend;
			return 0;
		}
	}
	if (folders)
		error = try_path(search, folders, backend);
	if (error == -ENOENT)
		error = try_path(search, HAUL_MODULE_FOLDER, backend);
	return error == -ENOENT ? explain_missing(search, folders) : error;
}

const struct haul_backend *backends_find(const char *name, int *error, char *why, size_t room)
{
	struct search search = {.name = name, .why = why, .room = room};
	const struct haul_backend *backend = NULL;
	size_t length = name ? strnlen(name, NAME_MAX_LENGTH + 1) : 0;

	*error = 0;
	if (!name)
		search.name = "";
	if (!strcmp(search.name, "auto"))
		return &haul_backend_tcp;
	for (size_t i = 0; i < BUILT_IN; i++) {
		if (!strcmp(search.name, built_in[i]->name))
			return built_in[i];
	}
	/* The name becomes part of a path: nothing but these letters may get there. */
	if (!length || length > NAME_MAX_LENGTH || name[strspn(name, NAME_LETTERS)]) {
		*error = explain_unknown(&search);
		return NULL;
	}
	pthread_mutex_lock(&loading);
	*error = find_module(&search, &backend);
	pthread_mutex_unlock(&loading);
	return *error ? NULL : backend;
}

/* ---- The public questions ---------------------------------------------- */

const char *haul_transport_name(unsigned number)
{
	if (number < BUILT_IN)
		return built_in[number]->name;
	number -= BUILT_IN;
	return number < MODULES ? modules[number].name : NULL;
}

int haul_transport_probe(const char *name, char *reason, size_t room)
{
	const struct haul_backend *backend;
	int error;

	explain(reason, room, 0, "%s", "");
	backend = backends_find(name, &error, reason, room);
	if (!backend)
		return error;
	return backend->context->probe ? backend->context->probe(reason, room) : 0;
}

const struct haul_option_info *haul_transport_option(const char *name, unsigned number)
{
	const struct haul_option *row = engine_options;

	if (!name || *name) {
		int error;
		const struct haul_backend *backend = backends_find(name, &error, NULL, 0);

		row = backend ? backend->options : NULL;
	}
	while (row && row->info.name && number--)
		row++;
	return row && row->info.name ? &row->info : NULL;
}
