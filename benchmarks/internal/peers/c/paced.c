/* Data at a fixed rate: what a core has left when it sends 100 KB at a time.
 *
 *   paced serve PORT MIB                          has so much memory, which it walks over
 *   paced plain|asked|crc PORT RATE MS [US]       RATE in bytes of payload a second
 *
 * "plain" is a write() of 100 KB by the server's clock, which sleeps a millisecond at a time, as
 * Go's does: who sleeps between two writes wakes up, and wakes the client up, for each of them.
 * "asked" are two FPDUs and an answer of 76 bytes for each request of 76 bytes, two requests to a
 * writev where as many have come; the client asks for what is due each 400 us, or each US, at most
 * eight requests being outstanding; with 0 it asks for each when that is due, as bench does. "crc" sums the payload before it is sent, too. What counts is
 * the server's processor time. Left out: SCSI, the client's CRC, everything else. */
#include "bound.h"
#include "crc.h"
#include <poll.h>

enum { PAYLOAD = 102400, CUT = 60 << 10, REQUEST = 76, GAP = 20, LAST = 76, MESSAGE = PAYLOAD + 2 * GAP + LAST, DEPTH = 8 };
enum { PIECES = 5, TOGETHER = 2 }; /* of an answer; answers to a call, which stay in the cache until the kernel copies them */
enum { SLEEP = 1000000, WAKE = 400 }; /* ns at least between two bursts of writes, us between two of requests */
enum { PLAIN, ASKED, CRC };

static char *ram; /* what is sent */
static size_t span; /* of it, so that a message is never cut */

struct hello {
	uint64_t rate;
	uint32_t how;
};

static void wait_until(int64_t at)
{
	struct timespec t = {at / 1000000000, at % 1000000000};
	while (now() < at && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

/* by_clock sends payload at the rate until the peer has gone. */
static void by_clock(int s, uint64_t rate)
{
	size_t at = 0;
	for (int64_t due = now();; due += PAYLOAD * 1000000000ll / rate) {
		int64_t t = now();
		if (t < due)
			wait_until(t + SLEEP);
		if (write_all(s, ram + at, PAYLOAD))
			return;
		at = (at + PAYLOAD) % span;
	}
}

/* on_request answers requests until the peer has gone. */
static void on_request(int s, int crc)
{
	char requests[REQUEST * DEPTH], gap[LAST] = "";
	size_t at = 0, left = 0;
	for (ssize_t n; (n = read(s, requests, sizeof requests)) > 0;) {
		for (left += n; left >= REQUEST;) {
			struct iovec v[PIECES * TOGETHER];
			int k = 0;
			for (; k < TOGETHER && left >= REQUEST; k++, left -= REQUEST) {
				char *p = ram + at;
				struct iovec one[PIECES] = {{gap, GAP}, {p, CUT}, {gap, GAP}, {p + CUT, PAYLOAD - CUT}, {gap, LAST}};
				if (crc)
					fold(p, PAYLOAD);
				memcpy(v + PIECES * k, one, sizeof one);
				at = (at + PAYLOAD) % span;
			}
			if (writev(s, v, PIECES * k) != k * MESSAGE) /* it blocks until all of it has gone */
				return;
		}
	}
}

static _Noreturn void serve(const char *port, size_t mib)
{
	ram = memory(mib << 20);
	span = (mib << 20) - PAYLOAD;
	for (int l = listen_at(port);;) {
		struct hello h;
		int s = accept_on(l);
		if (read_all(s, &h, sizeof h) == 0 && h.rate > 0) {
			if (h.how == PLAIN)
				by_clock(s, h.rate);
			else
				on_request(s, h.how == CRC);
		}
		close(s);
	}
}

int main(int argc, char **argv)
{
	static char in[1 << 20], requests[REQUEST * DEPTH];
	if (argc >= 4 && strcmp(argv[1], "serve") == 0)
		serve(argv[2], atoi(argv[3]));
	if (argc < 5 || atoll(argv[3]) <= 0)
		return usage("paced serve PORT MIB | plain|asked|crc PORT RATE MS [US]");
	struct hello h = {atoll(argv[3]), argv[1][0] == 'p' ? PLAIN : argv[1][0] == 'a' ? ASKED : CRC};
	int64_t rest = 1000ll * (argc > 5 ? atoi(argv[5]) : WAKE);
	int s = connect_to(argv[2]), under = 0;
	if (write_all(s, &h, sizeof h))
		die("paced");
	double sum = 0;
	size_t part = 0; /* of an answer */
	int64_t used = cpu(), began = now(), stop = began + atoi(argv[4]) * 1000000LL, due = began, wake = began, t;
	while ((t = now()) < stop) {
		if (h.how != PLAIN && t >= due && t >= wake && under < DEPTH) {
			int k = 0;
			for (; t >= due && under + k < DEPTH; k++)
				due += PAYLOAD * 1000000000ll / h.rate;
			if (write_all(s, requests, k * REQUEST))
				die("paced");
			under += k;
			wake = t + rest;
			continue;
		}
		if (h.how != PLAIN && under < DEPTH) { /* an answer, or it is time to ask again */
			struct pollfd f = {s, POLLIN, 0};
			struct timespec w = {0, (due > wake ? due : wake) - t};
			if (ppoll(&f, 1, &w, NULL) <= 0)
				continue;
		}
		ssize_t n = read(s, in, sizeof in);
		if (n <= 0)
			die("paced");
		if (h.how == PLAIN) {
			sum += n;
			continue;
		}
		part += n;
		under -= part / MESSAGE;
		sum += part / MESSAGE * (double)PAYLOAD;
		part %= MESSAGE;
	}
	report(sum / PAYLOAD, sum, now() - began, cpu() - used);
	return 0;
}
