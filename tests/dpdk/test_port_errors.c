/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with the options of a port, and what the user is told. */
#include "port_world.h"

#include "port_private.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The port of these options is refused, with all of these words, and nothing stays open. */
static void refused(const struct dpdk_config *config, int error, const char *first,
		    const char *second)
{
	unsigned descriptors = world_descriptors();
	struct port *port = NULL;

	assert_int_equal(port_open(world_context, config, &port), error);
	assert_null(port);
	assert_contains(haul_detail(world_context), first);
	assert_contains(haul_detail(world_context), second);
	assert_int_equal(world_descriptors(), descriptors);
}

static char *memif(const char *words)
{
	static char text[400];

	snprintf(text, sizeof(text), "net_memif,socket=%s,socket-abstract=no,%s", world_socket,
		 words);
	return text;
}

/* The first test: DPDK does not run yet. It must not even start to print its usage, or to end. */
static void wrong_arguments_of_dpdk(void **state)
{
	static const struct {
		char *eal;
		const char *first, *second;
	} cases[] = {
		{"--nonsense", "\"--nonsense\"", "--log-level"},
		{"--help", "\"--help\"", "valid are"},
		{"-h", "\"-h\"", "valid are"},
		{"--vdev=net_null0", "--vdev=net_null0", "valid are"},
		{"-m 64", "\"-m\"", "valid are"},
		{"word", "\"word\"", "valid are"},
		{"-n 4 word", "\"word\"", "valid are"},
		{"--legacy-mem=1", "--legacy-mem=1", "valid are"},
		{"-n", "last argument", "needs a value"},
	};
	struct dpdk_config config = world_config(memif("role=server"), "10.0.0.5/24");
	char many[512] = "";

	for (size_t i = 0; i < COUNT(cases); i++) {
		config.eal = cases[i].eal;
		refused(&config, -EINVAL, cases[i].first, cases[i].second);
	}
	for (unsigned i = 0; i < 60; i++)
		strcat(many, "-n 4 ");
	config.eal = many;
	refused(&config, -E2BIG, "eal=", "more than");
}

/* F42. */
static void too_few_hugepages(void **state)
{
	struct dpdk_config config = world_config(memif("role=server"), "10.0.0.5/24");
	struct eal_hugepages pages;

	eal_hugepages(&pages);
	if (pages.free * pages.size >= 64 << 20)
		skip();
	config.hugepages = DPDK_HUGEPAGES_YES;
	refused(&config, -ENOMEM, "hugepages=yes needs 64 MiB", "echo ");
	refused(&config, -ENOMEM, "nr_hugepages", "hugepages=no does without");
}

/* EAL runs from here on, so that its own descriptors are there. */
static void a_port_that_is_right(void **state)
{
	struct port *port = world_memif("server", "", 1, 1500);

	port_close(port);
}

static void wrong_addresses(void **state)
{
	static const struct {
		char *ip, *gateway;
		const char *first, *second;
	} cases[] = {
		{NULL, NULL, "ip= is missing", "ip=10.0.0.5/24"},
		{"10.0.0.5", NULL, "no prefix", "ip=10.0.0.5/24"},
		{"10.0.0.5/", NULL, "10.0.0.5/", "prefix of 1 to 31"},
		{"10.0.0.5/32", NULL, "10.0.0.5/32", "prefix of 1 to 31"},
		{"10.0.0.5/24x", NULL, "10.0.0.5/24x", "prefix"},
		{"10.0.0.5/ 24", NULL, "10.0.0.5/ 24", "prefix"},
		{"10.0.0.256/24", NULL, "10.0.0.256/24", "no IPv4 address"},
		{"fe80::1/64", NULL, "fe80::1/64", "no IPv4 address"},
		{"10.0.0.0/24", NULL, "10.0.0.0/24", "net's own"},
		{"10.0.0.255/24", NULL, "10.0.0.255/24", "broadcast"},
		{"224.0.0.1/24", NULL, "224.0.0.1/24", "no address of a host"},
		{"127.0.0.1/8", NULL, "127.0.0.1/8", "no address of a host"},
		{"10.0.0.5/24", "10.0.0.300", "gateway=10.0.0.300", "IPv4 address"},
		{"10.0.0.5/24", "10.0.1.1", "gateway=10.0.1.1", "not on the net of ip=10.0.0.5/24"},
		{"10.0.0.5/24", "10.0.0.5", "gateway=10.0.0.5", "own address"},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct dpdk_config config = world_config(memif("role=server"), cases[i].ip);

		config.gateway = cases[i].gateway;
		refused(&config, -EINVAL, cases[i].first, cases[i].second);
	}
}

static void wrong_ports(void **state)
{
	struct dpdk_config config = world_config(NULL, "10.0.0.5/24");

	refused(&config, -EINVAL, "port= is missing", "PCI address");
	config.port = "net_nothing,a=b";
	refused(&config, -EINVAL, "net_nothing", "net_memif");
	config.port = "net_vhost0";
	refused(&config, -EINVAL, "iface= is missing", "port={net_vhost,iface=/");
	config.port = "net_virtio_user0,queue_size=256,path=";
	refused(&config, -EINVAL, "path= is missing", "port={net_virtio_user,path=/");
	config.port = "nosuch0";
	refused(&config, -ENODEV, "no interface nosuch0",
		world_has_interfaces ? "va" : "there are");
	config.port = "af_packet:";
	refused(&config, -EINVAL, "no interface's name", "this host has");
	config.port = "net_af_packet,iface=lo";
	refused(&config, -EINVAL, "loopback", "net_memif");
	config.port = "net_af_packet,framesz=2048";
	refused(&config, -EINVAL, "iface=", "interface");
	config.port = "ffff:ff:1f.6";
	refused(&config, -ENODEV, "no such PCI device", "dpdk-devbind.py");
	config.port = "net_tap";
	config.mtu = 9000;
	refused(&config, -EMSGSIZE, "mtu=9000", "1500");
}

