/* Writes of 4 KiB as libiscsi's client makes them: the header in one send, its data in another.
 *
 *   sends serve PORT                 answers 48 bytes for 48 + 4096, all that have come in one send
 *   sends two|one PORT MS            32 writes outstanding; "one": header and data in one call
 *
 * Left out: the target's and the client's own work, so what remains is the sends. */
#include "bound.h"

enum { HEADER = 48, DATA = 4096, DEPTH = 32, BUFFERS = 200 };

static _Noreturn void serve(const char *port)
{
	static char in[1 << 20], answers[sizeof in / (HEADER + DATA) * HEADER + HEADER];
	for (int l = listen_at(port);;) {
		int s = accept_on(l);
		size_t come = 0;
		for (ssize_t n; (n = read(s, in, sizeof in)) > 0; come %= HEADER + DATA) {
			come += n;
			if (come >= HEADER + DATA && write_all(s, answers, come / (HEADER + DATA) * HEADER))
				break;
		}
		close(s);
	}
}

int main(int argc, char **argv)
{
	static char header[HEADER], data[BUFFERS][DATA], answer[HEADER];
	if (argc >= 3 && strcmp(argv[1], "serve") == 0)
		serve(argv[2]);
	if (argc < 4)
		return usage("sends serve PORT | two|one PORT MS");
	int s = connect_to(argv[2]), two = argv[1][0] == 't';
	int64_t started[DEPTH], used = cpu(), began = now(), stop = began + atoi(argv[3]) * 1000000LL, t = began;
	long sent = 0, done = 0;
	while (t < stop) {
		for (; sent < done + DEPTH; sent++) {
			struct iovec v[] = {{header, HEADER}, {data[sent % BUFFERS], DATA}};
			started[sent % DEPTH] = now();
			if (two && write(s, header, HEADER) != HEADER)
				die("sends");
			if (writev(s, v + two, 2 - two) != DATA + !two * HEADER)
				die("sends");
		}
		/* the first answer is waited for, then what is there */
		for (int flags = 0;; flags = MSG_DONTWAIT) {
			ssize_t k = recv(s, answer, HEADER, flags);
			if (k < 0 && flags)
				break;
			if (k <= 0 || read_all(s, answer, HEADER - k))
				die("sends");
			trip((t = now()) - started[done++ % DEPTH]);
		}
	}
	report(done, (double)done * DATA, t - began, cpu() - used);
	return 0;
}
