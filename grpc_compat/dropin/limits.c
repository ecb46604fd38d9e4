/* SPDX-License-Identifier: Apache-2.0 */
#include "limits.h"

#include <string.h>

static uint64_t limit_of(int value)
{
	return value < 0 ? UINT64_MAX : (uint64_t)value;
}

static void read_argument(const grpc_arg *arg, struct limits *limits, bool *minimal)
{
	int value = arg->type == GRPC_ARG_INTEGER ? arg->value.integer : 0;

	if (arg->type == GRPC_ARG_STRING && !strcmp(arg->key, GRPC_ARG_SERVICE_CONFIG))
		limits->service = arg->value.string;
	if (arg->type != GRPC_ARG_INTEGER)
		return;
	if (!strcmp(arg->key, GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH))
		limits->receive = limit_of(value);
	else if (!strcmp(arg->key, GRPC_ARG_MAX_SEND_MESSAGE_LENGTH))
		limits->send = limit_of(value);
	else if (!strcmp(arg->key, GRPC_COMPRESSION_CHANNEL_DEFAULT_ALGORITHM) ||
		 !strcmp(arg->key, GRPC_COMPRESSION_CHANNEL_DEFAULT_LEVEL))
		limits->compresses |= value > 0;
	else if (!strcmp(arg->key, GRPC_ARG_MINIMAL_STACK))
		*minimal = value;
}

void limits_read(const grpc_channel_args *args, struct limits *limits)
{
	bool minimal = false;

	*limits = (struct limits){.receive = limit_of(GRPC_DEFAULT_MAX_RECV_MESSAGE_LENGTH),
				  .send = limit_of(GRPC_DEFAULT_MAX_SEND_MESSAGE_LENGTH)};
	for (size_t i = 0; args && i < args->num_args; i++)
		read_argument(&args->args[i], limits, &minimal);
	if (minimal) /* such channels have no filter that would look at lengths */
		limits->receive = limits->send = UINT64_MAX;
}

bool limits_service_forbids(const char *service_config)
{
	static const char *const words[] = {"retryPolicy", "hedgingPolicy", "MessageBytes"};

	for (size_t i = 0; service_config && i < sizeof(words) / sizeof(words[0]); i++) {
		if (strstr(service_config, words[i]))
			return true;
	}
	return false;
}
