/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/auth.h"

#define NOBODY 65534

static char folder[64];
static char path[128];   /* of the key file */
static char method[160]; /* psk: and the path */

static int make_folder(void **state)
{
	strcpy(folder, "/tmp/tensorhaul-auth-XXXXXX");
	if (!mkdtemp(folder) || chmod(folder, 0711))
		return -1;
	snprintf(path, sizeof(path), "%s/key", folder);
	snprintf(method, sizeof(method), "psk:%s", path);
	return 0;
}

static int remove_folder(void **state)
{
	unlink(path);
	return rmdir(folder);
}

static void write_key(const void *bytes, size_t length, mode_t mode)
{
	int fd;

	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, length), length);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

static void assert_refused(const char *what, int error, const char *value, const char *valid)
{
	struct auth_key key;
	char why[512] = "";

	memset(&key, 0xff, sizeof(key));
	assert_int_equal(auth_load(what, &key, why, sizeof(why)), error);
	assert_contains(why, value);
	assert_contains(why, valid);
	assert_int_equal(key.length, 0);
	assert_int_equal(auth_load(what, &key, NULL, 0), error);
}

static void loads(void **state)
{
	static const uint8_t binary[20] = {0, 1,  '\n', 3,  0,  5,  6,  7, 8,
					   9, 10, 11,   12, 13, 14, 15, 0};
	struct auth_key key;
	char why[512];

	write_key("0123456789abcdef", 16, 0600);
	assert_int_equal(auth_load(method, &key, why, sizeof(why)), 0);
	assert_int_equal(key.length, 16);
	assert_memory_equal(key.bytes, "0123456789abcdef", 16);
	write_key("0123456789abcdef\n", 17, 0400);
	assert_int_equal(auth_load(method, &key, why, sizeof(why)), 0);
	assert_int_equal(key.length, 16);
	write_key("0123456789abcdef\n\n", 18, 0600); /* one newline is left out, not two */
	assert_int_equal(auth_load(method, &key, why, sizeof(why)), 0);
	assert_int_equal(key.length, 17);
	write_key(binary, sizeof(binary), 0600);
	assert_int_equal(auth_load(method, &key, why, sizeof(why)), 0);
	assert_int_equal(key.length, sizeof(binary));
	assert_memory_equal(key.bytes, binary, sizeof(binary));
}

static void lengths(void **state)
{
	char *bytes = test_malloc(AUTH_KEY_MAX + 100);
	struct auth_key key;

	memset(bytes, 'k', AUTH_KEY_MAX + 100);
	write_key("", 0, 0600);
	assert_refused(method, -EINVAL, path, "16 to 4096");
	write_key("\n", 1, 0600);
	assert_refused(method, -EINVAL, "has 0 bytes", "16 to 4096");
	write_key("0123456789abcde\n", 16, 0600);
	assert_refused(method, -EINVAL, "has 15 bytes", "16 to 4096");
	write_key(bytes, AUTH_KEY_MAX, 0600);
	assert_int_equal(auth_load(method, &key, NULL, 0), 0);
	assert_int_equal(key.length, AUTH_KEY_MAX);
	bytes[AUTH_KEY_MAX] = '\n';
	write_key(bytes, AUTH_KEY_MAX + 1, 0600);
	assert_int_equal(auth_load(method, &key, NULL, 0), 0);
	assert_int_equal(key.length, AUTH_KEY_MAX);
	bytes[AUTH_KEY_MAX] = 'k';
	for (size_t more = 1; more < 100; more++) {
		write_key(bytes, AUTH_KEY_MAX + more, 0600);
		assert_refused(method, -EINVAL, path, "16 to 4096");
	}
	test_free(bytes);
}

static void methods(void **state)
{
	static const char *const wrong[] = {"", "psk", "psk:", "PSK:/x", "tls:/x", "/etc/key"};

	for (size_t i = 0; i < COUNT(wrong); i++)
		assert_refused(wrong[i], -EINVAL, wrong[i], "psk:FILE");
	assert_refused(NULL, -EINVAL, "auth", "psk:FILE");
}

static void open_to_others(void **state)
{
	static const mode_t modes[] = {0640, 0620, 0604, 0602, 0666, 0777};
	char value[8];

	for (size_t i = 0; i < COUNT(modes); i++) {
		write_key("0123456789abcdef", 16, modes[i]);
		snprintf(value, sizeof(value), "%03o", modes[i]);
		assert_refused(method, -EACCES, value, "chmod 600");
	}
}

static void files_that_are_none(void **state)
{
	char other[200];

	unlink(path);
	assert_refused(method, -ENOENT, path, "No such file");
	write_key("0123456789abcdef", 16, 0600);
	snprintf(other, sizeof(other), "psk:%s/below", path);
	assert_refused(other, -ENOENT, path, "Not a directory");
	snprintf(other, sizeof(other), "psk:%s", folder);
	assert_refused(other, -EINVAL, folder, "not a regular file");
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0); /* must not wait for a writer */
	assert_refused(method, -EINVAL, path, "not a regular file");
}

