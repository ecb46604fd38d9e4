/* SPDX-License-Identifier: Apache-2.0 */
/* Ports on the drivers that every host has: memif, and af_packet on a pair of interfaces. */
#include "port_world.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rte_eal.h>

#include "backend.h"

extern char **environ;

/* ---- The program stays as it was --------------------------------------------- */

/* F41. The first test: EAL starts here. */
static void starting_leaves_the_program_alone(void **state)
{
	int silent = memfd_create("silent", MFD_CLOEXEC), out = dup(1), error = dup(2);
	char name[16], name_after[16], path[256];
	cpu_set_t set, set_after;
	sigset_t mask, mask_after;
	struct sigaction action;
	struct stat about;
	struct port *port;

	fflush(NULL);
	assert_true(silent >= 0 && dup2(silent, 1) == 1 && dup2(silent, 2) == 2);
	pthread_getname_np(pthread_self(), name, sizeof(name));
	sched_getaffinity(0, sizeof(set), &set);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);

	port = world_memif("server", "", 1, 1500);

	pthread_getname_np(pthread_self(), name_after, sizeof(name_after));
	sched_getaffinity(0, sizeof(set_after), &set_after);
	pthread_sigmask(SIG_SETMASK, NULL, &mask_after);
	fflush(NULL);
	dup2(out, 1);
	dup2(error, 2);
	close(out);
	close(error);
	fstat(silent, &about);
	close(silent);
	assert_int_equal(about.st_size, 0);
	assert_string_equal(name, name_after);
	assert_true(CPU_EQUAL(&set, &set_after));
	assert_memory_equal(&mask, &mask_after, sizeof(mask) > 8 ? 8 : sizeof(mask));
	for (int i = 1; i < 32; i++) {
		if (sigaction(i, NULL, &action) == 0 && i != SIGPIPE)
			assert_true(action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN ||
				    i == SIGSEGV || i == SIGABRT || i == SIGFPE || i == SIGILL ||
				    i == SIGBUS || i == SIGSYS);
	}
	snprintf(path, sizeof(path), "%s", rte_eal_get_runtime_dir());
	assert_int_equal(access(path, F_OK), -1);
	port_close(port);
}

/* ---- Packets -------------------------------------------------------------------- */

/* More packets than rings have places, of all lengths, in one and in two pieces. */
static void exchange_all(struct port *a, struct port *b)
{
	struct port_holder holder = {0};
	uint32_t count = 2 * a->ring + 100;

	world_exchange(a, b, 0, count, NULL);
	world_exchange(b, a, count, count, &holder);
	assert_int_equal(holder.count, 0);
	for (uint32_t i = 0; i < 3000; i += 3) {
		world_exchange(a, b, i, 1, NULL);
		world_exchange(a, b, i + 1, 2, &holder);
	}
	assert_int_equal(holder.count, 0);
	assert_false(port_reclaim(a, false));
}

static void memif_carries(uint64_t mtu)
{
	struct port *a = world_memif("server", "", 1, mtu), *b = world_memif("client", "", 2, mtu);
	struct port_counts counts;

	assert_true(a->external && b->external && !a->wire);
	assert_int_equal(a->payload, (mtu == HAUL_OPTION_AUTO ? 9000 : mtu) - 28);
	assert_true(world_wait_link(a, true, 5000) && world_wait_link(b, true, 5000));
	exchange_all(a, b);
	port_counts(b, &counts);
	assert_true(counts.received > b->ring && counts.sent > b->ring);
	port_close(a);
	assert_true(world_wait_link(b, false, 5000));
	port_close(b);
}

static void memif_carries_packets_of_any_length(void **state)
{
	memif_carries(1500);
	memif_carries(HAUL_OPTION_AUTO);
	memif_carries(576);
}

