package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"softiser/interop/internal/tap"
)

// roceDatagramCases are what iWARP does not have: unreliable queue pairs, lookups of
// services, multicast; and connections without a connection manager.
var roceDatagramCases = func() []Case {
	var cases []Case
	for _, kind := range []string{"rc", "uc", "ud"} {
		kernel := "ibv_" + kind + "_pingpong -d rxe_eth1 -g 1 -n 200"
		ours := []string{"-n", "200"}
		size := "4096"
		if kind == "ud" {
			size = "1024" // one packet
		}
		cases = append(cases,
			roceOver("roce/"+kind+"-pingpong-kernel-client", "200 messages there and back", func(e *Env) error {
				return roceKernelClient(e, perftestPort, kernel+" -s "+size+" "+tap.Host4, kind+"-pingpong", append(ours, "-s", size)...)
			}),
			roceOver("roce/"+kind+"-pingpong-kernel-server", "200 messages there and back", func(e *Env) error {
				return roceKernelServer(e, perftestPort, kernel+" -s "+size, kind+"-pingpong", append(ours, "-s", size, tap.Guest4)...)
			}))
	}
	return append(cases,
		roceOver("roce/udaddy-kernel-client", "lookup, datagrams both ways", func(e *Env) error {
			return roceKernelClient(e, rpingPort, "udaddy -s "+tap.Host4, "udaddy", "-b", tap.Host4)
		}),
		roceOver("roce/udaddy-kernel-server", "lookup, datagrams both ways", func(e *Env) error {
			return roceKernelServer(e, rpingPort, "udaddy", "udaddy", "-b", tap.Host4, "-s", tap.Guest4)
		}),
		roceOver("roce/mckey-kernel-sender", "all datagrams of the group come", mckeyKernelSender),
		roceOver("roce/mckey-kernel-receiver", "all datagrams of the group come", mckeyKernelReceiver))
}()

// roceOver is a case that says no more than that it has passed.
func roceOver(name, expect string, run func(e *Env) error) Case {
	return Case{Name: name, Expect: expect, Run: func(_ context.Context, e *Env) (string, error) {
		if err := e.RoCE(tap.MTU); err != nil {
			return "", err
		}
		return "passed", run(e)
	}}
}

const mckeyGroup = "239.1.2.3"

// mckeyKernelSender: what the guest sends comes to us. Its program gives switches time to
// learn of the group before it sends.
func mckeyKernelSender(e *Env) error {
	p, err := e.Start("iser-initiator", "rdma", "mckey", "-m", mckeyGroup, "-b", tap.Host4)
	if err != nil {
		return err
	}
	if err := p.until(e.ctx, e.bound); err != nil {
		return err
	}
	if _, err := e.In("rxe_up\ndmesg -C; timeout 60 mckey -m %s -b $SELF -s || die mckey; quiet_kernel", mckeyGroup); err != nil {
		return err
	}
	return p.wait(time.Minute)
}

// mckeyKernelReceiver: what we send comes to the guest, once its program has joined.
func mckeyKernelReceiver(e *Env) error {
	g, err := e.Guest()
	if err != nil {
		return err
	}
	receiver, err := g.Start(fmt.Sprintf("rxe_up\ndmesg -C; timeout 60 stdbuf -oL mckey -m %s -b $SELF || die mckey; quiet_kernel", mckeyGroup))
	if err != nil {
		return err
	}
	if err := e.retry(func() error {
		if !strings.Contains(receiver.Output(), "joined") {
			return fmt.Errorf("it has not joined:\n%s", receiver.Output())
		}
		return nil
	}); err != nil {
		return err
	}
	if _, err := e.Host("iser-initiator", "rdma", "mckey", "-m", mckeyGroup, "-b", tap.Host4, "-s", "--settle", "1s"); err != nil {
		return err
	}
	_, err = receiver.Wait(e.ctx)
	return err
}
