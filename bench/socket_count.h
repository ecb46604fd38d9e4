/* SPDX-License-Identifier: Apache-2.0 */
/* How many TCP sockets this process really has to a peer. */
#ifndef BENCH_SOCKET_COUNT_H
#define BENCH_SOCKET_COUNT_H

#include <stdint.h>

/* Open sockets of this process that are connected to that port, of whatever host; or a negative
 * errno. */
int sockets_to_port(uint16_t port);

#endif
