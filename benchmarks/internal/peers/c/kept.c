/* One process more between an NBD client that writes and its server, with what a protocol does
 * that sums its payload and may have to send it again.
 *
 *   kept serve PORT MIB asks|takes        the server, over TCP: 1 GiB, in so much memory
 *   kept LISTEN PORT DEPTH                the process in front of it, at a unix socket
 *
 * Both have one client after another. The payload of a request has a buffer of its own, of DEPTH, until
 * its answer: it is summed before it is sent, 240 KiB at a time, and again when it has come to its place in
 * memory. A server that "asks" gets a request when all of its payload is there, and the payload when it has
 * asked for it, as targets of iSER do; one that "takes" gets both as they come. Left out: everything but
 * writes of up to 1 MiB, windows and keys, FPDUs, asking for the next payload while one comes, and sending
 * anything again. */
#include "bound.h"
#include "crc.h"
#include <endian.h>
#include <poll.h>
#include <sys/un.h>

enum { M = 1 << 20, ROUND = 240 << 10, WRITE = 1 };

struct hello { /* of a server that does not negotiate */
	char magic[16];
	uint64_t size;
	uint16_t global, flags;
	char zero[123], asks; /* asks: for the process in front */
} __attribute__((packed));

struct ask {
	uint32_t magic;
	uint16_t flags, type;
	uint64_t cookie, at;
	uint32_t n;
} __attribute__((packed));

struct answer { /* or the question for the payload, which has no magic */
	uint32_t magic, error;
	uint64_t cookie;
} __attribute__((packed));

struct stream { /* of requests */
	int s;
	struct ask ask, next;
	size_t have, left; /* have: of next, left: of the payload of ask */
};

/* begin reads the rest of the next request, without its payload. */
static int begin(struct stream *r)
{
	if (read_all(r->s, (char *)&r->next + r->have, sizeof r->next - r->have))
		return -1;
	r->ask = r->next;
	r->have = 0;
	r->left = be32toh(r->ask.n);
	return be16toh(r->ask.type) == WRITE && r->left > 0 && r->left <= M ? 0 : -1;
}

/* payload makes one call for what is missing, and for the next request behind it. */
static ssize_t payload(struct stream *r, char *to)
{
	struct iovec v[2] = {{to, r->left}, {&r->next, sizeof r->next}};
	ssize_t n = readv(r->s, v, 2);
	if (n <= 0)
		return -1;
	size_t k = (size_t)n < r->left ? (size_t)n : r->left;
	r->left -= k;
	r->have = n - k;
	return k;
}

/* serve answers one client. */
static void serve(int s, char *memory, size_t mib, int asks)
{
	struct hello h = {.asks = asks, .magic = "NBDMAGIC\0\0\x42\2\x81\x86\x12\x53", .size = htobe64(1 << 30), .flags = htobe16(1)};
	struct stream r = {.s = s};
	if (write_all(s, &h, sizeof h))
		return;
	while (begin(&r) == 0) {
		struct answer a = {0, 0, r.ask.cookie};
		if (asks && write_all(s, &a, sizeof a))
			return;
		char *to = memory + be64toh(r.ask.at) % (mib * M);
		for (ssize_t n; r.left > 0; to += n) {
			if ((n = payload(&r, to)) < 0)
				return;
			fold(to, n);
		}
		a.magic = htobe32(0x67446698);
		if (write_all(s, &a, sizeof a))
			return;
	}
}

static _Noreturn void serve_all(const char *port, size_t mib, int asks)
{
	char *m = memory((mib + 1) * M);
	for (int l = listen_at(port);;) {
		int s = accept_on(l);
		serve(s, m, mib, asks);
		close(s);
	}
}

struct front {
	int client, server, depth, asks;
	char *buffers;
	struct stream r;
	struct ask *asked;	/* one a buffer */
	size_t in, got;		/* requests that have come, and bytes of the one that comes */
	size_t out, sent;	/* the same of what has been sent */
	size_t told, due;	/* requests that the server knows, and those that it has asked for */
};

