package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"softiser/interop/internal/guest"
	"softiser/interop/internal/ports"
)

// Our library as the peer of perftest's programs with -R, which
// exchange their parameters by Sends on a connection of their own. They are told their device:
// else they take the first there is for what the connection runs over (ctx_find_dev).
var perftestCases = func() []Case {
	var cases []Case
	for _, kind := range []string{"write-bw", "read-bw", "send-bw", "write-lat", "read-lat", "send-lat"} {
		short := kind == "send-lat"
		tool := "ib_" + strings.ReplaceAll(kind, "-", "_")
		cases = append(cases,
			Case{Name: "perftest/" + kind + "-kernel-client", Expect: tool + " -R measures our library", Short: short, Run: func(_ context.Context, e *Env) (string, error) {
				return perftestKernelClient(e, kind, tool)
			}},
			Case{Name: "perftest/" + kind + "-kernel-server", Expect: "our library measures " + tool + " -R", Run: func(_ context.Context, e *Env) (string, error) {
				return perftestKernelServer(e, kind, tool)
			}})
	}
	return append(cases,
		Case{Name: "perftest/siw-two-senders", Expect: "siw 6.1 as it is sends bad CRCs from two threads, and we find them", Run: twoSenders},
		Case{Name: "perftest/read-depths-kernel-client", Expect: "siw posts more Reads than we serve at once, at IRD 1, 16 and 128", Run: readDepthsKernelClient},
		Case{Name: "perftest/read-depths-kernel-server", Expect: "we post 500 Reads at ORD 1, 16 and 128", Run: readDepthsKernelServer})
}()

// perftestRuns are bytes and messages. 700 Sends are more than perftest's 512
// receives, so the credits of send-bw come into it.
var perftestRuns = []struct{ size, iters int }{{1, 100}, {4096, 700}, {1 << 20, 20}}

func perftestKernelClient(e *Env, kind, tool string) (string, error) {
	var seen []string
	for _, r := range perftestRuns {
		// The largest takes longest in an emulated guest.
		if r.size == 1<<20 && e.h.short {
			continue
		}
		reported, err := perftestClient(e, []string{kind, "-s", strconv.Itoa(r.size), "-n", strconv.Itoa(r.iters)},
			fmt.Sprintf("%s -d siw_eth0 -R -F -s %d -n %d", tool, r.size, r.iters))
		if err != nil {
			return "", fmt.Errorf("%d bytes: %w", r.size, err)
		}
		seen = append(seen, strconv.Itoa(r.size)+reported)
	}
	return "messages of " + strings.Join(seen, ", ") + " bytes", nil
}

// perftestKernelServer runs tool as the server on kernel siw, and ours as its client,
// for each size.
func perftestKernelServer(e *Env, kind, tool string) (string, error) {
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	var seen []string
	for _, r := range perftestRuns {
		server, err := g.Start(settings("") + fmt.Sprintf("dmesg -C; timeout 90 %s -d siw_eth0 -R -F -p 18515 -s %d -n %d || die server; quiet_kernel", tool, r.size, r.iters))
		if err != nil {
			return "", err
		}
		ours, err := perftestHost(e, server, kind, r.size, r.iters)
		if err != nil {
			return "", fmt.Errorf("%d bytes: %w\n%s", r.size, err, server.Output())
		}
		if _, err := server.Wait(e.ctx); err != nil {
			return "", fmt.Errorf("%d bytes: the kernel's server: %w\nours: %v", r.size, err, ours)
		}
		seen = append(seen, strconv.Itoa(r.size))
	}
	return "messages of " + strings.Join(seen, ", ") + " bytes", nil
}

// perftestHost runs our client of a kernel's server until it has succeeded, or the server has ended.
// In ours is what the client has said to that, and before, when nobody listened.
func perftestHost(e *Env, server *guest.Job, kind string, size, iters int) (ours, err error) {
	err = e.retry(func() error {
		if server.Done() {
			return nil
		}
		_, err := e.Host("iser-initiator", "rdma", kind, "127.0.0.1", "-R", "-p", strconv.Itoa(e.Port(18515)), "-s", strconv.Itoa(size), "-n", strconv.Itoa(iters))
		if err != nil && (ours == nil || !strings.Contains(ours.Error(), err.Error())) {
			ours = errors.Join(ours, err)
		}
		return err
	})
	return ours, err
}

