/* One stream of bulk data: what RDMA Writes of 1 MiB and storage at 1 MiB cost when there is
 * nothing but the wire work.
 *
 *   stream serve PORT MIB                                   sends or takes, as it is asked; has so much memory
 *   stream send|take PORT plain|fpdu|crc MIB MS [spin]      walks over MIB of memory at both ends
 *
 * "plain" is a byte stream, 1 MiB to a call. "fpdu" are FPDUs of 60 KiB: nine to a writev, and at
 * the receiver a readv of each payload to its place with what is before the next one behind it.
 * Memory that is walked over is read before it is sent, a byte of each line, 512 KiB of a byte stream
 * or four FPDUs at a time, so that the kernel's copy finds it in the cache. "crc" sums each payload as well, before it is sent
 * and when it has come, in rounds of four. With "spin" the receiver does not sleep, so that
 * the sender need not wake it up. Left out: requests and completions, keys,
 * queue pairs, and the placing by what a header says. */
#include "bound.h"
#include "crc.h"
#include <fcntl.h>

enum { M = 1 << 20, PAYLOAD = 60 << 10, GAP = 20, ROUND = 9, ROUND_READ = 4, LINE = 64 }; /* GAP: trailer and next header */
enum { PLAIN, FPDU, CRC };

struct hello {
	uint32_t send, how, mib, spin; /* what the server is to do */
};

struct walk {
	char *memory;
	size_t span, at, left; /* left: of the payload at "at" */
	int how;
};

static char gap[GAP];

static struct walk over(char *memory, uint32_t mib, int how)
{
	return (struct walk){.memory = memory, .span = (size_t)mib * M / PAYLOAD * PAYLOAD, .left = PAYLOAD, .how = how};
}

/* warm reads a byte of each line. */
static void warm(const char *p, size_t n)
{
	for (size_t k = 0; k < n; k += LINE)
		(void)*(volatile const char *)(p + k);
}

/* put makes one call that sends; what it returns is not positive when the peer has gone. */
static ssize_t put(int s, struct walk *w)
{
	int ahead = w->span > M;
	if (w->how == PLAIN) {
		size_t part = ahead ? M / 2 : M;
		if (ahead)
			warm(w->memory + w->at, part);
		ssize_t n = write(s, w->memory + w->at, part);
		if (n > 0)
			w->at = (w->at + n) % w->span;
		return n;
	}
	struct iovec v[2 * ROUND];
	int round = w->how == CRC || ahead ? ROUND_READ : ROUND;
	for (int i = 0; i < round; i++) {
		char *p = w->memory + w->at;
		if (w->how == CRC)
			fold(p, PAYLOAD);
		else if (ahead)
			warm(p, PAYLOAD);
		v[2 * i] = (struct iovec){p, PAYLOAD};
		v[2 * i + 1] = (struct iovec){gap, GAP};
		w->at = (w->at + PAYLOAD) % w->span;
	}
	ssize_t all = round * (PAYLOAD + GAP), n = writev(s, v, 2 * round); /* it blocks until all of it has gone */
	return n == all ? n : -1;
}

/* come makes one call that receives, and another one where a gap came in part. */
static ssize_t come(int s, struct walk *w)
{
	if (w->how == PLAIN) {
		ssize_t n = read(s, w->memory + w->at, M);
		if (n > 0)
			w->at = (w->at + n) % w->span;
		return n;
	}
	struct iovec v[2] = {{w->memory + w->at + PAYLOAD - w->left, w->left}, {gap, GAP}};
	ssize_t n = readv(s, v, 2);
	if (n <= 0)
		return n;
	size_t payload = (size_t)n < w->left ? (size_t)n : w->left;
	if (w->how == CRC)
		fold(v[0].iov_base, payload);
	if ((w->left -= payload) > 0)
		return n;
	if (read_all(s, gap, GAP - (n - payload)))
		return -1;
	w->left = PAYLOAD;
	w->at = (w->at + PAYLOAD) % w->span;
	return payload + GAP;
}

/* take is come until something has; only who spins is told that there is nothing. */
static ssize_t take(int s, struct walk *w)
{
	ssize_t n;
	while ((n = come(s, w)) < 0 && errno == EAGAIN)
		;
	return n;
}

static _Noreturn void serve(const char *port, uint32_t mib)
{
	char *m = memory((size_t)(mib + 1) * M);
	for (int l = listen_at(port);;) {
		struct hello h;
		int s = accept_on(l);
		if (read_all(s, &h, sizeof h) == 0 && h.mib > 0 && h.mib <= mib) {
			struct walk w = over(m, h.mib, h.how);
			uint64_t sum = 0;
			if (h.spin && !h.send)
				fcntl(s, F_SETFL, O_NONBLOCK);
			for (ssize_t n; (n = h.send ? put(s, &w) : take(s, &w)) > 0;)
				sum += n;
			if (!h.send)
				write_all(s, &sum, sizeof sum);
		}
		close(s);
	}
}

int main(int argc, char **argv)
{
	if (argc >= 4 && strcmp(argv[1], "serve") == 0)
		serve(argv[2], atoi(argv[3]));
	uint32_t mib = argc >= 6 ? atoi(argv[4]) : 0;
	if (mib == 0)
		return usage("stream serve PORT MIB | send|take PORT plain|fpdu|crc MIB MS [spin]");
	int send = strcmp(argv[1], "send") == 0, how = argv[3][0] == 'c' ? CRC : argv[3][0] == 'f' ? FPDU : PLAIN;
	struct walk w = over(memory((size_t)(mib + 1) * M), mib, how);
	struct hello h = {!send, how, mib, argc > 6};
	int s = connect_to(argv[2]);
	if (write_all(s, &h, sizeof h))
		die("stream");
	if (h.spin && !send)
		fcntl(s, F_SETFL, O_NONBLOCK);
	uint64_t sum = 0;
	int64_t used = cpu(), began = now(), stop = began + atoi(argv[5]) * 1000000LL;
	for (ssize_t n; now() < stop; sum += n)
		if ((n = send ? put(s, &w) : take(s, &w)) <= 0)
			die("stream");
	if (send) { /* what has come counts */
		shutdown(s, SHUT_WR);
		if (read_all(s, &sum, sizeof sum))
			die("stream");
	}
	report((double)sum / M, sum, now() - began, cpu() - used);
	return 0;
}
