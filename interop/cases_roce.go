package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"softiser/interop/internal/tap"
)

// RoCE v2, against the kernel's rdma_rxe, over a tap in a network namespace.
var roceCases = concat(roceRpingCases, roceToolCases, rocePerftestCases(), rocePerftestTCPCases(), roceDatagramCases, roceStorageCases, roceRawCases)

// jumbo is an MTU of the link that carries packets of 4096 bytes.
const jumbo = 9000

// roceSizes are a packet, several, and what rping takes at most.
var roceSizes = []int{100, 4096, 65535}

const (
	rpingPort    = 7174
	ucmatosePort = 7471
	perftestPort = 18515
)

var roceRpingCases = func() []Case {
	var cases []Case
	for _, v := range []struct {
		name, host, guest string
		mtu               int
		short             bool
	}{
		{"v4", tap.Host4, tap.Guest4, tap.MTU, true},
		{"v6", tap.Host6, tap.Guest6, tap.MTU, false},
		{"mtu-4096", tap.Host4, tap.Guest4, jumbo, false},
	} {
		cases = append(cases,
			Case{Name: "roce/rping-kernel-client-" + v.name, Expect: "every size verified", Short: v.short, Run: func(_ context.Context, e *Env) (string, error) {
				return roceRping(e, v.mtu, func(size string) error { return roceRpingClient(e, v.host, size) })
			}},
			Case{Name: "roce/rping-kernel-server-" + v.name, Expect: "every size verified", Run: func(_ context.Context, e *Env) (string, error) {
				return roceRping(e, v.mtu, func(size string) error { return roceRpingServer(e, v.guest, size) })
			}})
	}
	// Linux's rxe asks for a lost answer to a Read again after half a second or two, so
	// the pings are shorter the more is lost.
	for _, l := range []struct{ percent, size string }{{"0.1", "65535"}, {"1", "16384"}, {"5", "4096"}} {
		cases = append(cases, Case{Name: "roce/rping-loss-" + l.percent, Expect: l.percent + " % of the packets lost each way: every ping verified, in both roles", Run: func(_ context.Context, e *Env) (string, error) {
			return roceLoss(e, l.percent, []string{"100", l.size})
		}})
	}
	return cases
}()

func roceRping(e *Env, mtu int, ping func(size string) error) (string, error) {
	if err := e.RoCE(mtu); err != nil {
		return "", err
	}
	for _, size := range roceSizes {
		if err := ping(strconv.Itoa(size)); err != nil {
			return "", fmt.Errorf("%d bytes: %w", size, err)
		}
	}
	return fmt.Sprintf("%d sizes verified", len(roceSizes)), nil
}

func roceRpingClient(e *Env, host, size string) error {
	return roceKernelClient(e, rpingPort, "rping -c -a "+host+" -C 20 -V -S "+size, "rping", "-s", "-a", host, "-V", "-S", size)
}

func roceRpingServer(e *Env, guest, size string) error {
	return roceKernelServer(e, rpingPort, "rping -s -a "+guest+" -C 20 -V -S "+size, "rping", "-c", "-a", guest, "-C", "20", "-V", "-S", size)
}

// roceTool is the command line of one of our tools over RoCE. Those that run over nothing
// else have no flag for it.
func roceTool(tool string, args []string) []string {
	command := []string{"rdma", tool}
	if tool != "udaddy" && tool != "mckey" && !strings.HasSuffix(tool, "-pingpong") {
		command = append(command, "--provider", "roce")
	}
	return append(command, args...)
}

// roceKernel is the command line of the guest's program on a port. udaddy's port is a
// constant, and its -p something else.
func roceKernel(program string, port int) string {
	if strings.HasPrefix(program, "udaddy") {
		return program
	}
	return fmt.Sprintf("%s -p %d", program, port)
}

// roceKernelClient runs one of our programs as the server of a program of the guest's.
func roceKernelClient(e *Env, port int, kernel, tool string, args ...string) error {
	p, err := e.StartServer(port, "iser-initiator", roceTool(tool, args)...)
	if err != nil {
		return err
	}
	if _, err := e.In("rxe_up\ndmesg -C; limited 120 %s || die client; quiet_kernel", roceKernel(kernel, port)); err != nil {
		return err
	}
	if err := p.wait(time.Minute); err != nil {
		return fmt.Errorf("our server: %w", err)
	}
	return nil
}

// roceListening waits until a program in the guest listens. A visit would not do: a request
// of an attempt that has been given up may still be on its way to a slow guest. A server of
// one visitor takes that for it, or rejects the next one, which is in the queue of its
// listener when that goes (rdma_server_connect of perftest 4.5: listen, one event, accept,
// rdma_destroy_id; ib_cm then rejects with "consumer defined", 28).
func roceListening(e *Env, kernel string, port int) error {
	script := `for n in $(seq 300); do rdma resource show cm_id | grep -qE 'LISTEN.*:%d( |$)' && exit; sleep 0.1; done
rdma resource show cm_id; die nobody listens on port %[1]d`
	if strings.Contains(kernel, "pingpong") || strings.HasPrefix(kernel, "ib_") && !strings.Contains(kernel, " -R ") { // over TCP, before there are queue pairs
		script = "listening %d || die nobody listens"
	}
	_, err := e.In(script, port)
	return err
}

