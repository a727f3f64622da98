/* What the programs here have in common: the clock, sockets on loopback, memory, and the line
 * of JSON that the harness reads. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* die ends the program with the reason of the last call. */
static inline _Noreturn void die(const char *what)
{
	perror(what);
	exit(1);
}

static inline int usage(const char *line)
{
	fprintf(stderr, "usage: %s\n", line);
	return 2;
}

/* now is the time in ns, of the clock that only goes forward. */
static inline int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* cpu is the time that this process has used so far, ns. */
static inline int64_t cpu(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000LL + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000LL;
}

/* tcp is a socket with reno, as the product has within one host; accepted ones inherit it. */
static inline int tcp(void)
{
	int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);
	if (s < 0)
		die("socket");
	signal(SIGPIPE, SIG_IGN);
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return s;
}

static inline struct sockaddr_in loopback(const char *port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static inline int listen_at(const char *port)
{
	struct sockaddr_in a = loopback(port);
	int s = tcp();
	if (bind(s, (void *)&a, sizeof a) || listen(s, 512))
		die("listen");
	return s;
}

static inline int accept_on(int l)
{
	int s = accept(l, NULL, NULL);
	if (s < 0)
		die("accept");
	return s;
}

static inline int connect_to(const char *port)
{
	struct sockaddr_in a = loopback(port);
	int s = tcp();
	if (connect(s, (void *)&a, sizeof a))
		die("connect");
	return s;
}

/* read_all reads n bytes; -1: the stream has ended before. */
static inline int read_all(int s, void *to, size_t n)
{
	for (char *p = to; n > 0;) {
		ssize_t k = read(s, p, n);
		if (k < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (k <= 0)
			return -1;
		p += k;
		n -= k;
	}
	return 0;
}

/* write_all writes n bytes; -1: the peer has gone. */
static inline int write_all(int s, const void *from, size_t n)
{
	for (const char *p = from; n > 0;) {
		ssize_t k = write(s, p, n);
		if (k < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (k < 0)
			return -1;
		p += k;
		n -= k;
	}
	return 0;
}

/* memory is n bytes that this process and the kernel, in its place, have touched: where a hypervisor gives
 * memory page by page, and shadows page tables, each of the two pays once for each page. */
static inline void *memory(size_t n)
{
	void *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int zero = open("/dev/zero", O_RDONLY);
	if (m == MAP_FAILED || zero < 0 || read_all(zero, m, n))
		die("memory");
	close(zero);
	return memset(m, 1, n);
}

/* at_random is one of n things; everybody has the same order. */
static inline uint64_t at_random(uint64_t n)
{
	static uint64_t x = 88172645463325252ull;
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return x % n;
}

enum { TRIPS = 2 << 20 };
static int64_t *trips; /* ns each */
static size_t ntrips;

/* keep_trips makes room for what trip keeps, before a measurement begins. */
static inline void keep_trips(void)
{
	if ((trips = malloc(TRIPS * sizeof *trips)) == NULL)
		die("malloc");
	memset(trips, 1, TRIPS * sizeof *trips);
}

/* trip keeps how long something took; what comes after so many is not kept. */
static inline void trip(int64_t ns)
{
	if (ntrips < TRIPS)
		trips[ntrips++] = ns;
}

static inline int by_value(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

/* report prints what was moved in how many ns, with the processor time of this process meanwhile. */
static inline void report(double messages, double bytes, int64_t took, int64_t used)
{
	int64_t p50 = 0, p99 = 0;
	if (ntrips > 0) {
		qsort(trips, ntrips, sizeof *trips, by_value);
		p50 = trips[ntrips / 2];
		p99 = trips[ntrips * 99 / 100];
	}
	printf("{\"messages\":%.0f,\"bytes\":%.0f,\"seconds\":%f,\"cpu_s\":%f,\"p50_ns\":%lld,\"p99_ns\":%lld}\n", messages, bytes, took / 1e9,
	       used / 1e9, (long long)p50, (long long)p99);
}
