/* Reads and writes of 4 KiB in the system calls that libiscsi's client makes for them, 32
 * outstanding.
 *
 *   sends serve PORT MIB             has so much memory, pages
 *   sends read PORT MS               a send for the command; its answer in a recv of the header and a readv of the page
 *   sends two|one PORT MS            writes: header and page in a send each, or both in one call; a recv for the answer
 *
 * Headers have 48 bytes. The server answers all that has come in one call: a header and a page
 * at a random place of the memory to a read, a header to a write. Left out: the target's and the
 * client's own work, so what remains is the calls. */
#include "bound.h"

enum { HEADER = 48, DATA = 4096, DEPTH = 32, BUFFERS = 200 };

static char header[HEADER], data[BUFFERS][DATA];

/* answer sends n answers; -1: the peer has gone. */
static int answer(int s, int n, char *ram, uint64_t pages)
{
	struct iovec v[2 * DEPTH];
	int k = 0;
	size_t all = 0;
	for (int i = 0; i < n; i++) {
		v[k++] = (struct iovec){header, HEADER};
		if (ram)
			v[k++] = (struct iovec){ram + at_random(pages) * DATA, DATA};
	}
	for (int i = 0; i < k; i++)
		all += v[i].iov_len;
	return writev(s, v, k) == (ssize_t)all ? 0 : -1;
}

static _Noreturn void serve(const char *port, size_t mib)
{
	static char in[DEPTH * (HEADER + DATA)];
	char *ram = memory(mib << 20);
	for (int l = listen_at(port);;) {
		uint32_t reads;
		int s = accept_on(l);
		if (read_all(s, &reads, sizeof reads) == 0) {
			size_t come = 0, size = HEADER + !reads * DATA;
			for (ssize_t n; (n = read(s, in, sizeof in)) > 0; come %= size) {
				come += n;
				if (come >= size && answer(s, come / size, reads ? ram : NULL, (mib << 20) / DATA))
					break;
			}
		}
		close(s);
	}
}

static void ask(int s, long i, uint32_t reads, int two)
{
	struct iovec v[] = {{header, HEADER}, {data[i % BUFFERS], DATA}};
	if ((reads || two) && write(s, header, HEADER) != HEADER)
		die("sends");
	if (!reads && writev(s, v + two, 2 - two) != DATA + !two * HEADER)
		die("sends");
}

/* answered takes an answer; 0: none is there. */
static int answered(int s, long i, uint32_t reads, int flags)
{
	char head[HEADER];
	struct iovec v = {data[i % BUFFERS], DATA};
	ssize_t k = recv(s, head, HEADER, flags);
	if (k < 0 && flags)
		return 0;
	if (k <= 0 || read_all(s, head + k, HEADER - k))
		die("sends");
	if (reads && ((k = readv(s, &v, 1)) <= 0 || read_all(s, (char *)v.iov_base + k, DATA - k)))
		die("sends");
	return 1;
}

int main(int argc, char **argv)
{
	if (argc >= 4 && strcmp(argv[1], "serve") == 0)
		serve(argv[2], atoi(argv[3]));
	if (argc < 4)
		return usage("sends serve PORT MIB | read|two|one PORT MS");
	uint32_t reads = argv[1][0] == 'r';
	keep_trips();
	int s = connect_to(argv[2]), two = argv[1][0] == 't';
	if (write_all(s, &reads, sizeof reads))
		die("sends");
	int64_t started[DEPTH], used = cpu(), began = now(), stop = began + atoi(argv[3]) * 1000000LL, t = began;
	long sent = 0, done = 0;
	while (t < stop) {
		for (; sent < done + DEPTH; sent++) {
			started[sent % DEPTH] = now();
			ask(s, sent, reads, two);
		}
		/* the first answer is waited for, then what is there */
		for (int flags = 0; done < sent && answered(s, done, reads, flags); flags = MSG_DONTWAIT)
			trip((t = now()) - started[done++ % DEPTH]);
	}
	report(done, (double)done * DATA, t - began, cpu() - used);
	return 0;
}