// twoSenders shows the defect of siw that the guest's module otherwise has repaired (see build.sh). Its
// socket is given a small buffer, so that the Send of a program soon finds no room in it; the program's
// thread then stops, and siw's own sends the same FPDU, with a CRC that has the payload twice.
func twoSenders(_ context.Context, e *Env) (string, error) {
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	server, err := g.Start(settings("two_senders=20") + `dmesg -C; wmem=$(cat /proc/sys/net/ipv4/tcp_wmem); echo 4096 16384 32768 >/proc/sys/net/ipv4/tcp_wmem
timeout 90 ib_send_lat -d siw_eth0 -R -F -p 18515 -s 1048576 -n 20
siw_set two_senders 0; echo $wmem >/proc/sys/net/ipv4/tcp_wmem; dmesg | grep 'got TERMINATE. layer 0, type 2, code 2' || die no Terminate`)
	if err != nil {
		return "", err
	}
	ours, err := perftestHost(e, server, "send-lat", 1<<20, 20)
	if err != nil {
		return "", err
	}
	if _, err := server.Wait(e.ctx); err != nil {
		return "", fmt.Errorf("%w\nours: %v", err, ours)
	}
	if ours == nil || !strings.Contains(ours.Error(), "CRC mismatch") {
		return "", fmt.Errorf("our client did not name a CRC mismatch, but said: %v", ours)
	}
	return "our client: MPA: CRC mismatch, siw: got its Terminate", nil
}

// perftestClient starts our server of a perftest and runs the kernel's client against
// it. The clock of an emulated machine is now and then too uneven for perftest, which
// then ends, with every message exchanged, without a report and its last steps;
// reported says so.
func perftestClient(e *Env, server []string, client string) (reported string, err error) {
	port := ports.Free()
	p, err := e.StartServer(port, "iser-initiator", append([]string{"rdma"}, server...)...)
	if err != nil {
		return "", err
	}
	out, err := e.In(settings("")+"dmesg -C; timeout 60 %s -p %d $HOST 2>&1 || die %[1]s; quiet_kernel", client, port)
	if err != nil && strings.Contains(out, "Can't produce a report") {
		p.Kill()
		return " (no report)", nil
	}
	if err != nil {
		return "", err
	}
	return "", p.wait(time.Minute)
}

// readDepths are the Reads that both ends agree to have outstanding; the queue of
// the end that reads is deeper.
var readDepths = []string{"1", "16", "128"}

func readDepthsKernelClient(_ context.Context, e *Env) (string, error) {
	for _, depth := range readDepths {
		if _, err := perftestClient(e, []string{"read-bw", "-s", "4096", "-o", depth}, "ib_read_bw -d siw_eth0 -R -F -s 4096 -n 1000 -t 500"); err != nil {
			return "", fmt.Errorf("IRD %s: %w", depth, err)
		}
	}
	return "1000 Reads of 4096 bytes each time, 500 in the queue", nil
}

func readDepthsKernelServer(_ context.Context, e *Env) (string, error) {
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	for _, depth := range readDepths {
		server, err := g.Start(settings("") + "dmesg -C; timeout 90 ib_read_bw -d siw_eth0 -R -F -p 18515 -s 4096 -n 1000 || die server; quiet_kernel")
		if err != nil {
			return "", err
		}
		if err := e.retry(func() error {
			if server.Done() {
				return nil
			}
			_, err := e.Host("iser-initiator", "rdma", "read-bw", "127.0.0.1", "-R", "-p", strconv.Itoa(e.Port(18515)), "-s", "4096", "-n", "1000", "-t", "500", "-o", depth)
			return err
		}); err != nil {
			return "", fmt.Errorf("ORD %s: %w\n%s", depth, err, server.Output())
		}
		if _, err := server.Wait(e.ctx); err != nil {
			return "", fmt.Errorf("ORD %s: the kernel's server: %w", depth, err)
		}
	}
	return "1000 Reads of 4096 bytes each time, 500 in the queue", nil
}
