/* Random reads of 4 KiB over one or many connections: what storage costs when there is nothing
 * but the wire work and the memory.
 *
 *   pages serve PORT MIB                                    has so much memory
 *   pages ask PORT CONNECTIONS DEPTH LINES MS [crc]         CONNECTIONS with DEPTH requests each
 *
 * A server that has the memory of a connection says so by a byte. A request has 80 bytes, its answer 64 and a page at a random place of the memory. Both ends wait in
 * epoll and read a connection once when it is ready; requests that have come together are answered by one sendmsg, answers that
 * have come together are followed by as many requests in one send. With LINES each command also
 * writes to so many lines of the cache, of four slots of 6 KiB that its connection has for itself,
 * at each end. With "crc" each page is summed at both ends. Left out: SCSI, tags, the place of an
 * answer (they come in order), leases, limits, and whatever a peer might do wrong. */
#include "bound.h"
#include "crc.h"
#include <sys/epoll.h>

enum { REQUEST = 80, HEADER = 64, PAGE = 4096, ANSWER = HEADER + PAGE, DEEPEST = 128, EVENTS = 128 };

/* request says what serving it is to cost. */
union request {
	struct {
		uint32_t lines, crc;
	};
	char bytes[REQUEST];
};

struct conn {
	int fd;
	unsigned head, tail; /* of sent */
	size_t in;           /* bytes in buf */
	int64_t sent[2 * DEEPEST];
	char own[4][6144], buf[DEEPEST * ANSWER];
};

static int queue; /* of epoll */
static char *ram; /* what is served */
static uint64_t ram_pages;

static struct conn *join(int fd)
{
	struct conn *c = memset(memory(sizeof *c), 0, sizeof *c);
	int one = 1;
	c->fd = fd;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
	if (epoll_ctl(queue, EPOLL_CTL_ADD, fd, &e))
		die("epoll_ctl");
	return c;
}

/* come reads once and returns how many things of that size are whole; -1: the peer has gone. */
static int come(struct conn *c, size_t size)
{
	ssize_t n = recv(c->fd, c->buf + c->in, sizeof c->buf - c->in, MSG_DONTWAIT);
	if (n <= 0)
		return n < 0 && errno == EAGAIN ? 0 : -1;
	return (c->in += n) / size;
}

static void gone(struct conn *c, size_t bytes) { memmove(c->buf, c->buf + bytes, c->in -= bytes); }

static void touch(struct conn *c, int command, unsigned lines)
{
	for (unsigned i = 0; i < lines; i++)
		c->own[command & 3][i * 320 % sizeof c->own[0]]++;
}

/* answer serves what has come; -1: the peer has gone. */
static int answer(struct conn *c)
{
	static char header[HEADER];
	int n = come(c, REQUEST);
	if (n <= 0)
		return n;
	n = n < DEEPEST ? n : DEEPEST;
	struct iovec v[2 * DEEPEST];
	for (int i = 0; i < n; i++) {
		union request *r = (void *)(c->buf + i * REQUEST);
		char *page = ram + at_random(ram_pages) * PAGE;
		touch(c, i, r->lines);
		if (r->crc)
			fold(page, PAGE);
		v[2 * i] = (struct iovec){header, HEADER};
		v[2 * i + 1] = (struct iovec){page, PAGE};
	}
	struct msghdr h = {.msg_iov = v, .msg_iovlen = 2 * n};
	if (sendmsg(c->fd, &h, 0) != (ssize_t)n * ANSWER)
		return -1;
	gone(c, n * REQUEST);
	return 0;
}

static _Noreturn void serve(const char *port, size_t mib)
{
	ram = memory(mib << 20);
	ram_pages = (mib << 20) / PAGE;
	int l = listen_at(port);
	struct epoll_event events[EVENTS], e = {.events = EPOLLIN, .data.ptr = NULL};
	epoll_ctl(queue, EPOLL_CTL_ADD, l, &e);
	for (;;)
		for (int i = 0, n = epoll_wait(queue, events, EVENTS, -1); i < n; i++) {
			struct conn *c = events[i].data.ptr;
			if (!c)
				write_all(join(accept_on(l))->fd, "", 1);
			else if (answer(c)) {
				close(c->fd);
				munmap(c, sizeof *c);
			}
		}
}

static union request requests[DEEPEST];

static void ask(struct conn *c, int n)
{
	int64_t t = now();
	for (int i = 0; i < n; i++)
		c->sent[c->head++ % (2 * DEEPEST)] = t;
	if (write_all(c->fd, requests, n * REQUEST))
		die("pages");
}

int main(int argc, char **argv)
{
	queue = epoll_create1(0);
	if (argc >= 4 && strcmp(argv[1], "serve") == 0)
		serve(argv[2], atoi(argv[3]));
	int depth = argc >= 7 ? atoi(argv[4]) : 0, connections = argc >= 7 ? atoi(argv[3]) : 0;
	if (depth < 1 || depth > DEEPEST || connections < 1)
		return usage("pages serve PORT MIB | ask PORT CONNECTIONS DEPTH LINES MS [crc]");
	for (int i = 0; i < DEEPEST; i++)
		requests[i].lines = atoi(argv[5]), requests[i].crc = argc > 7;
	struct conn *all[connections];
	for (int i = 0; i < connections; i++) {
		char welcome;
		all[i] = join(connect_to(argv[2]));
		if (read_all(all[i]->fd, &welcome, 1))
			die("pages");
	}
	keep_trips();
	for (int i = 0; i < connections; i++)
		ask(all[i], depth);
	double pages = 0;
	struct epoll_event events[EVENTS];
	int64_t used = cpu(), began = now(), stop = began + atoi(argv[6]) * 1000000LL, t = began;
	while (t < stop)
		for (int i = 0, ready = epoll_wait(queue, events, EVENTS, -1); i < ready; i++) {
			struct conn *c = events[i].data.ptr;
			int n = come(c, ANSWER);
			if (n < 0)
				die("pages");
			t = now();
			for (int k = 0; k < n; k++) {
				touch(c, k, requests->lines);
				if (requests->crc)
					fold(c->buf + k * ANSWER + HEADER, PAGE);
				trip(t - c->sent[c->tail++ % (2 * DEEPEST)]);
			}
			if (n > 0)
				ask(c, n);
			gone(c, (size_t)n * ANSWER);
			pages += n;
		}
	report(pages, pages * PAGE, t - began, cpu() - used);
	return 0;
}
