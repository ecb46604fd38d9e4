/* SPDX-License-Identifier: Apache-2.0 */
/* What both sides of the plain TCP program use. */
#ifndef BENCH_PLAIN_SOCKET_H
#define BENCH_PLAIN_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "plain_tcp.h"

#define PLAIN_CHUNK (128u * 1024)
#define PLAIN_SILENCE_S 10 /* a peer that is silent for so long is given up */
#define PLAIN_HELLO_SIZE 32

struct plain_hello {
	enum plain_mode mode;
	bool poll;
	uint32_t ping_size;
	char congestion[PLAIN_CONGESTION_MAX];
};

void plain_encode(const struct plain_hello *hello, uint8_t bytes[PLAIN_HELLO_SIZE]);
/* The peer is not trusted: -EPROTO when this is not a hello. */
int plain_decode(const uint8_t bytes[PLAIN_HELLO_SIZE], struct plain_hello *hello);

/* They return 0 or a negative errno. */
int plain_set_silence(int fd);
int plain_set_no_delay(int fd);
int plain_set_congestion(int fd, const char *name);
/* -ECONNRESET when the peer closed before all was there. */
int plain_read_all(int fd, void *bytes, size_t length, bool poll);
int plain_write_all(int fd, const void *bytes, size_t length);

#endif