static void af_packet_carries_packets(void **state)
{
	struct port *a, *b;

	if (!world_has_interfaces)
		skip();
	for (unsigned mtu = 1500; mtu <= 9000; mtu += 7500) {
		world_run("ip link set va mtu %u && ip link set vb mtu %u", mtu, mtu);
		a = world_port("va", 1, HAUL_OPTION_AUTO);
		b = world_port("af_packet:vb", 2, HAUL_OPTION_AUTO);
		assert_int_equal(a->payload, mtu - 28);
		assert_true(a->wire && a->external && a->link_up && a->rate == 0);
		exchange_all(a, b);
		port_close(a);
		port_close(b);
	}
}

/* What is not for this port leaves its ring to what is. */
static void af_packet_takes_its_own_only(void **state)
{
	struct port *a, *b;
	struct rte_mbuf *packet, *taken[PORT_BURST];
	uint32_t next = 7;

	if (!world_has_interfaces)
		skip();
	a = world_port("va", 1, 1500);
	b = world_port("vb", 2, 1500);
	packet = world_packet(a, b, 1, NULL);
	rte_pktmbuf_mtod(packet, uint8_t *)[33] = 77; /* to 10.9.0.77 */
	assert_int_equal(port_send(a, 0, &packet, 1), 1);
	world_exchange(a, b, next, 1, NULL);
	/* Its own packets do not come back. */
	assert_int_equal(port_receive(a, 0, taken, PORT_BURST), 0);
	port_close(a);
	port_close(b);
}

/* A ring that nobody empties loses what comes later, and says how much. */
static void af_packet_counts_what_it_missed(void **state)
{
	struct port_counts counts;
	struct port *a, *b;
	uint32_t sent = 0, next = 0;

	if (!world_has_interfaces)
		skip();
	a = world_port("va", 1, 1500);
	b = world_port("vb", 2, 1500);
	while (sent < b->ring + 500) {
		struct rte_mbuf *packet = world_packet(a, b, sent, NULL);

		assert_non_null(packet);
		if (port_send(a, 0, &packet, 1))
			sent++;
		else
			rte_pktmbuf_free(packet);
	}
	while (world_take(b, &next))
		;
	port_counts(b, &counts);
	assert_true(next > 0 && next < sent);
	assert_int_equal(counts.missed, sent - next);
	port_close(a);
	port_close(b);
}

static void af_packet_sees_its_link(void **state)
{
	struct port *port;

	if (!world_has_interfaces)
		skip();
	port = world_port("va", 1, 1500);
	assert_true(port->link_up);
	world_run("ip link set vb down");
	assert_true(world_wait_link(port, false, 5000));
	world_run("ip link set vb up");
	assert_true(world_wait_link(port, true, 5000));
	port_close(port);
}

/* ---- memif's socket ----------------------------------------------------------------- */

static void a_client_may_come_first(void **state)
{
	struct port *b = world_memif("client", "", 2, 1500), *a;

	assert_false(world_wait_link(b, true, 250));
	a = world_memif("server", "", 1, 1500);
	assert_true(world_wait_link(b, true, 5000) && world_wait_link(a, true, 5000));
	world_exchange(a, b, 0, 100, NULL);
	port_close(b);
	port_close(a);
}

static void a_server_may_come_again(void **state)
{
	struct port *a = world_memif("server", "", 1, 1500),
		    *b = world_memif("client", "", 2, 1500);

	for (unsigned i = 0; i < 5; i++) {
		assert_true(world_wait_link(b, true, 5000) && world_wait_link(a, true, 5000));
		world_exchange(a, b, 0, 100, NULL);
		world_exchange(b, a, 0, 100, NULL);
		port_close(a);
		assert_true(world_wait_link(b, false, 5000));
		a = world_memif("server", "", 1, 1500);
	}
	port_close(a);
	port_close(b);
}

static int listen_there(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", world_socket);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 1), 0);
	return fd;
}

static void a_dead_servers_socket_is_taken_over(void **state)
{
	struct port *a, *b;

	close(listen_there());
	assert_int_equal(access(world_socket, F_OK), 0);
	a = world_memif("server", "", 1, 1500);
	b = world_memif("client", "", 2, 1500);
	assert_true(world_wait_link(b, true, 5000) && world_wait_link(a, true, 5000));
	port_close(b);
	port_close(a);
	assert_int_equal(access(world_socket, F_OK), -1);
}