static void unreadable(void **state)
{
	bool root = !geteuid();

	write_key("0123456789abcdef", 16, root ? 0600 : 0200);
	if (root)
		assert_int_equal(seteuid(NOBODY), 0);
	assert_refused(method, -EACCES, path, "Permission denied");
	if (root)
		assert_int_equal(seteuid(0), 0);
}

static void forgets(void **state)
{
	static const struct auth_key nothing;
	struct auth_key key;

	write_key("0123456789abcdef", 16, 0600);
	assert_int_equal(auth_load(method, &key, NULL, 0), 0);
	auth_forget(&key);
	assert_memory_equal(&key, &nothing, sizeof(key));
}

static void make_hellos(struct auth_key *key, uint8_t connector[64], uint8_t acceptor[64])
{
	memset(key, 0, sizeof(*key));
	key->length = 32;
	for (int i = 0; i < 32; i++)
		key->bytes[i] = (uint8_t)(i + 1);
	for (int i = 0; i < WIRE_HELLO_SIZE; i++) {
		connector[i] = (uint8_t)i;
		acceptor[i] = (uint8_t)(255 - i);
	}
}

/* Computed with Python's hmac module. */
static void known_proofs(void **state)
{
	static const uint8_t of_connector[] = {
		0x8c, 0x03, 0x9a, 0x28, 0xd1, 0x3e, 0xb2, 0x68, 0x79, 0x3a, 0x29,
		0xd5, 0xb3, 0xdb, 0x60, 0x47, 0x0f, 0x33, 0x0f, 0x91, 0x4b, 0x36,
		0xbe, 0x6b, 0xdb, 0x56, 0x51, 0x90, 0x9e, 0xa9, 0xe8, 0x0d,
	};
	static const uint8_t of_acceptor[] = {
		0x47, 0xc7, 0x8d, 0x99, 0xb9, 0x9a, 0xce, 0x08, 0x47, 0x83, 0x80,
		0xb9, 0xfa, 0xb6, 0xb6, 0x6d, 0xa2, 0x98, 0x8c, 0x65, 0xed, 0xc0,
		0x75, 0xd8, 0x56, 0xd6, 0x81, 0xcb, 0x8b, 0x3e, 0x72, 0x2e,
	};
	uint8_t connector[WIRE_HELLO_SIZE], acceptor[WIRE_HELLO_SIZE], mac[WIRE_MAC_SIZE];
	struct auth_key key;

	make_hellos(&key, connector, acceptor);
	assert_int_equal(auth_proof(&key, WIRE_CONNECTOR, connector, acceptor, mac), 0);
	assert_memory_equal(mac, of_connector, WIRE_MAC_SIZE);
	assert_int_equal(auth_proof(&key, WIRE_ACCEPTOR, connector, acceptor, mac), 0);
	assert_memory_equal(mac, of_acceptor, WIRE_MAC_SIZE);
}

/* Each byte of the key and of both messages counts, and so does their order. */
static void every_byte_is_proved(void **state)
{
	uint8_t connector[WIRE_HELLO_SIZE], acceptor[WIRE_HELLO_SIZE];
	uint8_t mac[WIRE_MAC_SIZE], other[WIRE_MAC_SIZE];
	struct auth_key key;

	make_hellos(&key, connector, acceptor);
	auth_proof(&key, WIRE_CONNECTOR, connector, acceptor, mac);
	auth_proof(&key, WIRE_CONNECTOR, acceptor, connector, other);
	assert_false(auth_equal(mac, other, WIRE_MAC_SIZE));
	for (size_t i = 0; i < 2 * WIRE_HELLO_SIZE + key.length; i++) {
		uint8_t *byte = i < WIRE_HELLO_SIZE       ? &connector[i]
				: i < 2 * WIRE_HELLO_SIZE ? &acceptor[i - WIRE_HELLO_SIZE]
							  : &key.bytes[i - 2 * WIRE_HELLO_SIZE];

		*byte ^= 0x10;
		auth_proof(&key, WIRE_CONNECTOR, connector, acceptor, other);
		assert_false(auth_equal(mac, other, WIRE_MAC_SIZE));
		*byte ^= 0x10;
	}
	key.length--;
	auth_proof(&key, WIRE_CONNECTOR, connector, acceptor, other);
	assert_false(auth_equal(mac, other, WIRE_MAC_SIZE));
}

static void equal(void **state)
{
	uint8_t a[32] = {0}, b[32] = {0};

	assert_true(auth_equal(a, b, 32));
	for (int i = 0; i < 32; i++) {
		b[i] = 1;
		assert_false(auth_equal(a, b, 32));
		assert_true(auth_equal(a, b, (size_t)i));
		b[i] = 0;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loads),
		cmocka_unit_test(lengths),
		cmocka_unit_test(methods),
		cmocka_unit_test(open_to_others),
		cmocka_unit_test(files_that_are_none),
		cmocka_unit_test(unreadable),
		cmocka_unit_test(forgets),
		cmocka_unit_test(known_proofs),
		cmocka_unit_test(every_byte_is_proved),
		cmocka_unit_test(equal),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
