/* A TCP ping-pong, as plain as C allows: the reference below ours and Go's, and what storage at
 * depth 1 would take if there were nothing but the wire and the memory.
 *
 *   pingpong serve PORT [MIB]                  answers one connection after another; with so much memory, pages
 *   pingpong wait|spin PORT SIZE MS            SIZE bytes back and forth
 *   pingpong wait|spin PORT read MS            a command of 80 bytes, answered by 64 bytes and a page of 4 KiB at random
 *   pingpong wait|spin PORT write MS           a command with its page, answered by 64 bytes
 *
 * "wait" blocks in read(2), "spin" asks a non-blocking socket again and again; the server does
 * what the first bytes ask for. Left out: SCSI, tags, CRC, and everything that more than one
 * command at a time needs. */
#include "bound.h"
#include <fcntl.h>

enum { COMMAND = 80, ANSWER = 64, PAGE = 4096 };

/* hello says what is to be done: the bytes of each message, and which of them has a page behind it. */
struct hello {
	uint32_t spin, ask, answer, page_out, page_back;
};

/* move reads or writes the whole of one or two pieces. */
static int move(ssize_t (*one)(int, void *, size_t), ssize_t (*many)(int, const struct iovec *, int), int s, char *head, size_t n, char *page)
{
	struct iovec v[2] = {{head, n}, {page, PAGE}};
	for (int at = 0, last = page != NULL; at <= last;) {
		ssize_t k = at == last ? one(s, v[at].iov_base, v[at].iov_len) : many(s, v, 2);
		if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
			return -1;
		for (; at <= last && k >= (ssize_t)v[at].iov_len; at++)
			k -= v[at].iov_len;
		if (at <= last && k > 0) {
			v[at].iov_base = (char *)v[at].iov_base + k;
			v[at].iov_len -= k;
		}
	}
	return 0;
}

static ssize_t write_from(int s, void *p, size_t n) { return write(s, p, n); }

static int take(int s, char *head, size_t n, char *page) { return move(read, readv, s, head, n, page); }

static int give(int s, char *head, size_t n, char *page) { return move(write_from, writev, s, head, n, page); }

static _Noreturn void serve(const char *port, size_t mib)
{
	static char head[1 << 20];
	char *ram = mib ? memory(mib << 20) : NULL;
	for (int l = listen_at(port);;) {
		struct hello h;
		int s = accept_on(l);
		if (read_all(s, &h, sizeof h) == 0 && h.ask > 0 && h.ask <= sizeof head && h.answer <= sizeof head && (ram || !(h.page_out | h.page_back))) {
			fcntl(s, F_SETFL, h.spin ? O_NONBLOCK : 0);
			for (int over = 0; !over;) {
				char *page = ram ? ram + at_random((mib << 20) / PAGE) * PAGE : NULL;
				over = take(s, head, h.ask, h.page_out ? page : NULL) || give(s, head, h.answer, h.page_back ? page : NULL);
			}
		}
		close(s);
	}
}

int main(int argc, char **argv)
{
	static char head[1 << 20], page[PAGE];
	if (argc >= 3 && strcmp(argv[1], "serve") == 0)
		serve(argv[2], argc > 3 ? atoi(argv[3]) : 0);
	if (argc < 5)
		return usage("pingpong serve PORT [MIB] | wait|spin PORT SIZE|read|write MS");
	int get = strcmp(argv[3], "read") == 0, put = strcmp(argv[3], "write") == 0;
	uint32_t size = atoi(argv[3]);
	struct hello h = {strcmp(argv[1], "spin") == 0, size, size, put, get};
	if (get || put)
		h.ask = COMMAND, h.answer = ANSWER, size = PAGE;
	if (size == 0 || size > sizeof head)
		return 2;
	keep_trips();
	int s = connect_to(argv[2]);
	if (write_all(s, &h, sizeof h))
		die("pingpong");
	fcntl(s, F_SETFL, h.spin ? O_NONBLOCK : 0);
	int64_t used = cpu(), began = now(), stop = began + atoi(argv[4]) * 1000000LL, n = 0, t = began;
	for (int64_t end; t < stop; t = end, n++) {
		if (give(s, head, h.ask, put ? page : NULL) || take(s, head, h.answer, get ? page : NULL))
			die("pingpong");
		end = now();
		trip(end - t);
	}
	report(n, (double)n * size, t - began, cpu() - used);
	return 0;
}