// roceKernelServer runs one of our programs as the client of a program of the guest's.
func roceKernelServer(e *Env, port int, kernel, tool string, args ...string) error {
	g, err := e.Guest()
	if err != nil {
		return err
	}
	server, err := g.Start(fmt.Sprintf("rxe_up\ndmesg -C; limited 120 %s || die server; quiet_kernel", roceKernel(kernel, port)))
	if err != nil {
		return err
	}
	if err := roceListening(e, kernel, port); err != nil {
		return fmt.Errorf("%w\n%s", err, server.Output())
	}
	args = append(roceTool(tool, args), "-p", strconv.Itoa(port))
	if _, err := e.Host("iser-initiator", args...); err != nil {
		return fmt.Errorf("%w\n%s", err, server.Output())
	}
	if _, err := server.Wait(e.ctx); err != nil {
		return fmt.Errorf("the kernel's server: %w", err)
	}
	return nil
}

// roceLoss pings in both roles while both directions lose packets: the guest drops what
// it sends, and what comes on its way through another interface.
func roceLoss(e *Env, percent string, sizes []string) (string, error) {
	if err := e.RoCE(tap.MTU); err != nil {
		return "", err
	}
	if _, err := e.In("rxe_up && lossy %s || die netem", percent); err != nil {
		return "", err
	}
	if err := roceBothWays(e, sizes); err != nil {
		return "", err
	}
	out, err := e.In("lost && lossless")
	return "verified; " + lastLine(out), err
}

// serverSilence is the exit code of our server when it has heard nothing for long. All pings of its
// client, whose exit code is looked at first, are verified then: that the client has left is told once,
// as rping does not wait for the answer, and so may be lost.
const serverSilence = 8

// roceBothWays pings in both roles.
func roceBothWays(e *Env, sizes []string) error {
	for _, size := range sizes {
		err := roceRpingClient(e, tap.Host4, size)
		if code, ok := errors.AsType[*exec.ExitError](err); ok && code.ExitCode() == serverSilence {
			err = nil
		}
		if err != nil {
			return fmt.Errorf("kernel's client, %s bytes: %w", size, err)
		}
		if err := roceRpingServer(e, tap.Guest4, size); err != nil {
			return fmt.Errorf("kernel's server, %s bytes: %w", size, err)
		}
	}
	return nil
}

var roceToolCases = []Case{
	{Name: "roce/rping-16-connections", Expect: "16 kernel clients at once, all verified", Run: func(_ context.Context, e *Env) (string, error) {
		if err := e.RoCE(tap.MTU); err != nil {
			return "", err
		}
		if _, err := e.StartServer(rpingPort, "iser-initiator", "rdma", "rping", "--provider", "roce", "-s", "-a", tap.Host4, "-P", "-V"); err != nil {
			return "", err
		}
		_, err := e.In(`rxe_up
dmesg -C; `+rpings16+` && quiet_kernel`, rpingPort, 120)
		return "16 of 16", err
	}},
	roceOver("roce/ucmatose-kernel-client", "test passes on both ends", func(e *Env) error {
		return roceKernelClient(e, ucmatosePort, "ucmatose -s "+tap.Host4, "ucmatose", "-b", tap.Host4)
	}),
	roceOver("roce/ucmatose-kernel-server", "test passes on both ends", func(e *Env) error {
		return roceKernelServer(e, ucmatosePort, "ucmatose", "ucmatose", "-s", tap.Guest4)
	}),
	{Name: "roce/abrupt-close", Expect: "our end is killed: the kernel's gives up after its retries, and a new connection works", Run: roceAbruptClose},
}

// roceAbruptClose: our rping is killed while it serves the kernel's. Nothing tells the
// kernel, so its client is ended by its time limit or by rxe's own; then all goes on with
// a new process at the same address.
func roceAbruptClose(_ context.Context, e *Env) (string, error) {
	if err := e.RoCE(tap.MTU); err != nil {
		return "", err
	}
	p, err := e.StartServer(rpingPort, "iser-initiator", "rdma", "rping", "--provider", "roce", "-s", "-a", tap.Host4, "-V")
	if err != nil {
		return "", err
	}
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	client, err := g.Start(fmt.Sprintf("rxe_up\ndmesg -C; timeout 30 stdbuf -oL rping -c -v -a $HOST -p %d -C 1000000 -S 100; echo ended; quiet_kernel", rpingPort))
	if err != nil {
		return "", err
	}
	if err := killWhilePinging(e, p, client); err != nil {
		return "", err
	}
	if err := roceRpingClient(e, tap.Host4, "4096"); err != nil {
		return "", fmt.Errorf("a new connection beside the lost one: %w", err)
	}
	if out, err := client.Wait(e.ctx); err != nil {
		return "", fmt.Errorf("the lost client: %w\n%s", err, out)
	}
	return "a new process serves at once", nil
}