/* ---- Peers that die --------------------------------------------------------------------- */

/* In another process: send without end. */
static int run_peer(const char *path)
{
	struct rte_mbuf *packets[PORT_BURST];
	struct port *port;

	snprintf(world_socket, sizeof(world_socket), "%s", path);
	if (haul_open("tcp", &world_context))
		return 1;
	port = world_memif("client", "", 2, 9000);
	for (uint32_t number = 0;;) {
		struct rte_mbuf *packet = world_packet(port, port, number++, NULL);
		unsigned count = port_receive(port, 0, packets, PORT_BURST);

		while (packet && !port_send(port, 0, &packet, 1))
			port_watch(port, haul_clock());
		while (count)
			rte_pktmbuf_free(packets[--count]);
	}
}

static pid_t start_peer(char *kind)
{
	char *arguments[] = {"test_port", kind, world_socket, NULL};
	pid_t pid;

	assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, arguments, environ), 0);
	return pid;
}

/* Both directions are busy when it dies: copies out of the memory that goes away are under way. */
static void a_peer_dies_under_load(void **state)
{
	struct port *port = world_memif("server", "", 1, 9000);
	struct rte_mbuf *packets[PORT_BURST];
	struct port_holder holder = {0};

	for (unsigned i = 0; i < 12; i++) {
		pid_t peer = start_peer("peer");
		unsigned received = 0;
		uint64_t until;

		assert_true(world_wait_link(port, true, 20000));
		until = haul_clock() + UINT64_C(10000000000);
		while (port->link_up) {
			unsigned count = port_receive(port, 0, packets, PORT_BURST);
			struct rte_mbuf *packet = world_packet(port, port, i, &holder);

			received += count;
			while (count)
				rte_pktmbuf_free(packets[--count]);
			if (packet && !port_send(port, 0, &packet, 1))
				rte_pktmbuf_free(packet);
			if (received > 1000 * (i + 1) && peer > 0) {
				kill(peer, SIGKILL);
				waitpid(peer, NULL, 0);
				peer = 0;
			}
			port_watch(port, haul_clock());
			assert_true(haul_clock() < until);
		}
		assert_int_equal(peer, 0);
		assert_int_equal(holder.count, 0);
	}
	port_close(port);
}

/* In another process, as its first port: a card whose host goes. */
static int run_card(const char *path)
{
	struct rte_mbuf *packet;
	struct port *port;
	char text[128];
	bool was;

	signal(SIGPIPE, SIG_DFL);
	if (haul_open("tcp", &world_context))
		return 1;
	snprintf(text, sizeof(text), "net_virtio_user,path=%s", path);
	port = world_port(text, 2, 1500);
	packet = world_packet(port, port, 0, NULL);
	was = world_wait_link(port, true, 20000) && port_send(port, 0, &packet, 1) == 1 &&
	      world_wait_link(port, false, 20000);
	port_close(port);
	haul_close(world_context);
	return was ? 0 : 2;
}

/* virtio_user's driver says that it goes to a socket that nobody reads any more: no SIGPIPE. */
static void a_card_outlives_its_host(void **state)
{
	uint64_t until = haul_clock() + UINT64_C(20000000000);
	struct rte_mbuf *packet;
	struct port *host;
	char text[128];
	int status;
	pid_t card;

	snprintf(text, sizeof(text), "net_vhost,iface=%s", world_socket);
	host = world_port(text, 1, 1500);
	card = start_peer("card");
	while (!port_receive(host, 0, &packet, 1))
		assert_true(haul_clock() < until);
	rte_pktmbuf_free(packet);
	port_close(host);
	assert_int_equal(waitpid(card, &status, 0), card);
	assert_int_equal(status, 0);
}

/* ---- Nothing is left behind ----------------------------------------------------------------- */

