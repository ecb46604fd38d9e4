/* SPDX-License-Identifier: Apache-2.0 */
#include "auth.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

#define METHOD "psk:"
#define KEY_MIN 16
#define LABEL "tensorhaul proof"

/* What the open file is: a regular file that only its owner can read and write. */
static int check_file(int fd, const char *path, char *why, size_t room)
{
	struct stat status;

	if (fstat(fd, &status))
		return explain(why, room, -errno, "auth: %.200s: %s", path, strerror(errno));
	if (!S_ISREG(status.st_mode))
		return explain(why, room, -EINVAL, "auth: %.200s is not a regular file", path);
	if (status.st_mode & (S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH))
		return explain(why, room, -EACCES,
			       "auth: %.200s has mode %03o, so that others than its owner can read "
			       "or write the key; run: chmod 600 %.200s",
			       path, (unsigned)status.st_mode & 0777u, path);
	return 0;
}

static int open_file(const char *path, char *why, size_t room)
{
	/* O_NONBLOCK: a fifo is refused, not waited for. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	int error;

	if (fd >= 0)
		return fd;
	error = errno == EPERM ? EACCES : errno == ENOTDIR ? ENOENT : errno;
	return explain(why, room, -error, "auth: the key file %.200s can't be read: %s", path,
		       strerrordesc_np(errno));
}

/* Up to `room` bytes; the number that was read or a negative errno. */
static ssize_t read_all(int fd, uint8_t *bytes, size_t room)
{
	size_t length = 0;

	while (length < room) {
		ssize_t got = read(fd, bytes + length, room - length);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (!got)
			break;
		length += (size_t)got;
	}
	return (ssize_t)length;
}

static int read_key(int fd, const char *path, struct auth_key *key, char *why, size_t room)
{
	uint8_t bytes[AUTH_KEY_MAX + 2]; /* the newline, and one that is too many */
	ssize_t got = read_all(fd, bytes, sizeof(bytes));
	size_t length = got < 0 ? 0 : (size_t)got;
	int error = 0;

	if (length && bytes[length - 1] == '\n')
		length--;
	if (got < 0)
		error = explain(why, room, (int)got, "auth: the key file %.200s can't be read: %s",
				path, strerrordesc_np((int)-got));
	else if (length < KEY_MIN)
		error = explain(why, room, -EINVAL,
				"auth: the key in %.200s has %zu bytes; it must have %d to %d",
				path, length, KEY_MIN, AUTH_KEY_MAX);
	else if (length > AUTH_KEY_MAX)
		error = explain(why, room, -EINVAL,
				"auth: the key in %.200s has more than %d bytes; it must have "
				"%d to %d",
				path, AUTH_KEY_MAX, KEY_MIN, AUTH_KEY_MAX);
	if (!error) {
		memcpy(key->bytes, bytes, length);
		key->length = length;
	}
	OPENSSL_cleanse(bytes, sizeof(bytes));
	return error;
}

int auth_load(const char *method, struct auth_key *key, char *why, size_t room)
{
	const char *path;
	int fd, error;

	memset(key, 0, sizeof(*key));
	if (!method || strncmp(method, METHOD, strlen(METHOD)) || !method[strlen(METHOD)])
		return explain(
			why, room, -EINVAL,
			"auth=%.80s: the only method is psk:FILE, with a file of %d to %d bytes",
			method ? method : "", KEY_MIN, AUTH_KEY_MAX);
	path = method + strlen(METHOD);
	fd = open_file(path, why, room);
	if (fd < 0)
		return fd;
	error = check_file(fd, path, why, room);
	if (!error)
		error = read_key(fd, path, key, why, room);
	close(fd);
	return error;
}

void auth_forget(struct auth_key *key)
{
	OPENSSL_cleanse(key, sizeof(*key));
}

int auth_proof(const struct auth_key *key, enum wire_role prover,
	       const uint8_t connector[WIRE_HELLO_SIZE], const uint8_t acceptor[WIRE_HELLO_SIZE],
	       uint8_t mac[WIRE_MAC_SIZE])
{
	uint8_t text[sizeof(LABEL) - 1 + 1 + 2 * WIRE_HELLO_SIZE];
	uint8_t *next = text;
	unsigned length = 0;
	bool done;

	next = mempcpy(next, LABEL, sizeof(LABEL) - 1);
	*next++ = (uint8_t)prover;
	next = mempcpy(next, connector, WIRE_HELLO_SIZE);
	memcpy(next, acceptor, WIRE_HELLO_SIZE);
	ERR_set_mark(); /* the caller's own OpenSSL errors stay as they are */
	done = HMAC(EVP_sha256(), key->bytes, (int)key->length, text, sizeof(text), mac, &length);
	ERR_pop_to_mark();
	return done && length == WIRE_MAC_SIZE ? 0 : -EIO;
}

bool auth_equal(const uint8_t *a, const uint8_t *b, size_t length)
{
	return CRYPTO_memcmp(a, b, length) == 0;
}
