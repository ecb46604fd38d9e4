/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC's own sockets: descriptors, answers and status go over them, one small packet at a time.
 * When such a packet is lost, and nothing follows it, TCP notices that after its least
 * retransmission timeout: 200 ms, in which bytes that have long arrived wait for their descriptor.
 * gRPC lets a "socket mutator" set options. Its structures are in no public header; what is written
 * out here is the binary interface of libgrpc 1.51, like that of allocator.c.
 */
#include "sockets.h"

#include <string.h>

#include "layer.h"
#include "retransmission.h"

struct socket_info {
	int fd;
	int usage; /* a client's, a listener's or an accepted one */
};

struct mutator;

struct mutator_functions {
	bool (*mutate_fd)(int fd, struct mutator *mutator);
	int (*compare)(struct mutator *one, struct mutator *other);
	void (*destroy)(struct mutator *mutator);
	bool (*mutate_fd_2)(const struct socket_info *info, struct mutator *mutator);
};

struct mutator {
	const struct mutator_functions *functions;
	gpr_atm references;
};

static bool tune(int fd)
{
	retransmission_set(fd, layer_settings()->retransmit_ms);
	return true;
}

static bool tune_fd(int fd, struct mutator *unused)
{
	return tune(fd);
}

static bool tune_info(const struct socket_info *info, struct mutator *unused)
{
	return tune(info->fd);
}

/* There is one, which lives as long as the process: all channels with it may share connections. */
static int compare(struct mutator *one, struct mutator *other)
{
	return (one > other) - (one < other);
}

static void destroy(struct mutator *unused)
{
}

static const struct mutator_functions functions = {tune_fd, compare, destroy, tune_info};
static struct mutator mutator = {&functions, 1};

static void *copy_argument(void *argument)
{
	return argument;
}

static void destroy_argument(void *unused)
{
}

static int compare_arguments(void *one, void *other)
{
	return compare(one, other);
}

static const grpc_arg_pointer_vtable argument_functions = {copy_argument, destroy_argument,
							   compare_arguments};

const grpc_channel_args *sockets_arguments(const grpc_channel_args *args,
					   struct socket_arguments *room)
{
	size_t count = args ? args->num_args : 0;

	if (!layer_settings()->retransmit_ms || count >= SOCKET_ARGUMENTS_MAX)
		return args;
	for (size_t i = 0; i < count; i++) {
		if (!strcmp(args->args[i].key, GRPC_ARG_SOCKET_MUTATOR))
			return args; /* the program has one of its own */
		room->list[i] = args->args[i];
	}
	room->list[count] = (grpc_arg){.type = GRPC_ARG_POINTER,
				       .key = (char *)GRPC_ARG_SOCKET_MUTATOR,
				       .value.pointer = {&mutator, &argument_functions}};
	room->args = (grpc_channel_args){count + 1, room->list};
	return &room->args;
}