// rocePerftestCases are perftest's programs with -R, as client and as server, at three
// sizes; atomics have one.
func rocePerftestCases() []Case {
	var cases []Case
	for _, kind := range []string{"write-bw", "read-bw", "send-bw", "atomic-bw", "write-lat", "read-lat", "send-lat", "atomic-lat"} {
		program := "ib_" + strings.ReplaceAll(kind, "-", "_")
		run := func(e *Env, mtu int, one func(kernel string, args ...string) error) (string, error) {
			if err := e.RoCE(mtu); err != nil {
				return "", err
			}
			var seen []string
			for _, r := range perftestRuns {
				args := []string{"-n", strconv.Itoa(r.iters)}
				what := "8"
				if !strings.HasPrefix(kind, "atomic") {
					what = strconv.Itoa(r.size)
					args = append(args, "-s", what)
				}
				if err := one(program+" -d rxe_eth1 -R -F "+strings.Join(args, " "), args...); err != nil {
					return "", fmt.Errorf("%s bytes: %w", what, err)
				}
				seen = append(seen, what)
				if what == "8" {
					break
				}
			}
			return "messages of " + strings.Join(seen, ", ") + " bytes", nil
		}
		for _, mtu := range []int{tap.MTU, jumbo} {
			suffix := ""
			if mtu == jumbo {
				if kind != "write-bw" && kind != "read-bw" {
					continue
				}
				suffix = "-mtu-4096"
			}
			cases = append(cases,
				Case{Name: "roce/perftest-" + kind + "-kernel-client" + suffix, Expect: program + " -R measures our library", Run: func(_ context.Context, e *Env) (string, error) {
					return run(e, mtu, func(kernel string, args ...string) error {
						return roceKernelClient(e, perftestPort, kernel+" "+tap.Host4, kind, append(args, "--bind_source_ip", tap.Host4)...)
					})
				}},
				Case{Name: "roce/perftest-" + kind + "-kernel-server" + suffix, Expect: "our library measures " + program + " -R", Run: func(_ context.Context, e *Env) (string, error) {
					return run(e, mtu, func(kernel string, args ...string) error {
						return roceKernelServer(e, perftestPort, kernel, kind, append([]string{tap.Guest4, "-R"}, args...)...)
					})
				}})
		}
	}
	return cases
}

// rocePerftestTCPCases are perftest's programs without -R, which tell each other over TCP
// where their queue pairs are. Of connections and datagrams that nobody acknowledges the
// messages are so few that the queue of a tap holds all of their packets: what it drops would
// be missed for ever.
func rocePerftestTCPCases() []Case {
	type run = struct{ size, iters int }
	few := []run{{1, 100}, {4096, 100}}
	var cases []Case
	for _, k := range []struct {
		kind, service string
		runs          []run
	}{
		{"write-bw", "RC", perftestRuns}, {"send-lat", "RC", perftestRuns}, {"read-bw", "RC", perftestRuns}, {"atomic-bw", "RC", []run{{8, 100}}},
		{"write-bw", "UC", few}, {"write-lat", "UC", few}, {"send-bw", "UC", few}, {"send-lat", "UC", few},
		{"send-bw", "UD", []run{{1, 300}, {1024, 300}}}, {"send-lat", "UD", []run{{2, 300}, {1024, 300}}},
	} {
		kind, name, flags := k.kind, "roce/perftest-tcp-"+k.kind, []string{}
		program := "ib_" + strings.ReplaceAll(kind, "-", "_")
		if k.service != "RC" {
			flags = []string{"-c", k.service}
			name, program = name+"-"+strings.ToLower(k.service), program+" -c "+k.service
		}
		sizes := func(one func(kernel string, args ...string) error) error {
			for _, r := range k.runs {
				args := []string{"-n", strconv.Itoa(r.iters)}
				if !strings.HasPrefix(kind, "atomic") {
					args = append(args, "-s", strconv.Itoa(r.size))
				}
				if err := one(program+" -d rxe_eth1 -x 1 -F "+strings.Join(args, " "), append(append(args, flags...), "--tcp-exchange")...); err != nil {
					return fmt.Errorf("%d bytes: %w", r.size, err)
				}
			}
			return nil
		}
		what := fmt.Sprintf(" without -R, sizes: %d", len(k.runs))
		cases = append(cases,
			roceOver(name+"-kernel-client", program+what+"; it measures our library", func(e *Env) error {
				return sizes(func(kernel string, args ...string) error {
					return roceKernelClient(e, perftestPort, kernel+" "+tap.Host4, kind, append(args, "--bind_source_ip", tap.Host4)...)
				})
			}),
			roceOver(name+"-kernel-server", program+what+"; our library measures it", func(e *Env) error {
				return sizes(func(kernel string, args ...string) error {
					return roceKernelServer(e, perftestPort, kernel, kind, append([]string{tap.Guest4}, args...)...)
				})
			}))
	}
	return cases
}