static void open_and_close(bool interfaces)
{
	struct port *a, *b;

	if (interfaces) {
		a = world_port("va", 1, 1500);
		b = world_port("vb", 2, 1500);
	} else {
		a = world_memif("server", ",rsize=6", 1, 1500);
		b = world_memif("client", ",rsize=6", 2, 1500);
		assert_true(world_wait_link(a, true, 5000) && world_wait_link(b, true, 5000));
	}
	world_exchange(a, b, 0, 10, NULL);
	port_close(a);
	port_close(b);
}

static void opening_and_closing_leaves_nothing(void **state)
{
	unsigned descriptors = 0, threads = 0;
	unsigned long resident __attribute__((unused)) = 0;

	for (unsigned i = 0; i < 200; i++) {
		if (i == 20) {
			descriptors = world_descriptors();
			threads = world_threads();
			resident = world_resident_kib();
		}
		open_and_close(world_has_interfaces && i % 2);
	}
	assert_int_equal(world_descriptors(), descriptors);
	assert_int_equal(world_threads(), threads);
	/* One port's packets take more. (Sanitizers keep what was freed.) */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	assert_in_range(world_resident_kib(), 0, resident + 4096);
#endif
}

/* What the driver uses would write to standard error. */
static void af_xdp_is_silent(void **state)
{
	struct dpdk_config config = world_config("af_xdp:va", "10.9.0.1/24");
	int silent = memfd_create("silent", MFD_CLOEXEC), error = dup(2), result;
	struct stat about;
	struct port *port;

	if (!world_has_interfaces)
		skip();
	world_run("ip link set va mtu 3400 && ip link set vb mtu 3400");
	fflush(NULL);
	dup2(silent, 2);
	result = port_open(world_context, &config, &port);
	if (!result)
		port_close(port);
	dup2(error, 2);
	close(error);
	fstat(silent, &about);
	close(silent);
	world_run("ip link set va mtu 9000 && ip link set vb mtu 9000");
	assert_int_equal(about.st_size, 0);
	if (result) {
		print_message("af_xdp can't be used: %s\n", haul_detail(world_context));
		skip();
	}
}

/* ---- Forks ------------------------------------------------------------------------------------
 */

/* While a forked child lives on, the peer still learns that the parent closed its port. */
static void a_child_holds_nothing(void **state)
{
	struct port *a = world_memif("server", "", 1, 1500),
		    *b = world_memif("client", "", 2, 1500);
	int end[2];
	pid_t child;
	char byte;

	assert_true(world_wait_link(b, true, 5000) && world_wait_link(a, true, 5000));
	assert_int_equal(pipe2(end, O_CLOEXEC), 0);
	child = fork();
	if (child == 0) {
		port_close_in_child(a);
		port_close_in_child(b);
		close(end[1]);
		_exit(read(end[0], &byte, 1) != 0);
	}
	port_close(a);
	assert_true(world_wait_link(b, false, 5000));
	port_close(b);
	close(end[1]);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(end[0]);
}

int main(int count, char **arguments)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(starting_leaves_the_program_alone),
		cmocka_unit_test(memif_carries_packets_of_any_length),
		cmocka_unit_test(af_packet_carries_packets),
		cmocka_unit_test(af_packet_takes_its_own_only),
		cmocka_unit_test(af_packet_counts_what_it_missed),
		cmocka_unit_test(af_packet_sees_its_link),
		cmocka_unit_test(a_client_may_come_first),
		cmocka_unit_test(a_server_may_come_again),
		cmocka_unit_test(a_dead_servers_socket_is_taken_over),
		cmocka_unit_test(a_peer_dies_under_load),
		cmocka_unit_test(a_card_outlives_its_host),
		cmocka_unit_test(opening_and_closing_leaves_nothing),
		cmocka_unit_test(af_xdp_is_silent),
		cmocka_unit_test(a_child_holds_nothing),
	};
	int failed;

	if (count == 3 && !strcmp(arguments[1], "peer"))
		return run_peer(arguments[2]);
	if (count == 3 && !strcmp(arguments[1], "card"))
		return run_card(arguments[2]);
	world_start();
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	world_end();
	return failed;
}