static char *buffer(struct front *f, size_t turn) { return f->buffers + turn % f->depth * M; }

/* ready is how much there is to send of the request whose turn it is. */
static size_t ready(struct front *f)
{
	if (f->out < (f->asks ? f->due : f->in))
		return be32toh(f->asked[f->out % f->depth].n) - f->sent;
	return f->asks ? 0 : f->got - f->sent;
}

/* take makes one call that receives. */
static int take(struct front *f)
{
	if (f->r.left == 0) {
		if (begin(&f->r))
			return -1;
		f->asked[f->in % f->depth] = f->r.ask;
		return 0;
	}
	ssize_t n = payload(&f->r, buffer(f, f->in) + f->got);
	if (n < 0)
		return -1;
	f->got += n;
	if (f->r.left == 0) {
		f->in++;
		f->got = 0;
	}
	return 0;
}

/* tell sends the request whose payload is next to be sent, once. */
static int tell(struct front *f, int flags)
{
	if (f->told > f->out)
		return 0;
	f->told++;
	return send(f->server, &f->asked[f->out % f->depth], sizeof(struct ask), flags) < 0 ? -1 : 0;
}

/* give sums and sends so much. */
static int give(struct front *f, size_t n)
{
	char *p = buffer(f, f->out) + f->sent;
	n = n < ROUND ? n : ROUND;
	fold(p, n);
	if (tell(f, MSG_MORE) || write_all(f->server, p, n))
		return -1;
	if ((f->sent += n) == be32toh(f->asked[f->out % f->depth].n)) {
		f->out++;
		f->sent = 0;
	}
	return 0;
}

/* hear passes answers on. */
static int hear(struct front *f)
{
	struct answer a[8];
	ssize_t n = read(f->server, a, sizeof a);
	if (n <= 0 || read_all(f->server, (char *)a + n, -n & (sizeof *a - 1)))
		return -1;
	for (size_t i = 0; i < ((size_t)n + sizeof *a - 1) / sizeof *a; i++)
		if (a[i].magic == 0)
			f->due++;
		else if (write_all(f->client, &a[i], sizeof a[i]))
			return -1;
	return 0;
}

/* between serves one client: what comes and what is to be sent have turns. */
static void between(struct front *f)
{
	struct pollfd p[2] = {{f->client, POLLIN, 0}, {f->server, POLLIN, 0}};
	struct hello h;
	if (read_all(f->server, &h, sizeof h) || write_all(f->client, &h, sizeof h))
		return;
	for (f->asks = h.asks;;) {
		int more = f->r.left == 0 && f->r.have > 0; /* the next request has begun to come */
		if (poll(p, 2, more || ready(f) > 0 ? 0 : -1) < 0)
			return;
		if (p[1].revents && hear(f))
			return;
		if ((more || p[0].revents) && take(f))
			return;
		size_t n = ready(f);
		if ((n > 0 && give(f, n)) || (f->asks && f->out < f->in && tell(f, 0)))
			return;
	}
}

int main(int argc, char **argv)
{
	if (argc == 5 && strcmp(argv[1], "serve") == 0 && atoi(argv[3]) > 0)
		serve_all(argv[2], atoi(argv[3]), argv[4][0] == 'a');
	int depth = argc == 4 ? atoi(argv[3]) : 0;
	if (depth <= 0)
		return usage("kept serve PORT MIB asks|takes | LISTEN PORT DEPTH");
	struct sockaddr_un here = {.sun_family = AF_UNIX};
	strncpy(here.sun_path, argv[1], sizeof here.sun_path - 1);
	int l = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(l, (void *)&here, sizeof here) || listen(l, 8))
		die("listen");
	char *buffers = memory((size_t)depth * M);
	for (struct ask *asked = (void *)memory(depth * sizeof *asked);;) {
		struct front f = {.client = accept_on(l), .server = connect_to(argv[2]), .depth = depth, .buffers = buffers, .asked = asked};
		f.r.s = f.client;
		between(&f);
		close(f.client);
		close(f.server);
	}
}