static void wrong_words_for_memif(void **state)
{
	static const struct {
		const char *words, *first, *second;
	} cases[] = {
		{"id=0", "role=server", "role=client"},
		{"role=master", "role=server", "role=client"},
		{"role=client,zero-copy=yes", "zero-copy=yes", "valid is no"},
		{"role=client,bsize=1500", "bsize=1500", "leave bsize out"},
		{"role=client,bsize=70000", "bsize=70000", "65535"},
		{"role=client,rsize=15", "rsize=15", "1 to 14"},
		{"role=client,ring=10", "ring=10", "rsize"},
		{"role=client,id", "\"id\"", "=VALUE"},
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct dpdk_config config = world_config(memif(cases[i].words), "10.0.0.5/24");

		config.mtu = 1500;
		refused(&config, -EINVAL, cases[i].first, cases[i].second);
	}
}

static void sockets_that_are_taken(void **state)
{
	struct dpdk_config config = world_config(memif("role=server"), "10.0.0.5/24");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct port *port;

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", world_socket);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 5), 0);
	refused(&config, -EADDRINUSE, world_socket, "another process listens");
	close(fd);
	unlink(world_socket);
	/* By a port of this process. */
	port = world_memif("server", "", 1, 1500);
	refused(&config, -EADDRINUSE, world_socket, "listens");
	port_close(port);
	/* By something else. */
	world_run("echo hello >%s", world_socket);
	refused(&config, -EEXIST, world_socket, "no socket");
	world_run("grep -q hello %s", world_socket);
	unlink(world_socket);
}

static void too_little_memory(void **state)
{
	struct dpdk_config config = world_config(memif("role=server"), "10.0.0.5/24");

	config.memory = 1 << 20;
	refused(&config, -ENOMEM, "memory=1048576", "too little");
	config.memory = UINT64_C(1) << 45;
	refused(&config, -ENOMEM, "no memory for packets", "memory=");
}

/* F42: among them one that is down. */
static void interfaces_that_do_not_fit(void **state)
{
	struct dpdk_config config = world_config("va", "10.0.0.5/24");
	struct port *port;
	int claim;

	if (!world_has_interfaces)
		skip();
	world_run("ip link set va down");
	refused(&config, -ENETDOWN, "va is down", "ip link set dev va up");
	world_run("ip link set va up");
	world_run("ip link set va mtu 1500");
	config.mtu = 9000;
	refused(&config, -EMSGSIZE, "mtu=9000", "ip link set dev va mtu 9000");
	config.mtu = 1500;
	world_run("ip addr add 10.0.0.5/24 dev va");
	refused(&config, -EADDRINUSE, "kernel's own address on va",
		"ip addr del 10.0.0.5/24 dev va");
	world_run("ip addr del 10.0.0.5/24 dev va");
	port = world_port("va", 1, 1500);
	refused(&config, -EBUSY, "another context of this process", "va");
	port_close(port);
	/* Another process says so with its socket. */
	claim = interface_claim("va", 0x0a000005);
	assert_true(claim >= 0);
	assert_int_equal(interface_claim("va", 0x0a000005), -EADDRINUSE);
	refused(&config, -EADDRINUSE, "ip=10.0.0.5/24", "on the interface va; each needs");
	close(claim);
	/* Nothing of all that is in the way. */
	port = world_port("va", 1, 1500);
	port_close(port);
	world_run("ip link set va mtu 9000");
}

static void what_eal_does_not_take(void **state)
{
	struct dpdk_config config = world_config(memif("role=server"), "10.0.0.5/24");

	/* It runs already: the first context decides. */
	config.hugepages = DPDK_HUGEPAGES_YES;
	if (access("/sys/kernel/mm/hugepages", F_OK) == 0)
		refused(&config, -EBUSY, "hugepages=yes", "earlier context");
}

static void descriptions(void **state)
{
	char text[8192], reason[300];

	assert_int_equal(port_probe(reason, sizeof(reason)), 0);
	assert_contains(reason, "DPDK");
	assert_int_equal(port_describe(NULL, text, sizeof(text)), 0);
	assert_contains(text, "DPDK 2");
	assert_contains(text, "hugepages: ");
	assert_contains(text, "net_memif");
	if (world_has_interfaces)
		assert_contains(text, "interface va: up, MTU 9000");
	/* Short of room it ends early. */
	for (size_t room = 1; room < 200; room++) {
		memset(text, 'x', sizeof(text));
		assert_int_equal(port_describe(NULL, text, room), 0);
		assert_true(strlen(text) < room);
		assert_int_equal(text[room], 'x');
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_arguments_of_dpdk),
		cmocka_unit_test(too_few_hugepages),
		cmocka_unit_test(a_port_that_is_right),
		cmocka_unit_test(wrong_addresses),
		cmocka_unit_test(wrong_ports),
		cmocka_unit_test(wrong_words_for_memif),
		cmocka_unit_test(sockets_that_are_taken),
		cmocka_unit_test(too_little_memory),
		cmocka_unit_test(interfaces_that_do_not_fit),
		cmocka_unit_test(what_eal_does_not_take),
		cmocka_unit_test(descriptions),
	};
	int failed;

	world_start();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	world_end();
	return failed;
}
