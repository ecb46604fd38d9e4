/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How C++ servers take calls. libgrpc++ does not request them one by one: it hands the C core a
 * std::function that makes room for the next call, through two functions that are not in any
 * header. The layer stands in front of those too, and puts a std::function of its own around the
 * program's. What is written out here is the binary interface of libgrpc 1.51 and of libstdc++;
 * another libgrpc turns the layer off before (core_fits()).
 */
#include <pthread.h>
#include <stdlib.h>

#include "request.h"

#define SET_BATCH                                                                                  \
	"_ZN9grpc_core6Server23SetBatchMethodAllocatorEP21grpc_completion_queueSt8functionIFNS0_"  \
	"19"                                                                                       \
	"BatchCallAllocationEvEE"
#define SET_REGISTERED                                                                             \
	"_ZN9grpc_core6Server28SetRegisteredMethodAllocatorEP21grpc_completion_queuePvSt8"         \
	"functionIFNS0_24RegisteredCallAllocationEvEE"

/* grpc_core::Server::BatchCallAllocation */
struct batch_allocation {
	void *tag;
	grpc_call **call;
	grpc_metadata_array *metadata;
	grpc_call_details *details;
	grpc_completion_queue *queue;
};

/* grpc_core::Server::RegisteredCallAllocation */
struct registered_allocation {
	void *tag;
	grpc_call **call;
	grpc_metadata_array *metadata;
	gpr_timespec *deadline;
	grpc_byte_buffer **payload;
	grpc_completion_queue *queue;
};

/*
 * std::function<Allocation()>: room for the target, the function that copies and destroys it, and
 * the one that calls it. An allocation is too large for registers: its place is a hidden argument.
 */
enum target_operation { TARGET_TYPE, TARGET_POINTER, TARGET_CLONE, TARGET_DESTROY };

struct function {
	void *target[2];
	bool (*manage)(void *to, const void *from, enum target_operation operation);
	void *(*call)(void *allocation, const void *target); /* returns `allocation` */
};

/* What the layer's function calls; shared by its copies. */
struct around {
	atomic_uint references;
	struct function program;
	grpc_completion_queue *notified;
};

static bool manage(void *to, const void *from, enum target_operation operation)
{
	struct around *around = *(struct around *const *)(operation == TARGET_DESTROY ? to : from);

	switch (operation) {
	case TARGET_CLONE:
		atomic_fetch_add(&around->references, 1);
		*(struct around **)to = around;
		break;
	case TARGET_DESTROY:
		if (atomic_fetch_sub(&around->references, 1) > 1)
			break;
		around->program.manage(around->program.target, around->program.target,
				       TARGET_DESTROY);
		free(around);
		break;
	case TARGET_TYPE:
	case TARGET_POINTER:
		*(void **)to = NULL;
		break;
	}
	return false;
}

static void *wrap(const struct around *around, void *tag, const struct batch_request *request,
		  grpc_byte_buffer **payload)
{
	struct batch *batch = request_new(around->notified, tag, request, payload);

	return batch ? batch_core_tag(batch) : tag;
}

static void *allocate_batch(void *place, const void *target)
{
	const struct around *around = *(struct around *const *)target;
	struct batch_allocation *allocation = place;
	struct batch_request request;

	around->program.call(allocation, around->program.target);
	request = (struct batch_request){.call = allocation->call,
					 .details = allocation->details,
					 .metadata = allocation->metadata,
					 .queue = allocation->queue};
	allocation->tag = wrap(around, allocation->tag, &request, NULL);
	return allocation;
}

static void *allocate_registered(void *place, const void *target)
{
	const struct around *around = *(struct around *const *)target;
	struct registered_allocation *allocation = place;
	struct batch_request request;

	around->program.call(allocation, around->program.target);
	request = (struct batch_request){.call = allocation->call,
					 .deadline = allocation->deadline,
					 .metadata = allocation->metadata,
					 .queue = allocation->queue};
	allocation->tag = wrap(around, allocation->tag, &request, allocation->payload);
	return allocation;
}

/* The layer's function around the program's, which stays its caller's. False: no memory. */
static bool put_around(struct function *mine, const struct function *program,
		       grpc_completion_queue *notified,
		       void *(*call)(void *allocation, const void *target))
{
	struct around *around = calloc(1, sizeof(*around));

	if (!around)
		return false;
	atomic_init(&around->references, 1);
	around->notified = notified;
	around->program = *program;
	program->manage(around->program.target, program->target, TARGET_CLONE);
	*mine = (struct function){.target = {around}, .manage = manage, .call = call};
	return true;
}

/* The C core has usually moved it away: then it is empty. */
static void destroy(struct function *mine)
{
	if (mine->manage)
		mine->manage(mine->target, mine->target, TARGET_DESTROY);
}

/* ---- The two functions --------------------------------------------------- */

typedef void set_batch(grpc_server *, grpc_completion_queue *, struct function *);
typedef void set_registered(grpc_server *, grpc_completion_queue *, void *, struct function *);

static set_batch *core_set_batch;
static set_registered *core_set_registered;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void)
{
	*(void **)&core_set_batch = core_symbol(SET_BATCH);
	*(void **)&core_set_registered = core_symbol(SET_REGISTERED);
}

bool allocators_found(void)
{
	pthread_once(&once, find);
	return core_set_batch && core_set_registered;
}

void allocator_set_batch(grpc_server *server, grpc_completion_queue *notified,
			 struct function *function) __asm__(SET_BATCH);
void allocator_set_registered(grpc_server *server, grpc_completion_queue *notified, void *method,
			      struct function *function) __asm__(SET_REGISTERED);

void allocator_set_batch(grpc_server *server, grpc_completion_queue *notified,
			 struct function *function)
{
	struct function mine;

	pthread_once(&once, find);
	if (!layer_on() || !put_around(&mine, function, notified, allocate_batch)) {
		core_set_batch(server, notified, function);
		return;
	}
	core_set_batch(server, notified, &mine);
	destroy(&mine);
}

void allocator_set_registered(grpc_server *server, grpc_completion_queue *notified, void *method,
			      struct function *function)
{
	struct function mine;

	pthread_once(&once, find);
	if (!layer_on() || !put_around(&mine, function, notified, allocate_registered)) {
		core_set_registered(server, notified, method, function);
		return;
	}
	core_set_registered(server, notified, method, &mine);
	destroy(&mine);
}
